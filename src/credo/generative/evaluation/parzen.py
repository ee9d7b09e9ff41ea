"""The log likelihood of test data under a Gaussian Parzen window around samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from credo._arguments import check_positive
from credo._distances import SquaredDistances
from credo.errors import InputError

_DISTANCES_AT_ONCE = 2**24
_CANDIDATES = 25
_ROUNDS = 2


@dataclass(frozen=True)
class ParzenEstimate:
    """A mean log likelihood in nats.

    Attributes:
        mean: over the test data.
        standard_error: of that mean, s/√N; 0 for a single datum.
        sigma: the width of the window.
    """

    mean: float
    standard_error: float
    sigma: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.standard_error:.1f}"


def parzen_log_likelihood(
    samples: Tensor, test: Tensor, *, sigma: float | None = None, validation: Tensor | None = None
) -> ParzenEstimate:
    """The mean of log p(x) over test data, p a mixture of Gaussians of width σ around the samples.

        p(x) = 1/n Σ_i N(x; s_i, σ² I)

    What Goodfellow et al. (2014) and others before them report. In many dimensions it says little: it needs
    astronomically many samples to come near the log likelihood of the model, ranks models wrongly, and prefers blurred
    samples such as the centers of k-means to data themselves (Theis et al. 2016).

    Args:
        samples: ``[n, ...]``.
        test: ``[N, ...]``.
        sigma: the width; where it is left out, the one under which ``validation`` is likeliest.
        validation: ``[M, ...]`` data, neither trained nor tested on, to choose the width with.

    References:
        I. Goodfellow et al. Generative adversarial nets. NeurIPS 2014. arXiv:1406.2661.
        L. Theis, A. van den Oord, M. Bethge. A note on the evaluation of generative models. ICLR 2016.
        arXiv:1511.01844.
    """
    if (sigma is None) == (validation is None):
        raise InputError("give either sigma or validation data to choose it with; test data must not choose it")
    centers = _flat(samples, "samples")
    if sigma is None:
        assert validation is not None
        width = _likeliest_width(centers, _flat(validation, "validation", centers))
    else:
        width = check_positive(sigma, "sigma")
    values = _log_density(centers, _flat(test, "test", centers), torch.tensor([width], dtype=torch.float64))[0]
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return ParzenEstimate(float(values.mean()), error, width)


def _likeliest_width(centers: Tensor, validation: Tensor) -> float:
    """The width of the highest mean log density, from a grid and a finer one about its best.

    Where one sample is much the nearest, at distance d, the best σ is d/√D; where many are near, it is larger, but
    never beyond the spread of all.
    """
    nearest = torch.cat([squared.amin(1) for squared in _squared_distances(centers, validation)]).mean().sqrt()
    spread = (torch.cat([centers, validation]) - centers.mean(0)).square().sum(1).mean().sqrt()
    if not spread > 0.0:
        raise InputError("samples and validation data are all the same: no width fits them best")
    if not nearest > 0.0:
        raise InputError("all validation data are among the samples: they grow ever likelier as the width goes to 0")
    low, high = 0.1 * torch.maximum(nearest, 1e-6 * spread), 2.0 * spread
    low, high = (low / math.sqrt(centers.shape[1])).log(), (high / math.sqrt(centers.shape[1])).log()
    for _ in range(_ROUNDS):
        grid = torch.linspace(float(low), float(high), _CANDIDATES, dtype=torch.float64)
        best = int(_log_density(centers, validation, grid.exp()).mean(1).argmax())
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, _CANDIDATES - 1)]
    return math.exp(float(grid[best]))


def _log_density(centers: Tensor, x: Tensor, widths: Tensor) -> Tensor:
    """log p(x) for every width, ``[widths, N]``, float64 on the CPU."""
    n, dimension = centers.shape
    blocks = []
    for squared in _squared_distances(centers, x):
        by_width = [torch.logsumexp(-squared / (2.0 * float(width) ** 2), 1) for width in widths]
        blocks.append(torch.stack(by_width).cpu())
    normalizer = math.log(n) + dimension * (widths.log() + 0.5 * math.log(2.0 * math.pi))
    return torch.cat(blocks, dim=1) - normalizer[:, None]


def _squared_distances(centers: Tensor, x: Tensor) -> Iterator[Tensor]:
    """``[b, n]`` for one block of rows of ``x`` after the other."""
    squared_distances = SquaredDistances(centers)
    for block in x.split(max(_DISTANCES_AT_ONCE // len(centers), 1)):
        yield squared_distances(block)


def _flat(x: Tensor, name: str, like: Tensor | None = None) -> Tensor:
    """Rows of numbers in float64, where the samples are."""
    if not isinstance(x, Tensor) or x.ndim < 2 or not len(x):
        found = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{name} must be a tensor of rows of numbers or images, [N, ...], got {found}")
    flat = x.detach().flatten(1).double()
    if not bool(flat.isfinite().all()):
        raise InputError(f"{name} hold NaN or infinite values")
    if like is None:
        return flat
    if flat.shape[1] != like.shape[1]:
        raise InputError(f"{name} have {flat.shape[1]} numbers a datum, but the samples {like.shape[1]}")
    return flat.to(like.device)
