"""Evaluation of samples by measures that need no likelihood of the model.

Each of these measures can mislead, so look at the samples too: a Parzen window prefers blurred averages (Theis et al.
2016), a Fréchet distance depends on two moments of some features, and coverage does not measure quality.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from credo._arguments import check_integer, check_positive
from credo._distances import SquaredDistances
from credo.architectures import LeNet
from credo.errors import InputError
from credo.likelihoods import Categorical
from credo.methods import MAP, Method
from credo.seeding import seeded
from credo.training.generative import evaluation_mode

__all__ = [
    "Coverage",
    "ParzenEstimate",
    "fit_lenet",
    "frechet_distance",
    "lenet_features",
    "mode_coverage",
    "nearest_distance",
    "parzen_log_likelihood",
    "ring_coverage",
]

MAX_DISTANCES = 2**24
"""The maximum number of distances in memory at once."""
_WIDTHS_PER_ROUND = 25
_ROUNDS = 2


def frechet_distance(features_a: Tensor, features_b: Tensor) -> float:
    """The squared Wasserstein-2 distance of two Gaussians with the moments of the features.

        d² = ‖μ_a − μ_b‖² + tr(Σ_a + Σ_b − 2 (Σ_a Σ_b)^½)

    With any roots Σ = RᵀR, tr (Σ_a Σ_b)^½ is the sum of the singular values of R_a R_bᵀ. The roots are the triangular
    factors of the centered features. So no covariance is formed, and singular ones, such as those of fewer rows than
    features, lose no precision: the result is exact to about D·10⁻¹⁶ of the two traces. The estimate is biased upwards,
    less so with more rows: compare only distances from the same number of rows.

    Args:
        features_a: ``[N, D]``, N of at least 2.
        features_b: ``[M, D]``, M of at least 2.

    Returns:
        d², at least 0.

    Raises:
        InputError: shapes do not match, there are too few rows, or values are NaN or infinite.

    References:
        M. Heusel et al. GANs trained by a two time-scale update rule converge to a local Nash equilibrium. NeurIPS
        2017. arXiv:1706.08500.
    """
    for features in (features_a, features_b):
        if not isinstance(features, Tensor):
            raise InputError(f"features must be tensors, got {type(features).__name__}: convert with torch.as_tensor")
    if features_a.ndim != 2 or features_b.ndim != 2 or features_a.shape[1] != features_b.shape[1]:
        raise InputError(
            f"features must have shapes [N, D] and [M, D], got {list(features_a.shape)} and {list(features_b.shape)}"
        )
    if min(len(features_a), len(features_b)) < 2:
        raise InputError(f"a covariance needs two rows or more, got {len(features_a)} and {len(features_b)}")
    a, b = features_a.double(), features_b.to(features_a.device).double()
    if not bool(a.isfinite().all() and b.isfinite().all()):
        raise InputError("features contain NaN or infinite values; check the images too")
    root_a, root_b = _covariance_root(a), _covariance_root(b)
    shared = torch.linalg.svdvals(root_a @ root_b.mT).sum()
    traces = root_a.square().sum() + root_b.square().sum()
    return max(float((a.mean(0) - b.mean(0)).square().sum() + traces - 2.0 * shared), 0.0)


def lenet_features(x: Tensor, lenet: MAP | LeNet, batch_size: int = 1024) -> Tensor:
    """The features before the last layer of a trained LeNet.

    Args:
        x: images ``[N, C, H, W]``, in the range of the network's training images.
        lenet: the network, or the method that trained it, as :func:`fit_lenet` returns.
        batch_size: images per call of the network.

    Returns:
        Features ``[N, 500]``.

    Raises:
        InputError: ``lenet`` is no LeNet, or the images do not have its size.
    """
    net = lenet.net if isinstance(lenet, MAP) else lenet
    if not isinstance(net, LeNet):
        raise InputError(f"lenet must be a LeNet or a method around one, got {type(net).__name__}")
    channels, size = net.config["in_channels"], net.config["size"]
    if x.shape[1:] != (channels, size, size):
        raise InputError(f"images must have the network's size {[channels, size, size]}, got {list(x.shape[1:])}")
    weight = next(net.parameters())
    with evaluation_mode(net), torch.no_grad():
        parts = x.to(weight.dtype).split(batch_size)
        return torch.cat([net.classifier[:-1](net.features(part.to(weight.device))) for part in parts])


def fit_lenet(x: Tensor, y: Tensor, *, epochs: int = 10, device: str | None = None, seed: int = 0) -> MAP:
    """Train a LeNet to classify images, for :func:`lenet_features` and :func:`mode_coverage`.

    Train it once on real images and use it for all samples: Fréchet distances by different networks cannot be compared.

    Args:
        x: images ``[N, C, S, S]``.
        y: labels ``[N]``, integers from 0.
        epochs: number of passes over the data.
        device: where to train; ``None``: on the CPU.
        seed: of the initial weights and of the training.

    Returns:
        The fitted method; its network is ``net``.

    Raises:
        InputError: ``x`` are no square images, or ``y`` no integers.
    """
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise InputError(f"x and y must be tensors, got {type(x).__name__} and {type(y).__name__}")
    if x.ndim != 4 or x.shape[2] != x.shape[3]:
        raise InputError(f"x must be square images, [N, C, S, S], got {list(x.shape)}")
    if y.is_floating_point():
        raise InputError(f"y must be labels, integers from 0, got {y.dtype}: convert with y.long()")
    with seeded(seed, torch.device("cpu")):
        method = MAP(LeNet(int(y.max()) + 1, x.shape[1], x.shape[2]), likelihood=Categorical())
    return method.fit((x, y), epochs=epochs, batch_size=128, device=device, seed=seed, progress=False)


@dataclass(frozen=True, eq=False)
class Coverage:
    """The number of samples per mode.

    Attributes:
        counts: samples per mode, ``[modes]``, int64.
        total: number of all samples, with those that belong to no mode.

    Example:
        >>> coverage = Coverage(torch.tensor([5, 0, 3]), total=10)
        >>> coverage.present, coverage.missing, coverage.quality
        (2, [1], 0.8)
    """

    counts: Tensor
    total: int

    @property
    def present(self) -> int:
        """The number of modes with at least one sample."""
        return int((self.counts > 0).sum())

    @property
    def missing(self) -> list[int]:
        """The modes without a sample."""
        return [int(mode) for mode in (self.counts == 0).nonzero()]

    @property
    def quality(self) -> float:
        """The share of samples that belong to a mode."""
        return int(self.counts.sum()) / self.total


def mode_coverage(samples: Tensor, classify: Method | Callable[[Tensor], Tensor], n: int = 10) -> Coverage:
    """The number of samples that a classifier assigns to each class.

    Args:
        samples: ``[N, ...]``.
        classify: a function from samples to integers from 0 to n − 1, ``[N]``; or a fitted method, as
            :func:`fit_lenet` returns, of whose prediction the mode is used.
        n: number of classes.

    Returns:
        The counts per class.

    Raises:
        InputError: there are no samples, or ``classify`` does not return one class per sample.
    """
    if not len(samples):
        raise InputError("there are no samples to classify")
    found = classify.predict(samples).mode if isinstance(classify, Method) else classify(samples)
    classes = torch.as_tensor(found)
    modes = check_integer(n, "n", minimum=1)
    if classes.shape != samples.shape[:1] or classes.is_floating_point():
        raise InputError(
            f"classify must return one integer for each of {len(samples)} samples, got {classes.dtype} of shape "
            f"{list(classes.shape)}"
        )
    if bool(((classes < 0) | (classes >= modes)).any()):
        raise InputError(
            f"classify must return classes from 0 to {modes - 1}, got {int(classes.min())} to {classes.max()}"
        )
    return Coverage(torch.bincount(classes.cpu(), minlength=modes), len(samples))


def ring_coverage(samples: Tensor, centers: Tensor, scale: float, radius: float = 3.0) -> Coverage:
    """The number of samples near each center; samples near none belong to no mode.

    Args:
        samples: ``[N, D]``.
        centers: ``[modes, D]``.
        scale: the standard deviation of a mode.
        radius: the maximum distance to a center, in units of ``scale``; 3 in the literature.

    Returns:
        The counts per center.

    Raises:
        InputError: shapes do not match, there are no samples, or ``scale`` or ``radius`` is not positive.
    """
    if samples.ndim != 2 or centers.ndim != 2 or samples.shape[1] != centers.shape[1] or not len(samples):
        raise InputError(
            f"samples and centers must have shapes [N, D] and [modes, D], got {list(samples.shape)} and "
            f"{list(centers.shape)}"
        )
    nearest = SquaredDistances(centers.to(samples.device).double())(samples.double()).min(1)
    near = nearest.values.sqrt() <= check_positive(radius, "radius") * check_positive(scale, "scale")
    return Coverage(torch.bincount(nearest.indices[near].cpu(), minlength=len(centers)), len(samples))


def nearest_distance(x: Tensor) -> float:
    """The mean over rows of the Euclidean distance to the nearest other row.

    Args:
        x: ``[N, ...]``.

    Returns:
        The mean distance; NaN for fewer than two rows.
    """
    if len(x) < 2:
        return math.nan
    flat = x.flatten(1).double()
    squared = SquaredDistances(flat)(flat).fill_diagonal_(math.inf)
    return float(squared.amin(1).sqrt().mean())


@dataclass(frozen=True)
class ParzenEstimate:
    """A mean log likelihood in nats.

    Attributes:
        mean: over the test data.
        standard_error: of that mean, s/√N; 0 for a single datum.
        sigma: the width of the window.

    Example:
        >>> print(ParzenEstimate(mean=225.31, standard_error=2.04, sigma=0.2))
        225.3 ± 2.0
    """

    mean: float
    standard_error: float
    sigma: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.standard_error:.1f}"


def parzen_log_likelihood(
    samples: Tensor, test: Tensor, *, sigma: float | None = None, validation: Tensor | None = None
) -> ParzenEstimate:
    """The mean of log p(x) over test data, where p is a mixture of Gaussians of width σ around the samples.

        p(x) = 1/n Σ_i N(x; s_i, σ² I)

    Goodfellow et al. (2014) and others before them report it. In many dimensions it is unreliable: it needs far too
    many samples to come near the log likelihood of the model, ranks models wrongly, and prefers blurred samples such as
    the centers of k-means to data themselves (Theis et al. 2016).

    Args:
        samples: ``[n, ...]``.
        test: ``[N, ...]``.
        sigma: the width; ``None``: that of the highest log likelihood of ``validation``.
        validation: held-out data ``[M, ...]`` to choose the width with; not the test data.

    Returns:
        The mean, its standard error, and the width.

    Raises:
        InputError: not exactly one of ``sigma`` and ``validation`` is given, shapes do not match, or values are NaN or
            infinite.

    References:
        I. Goodfellow et al. Generative adversarial nets. NeurIPS 2014. arXiv:1406.2661.
        L. Theis, A. van den Oord, M. Bethge. A note on the evaluation of generative models. ICLR 2016.
        arXiv:1511.01844.
    """
    if (sigma is None) == (validation is None):
        raise InputError("give either sigma, or validation data to choose it with (not the test data)")
    centers = _flatten(samples, "samples")
    if sigma is None:
        assert validation is not None
        width = _best_width(centers, _flatten(validation, "validation", centers))
    else:
        width = check_positive(sigma, "sigma")
    values = _log_density(centers, _flatten(test, "test", centers), torch.tensor([width], dtype=torch.float64))[0]
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return ParzenEstimate(float(values.mean()), error, width)


def _covariance_root(features: Tensor) -> Tensor:
    """R with RᵀR the covariance of ``features [N, D]``, ``[min(N, D), D]``."""
    centered = (features - features.mean(0)) / math.sqrt(len(features) - 1)
    root: Tensor = torch.linalg.qr(centered, mode="r").R
    return root


def _best_width(centers: Tensor, validation: Tensor) -> float:
    """The width of the highest mean log density, from a grid and a finer one about its best.

    If one sample is much nearer than the others, at distance d, the best σ is d/√D; if many are near, it is larger, but
    at most the spread of all.
    """
    nearest = torch.cat([squared.amin(1) for squared in _squared_distances(centers, validation)]).mean().sqrt()
    spread = (torch.cat([centers, validation]) - centers.mean(0)).square().sum(1).mean().sqrt()
    if not spread > 0.0:
        raise InputError("samples and validation data are all equal: there is no best width")
    if not nearest > 0.0:
        raise InputError(
            "all validation data are among the samples: their log likelihood grows without limit as the width goes to 0"
        )
    low, high = 0.1 * torch.maximum(nearest, 1e-6 * spread), 2.0 * spread
    low, high = (low / math.sqrt(centers.shape[1])).log(), (high / math.sqrt(centers.shape[1])).log()
    for _ in range(_ROUNDS):
        grid = torch.linspace(float(low), float(high), _WIDTHS_PER_ROUND, dtype=torch.float64)
        best = int(_log_density(centers, validation, grid.exp()).mean(1).argmax())
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, _WIDTHS_PER_ROUND - 1)]
    return math.exp(float(grid[best]))


def _log_density(centers: Tensor, x: Tensor, widths: Tensor) -> Tensor:
    """log p(x) for each width, ``[widths, N]``, float64 on the CPU."""
    n, dimension = centers.shape
    blocks = []
    for squared in _squared_distances(centers, x):
        by_width = [torch.logsumexp(-squared / (2.0 * float(width) ** 2), 1) for width in widths]
        blocks.append(torch.stack(by_width).cpu())
    normalizer = math.log(n) + dimension * (widths.log() + 0.5 * math.log(2.0 * math.pi))
    return torch.cat(blocks, dim=1) - normalizer[:, None]


def _squared_distances(centers: Tensor, x: Tensor) -> Iterator[Tensor]:
    """Squared distances ``[b, n]`` for blocks of rows of ``x``."""
    squared_distances = SquaredDistances(centers)
    for block in x.split(max(MAX_DISTANCES // len(centers), 1)):
        yield squared_distances(block)


def _flatten(x: Tensor, name: str, like: Tensor | None = None) -> Tensor:
    """Rows of numbers in float64, on the device of the samples."""
    if not isinstance(x, Tensor) or x.ndim < 2 or not len(x):
        found = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"{name} must be a tensor of rows of numbers or images, [N, ...], got {found}")
    flat = x.detach().flatten(1).double()
    if not bool(flat.isfinite().all()):
        raise InputError(f"{name} contain NaN or infinite values")
    if like is None:
        return flat
    if flat.shape[1] != like.shape[1]:
        raise InputError(f"{name} have {flat.shape[1]} numbers per datum, but the samples {like.shape[1]}")
    return flat.to(like.device)
