"""What one part of a random vector says of the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.distributions import Distribution

from credo._estimate import Estimate
from credo.errors import InputError
from credo.information._densities import device_of, log_prob, prepared, table
from credo.information._gaussians import as_multivariate_normal, marginal
from credo.information.measures import Belief, expectation, kl


def mutual_information(
    joint: Belief,
    *,
    block: int | Sequence[int] | None = None,
    marginals: tuple[Distribution, Distribution] | None = None,
    samples: int = 10_000,
    seed: int | None = 0,
) -> Estimate:
    """I(X; Y) = KL(p(x, y) ‖ p(x) p(y)) = H(X) + H(Y) − H(X, Y), which is 0 where X and Y are independent.

    A table is summed, a Gaussian has ½ log(|Σ_x| |Σ_y| / |Σ|), and anything else is drawn: a mixture of Gaussians with
    the marginals it has in closed form, other distributions with those that are given.

    Args:
        joint: a table of probabilities ``[..., I, J]``, or a distribution over vectors ``[D]`` that hold x and y.
        block: which coordinates are x: the number of leading ones, or their indices; the others are y. Vectors of two
            need none.
        marginals: p(x) and p(y), where credo cannot find them.
        samples: Monte Carlo draws, where there is no closed form.
        seed: of the draws; ``None`` for fresh ones each time.

    Reference: C. M. Bishop, Pattern Recognition and Machine Learning, 2006, section 1.6.1.
    """
    if not isinstance(joint, Distribution):
        return _of_table(joint)
    joint = prepared("joint", joint)
    if len(joint.event_shape) != 1:
        raise InputError(
            f"joint must be a distribution over vectors, event shape [D], got {list(joint.event_shape)}; "
            "give a discrete joint as a table of probabilities [..., I, J]"
        )
    blocks = [index.to(device_of(joint)) for index in _blocks(block, joint.event_shape[0])]
    gaussian = as_multivariate_normal(joint)
    if gaussian is not None and marginals is None:
        whole, x, y = (_log_det(gaussian.covariance_matrix, index) for index in (torch.cat(blocks), *blocks))
        return Estimate.from_exact((0.5 * (x + y - whole)).clamp(min=0.0))
    parts = _marginals(joint, blocks, marginals)

    def information(values: Tensor) -> Tensor:
        separately = (log_prob(p, _part(values, index, p)) for p, index in zip(parts, blocks, strict=True))
        return log_prob(joint, values) - sum(separately)

    return expectation(joint, information, joint.batch_shape, samples, seed)


def _of_table(joint: Tensor | ArrayLike) -> Estimate:
    """The divergence of a table from the product of its margins."""
    cells = table("joint", joint, 2)
    sizes = torch.as_tensor(joint).shape[-2:]
    together = cells.probs.unflatten(-1, sizes)
    apart = together.sum(-1, keepdim=True) * together.sum(-2, keepdim=True)
    return kl(cells, table("joint", apart, 2))


def _blocks(block: int | Sequence[int] | None, size: int) -> tuple[Tensor, Tensor]:
    """The indices of x and of y, both of at least one coordinate."""
    if block is None and size != 2:
        raise InputError(f"block must say which of the {size} coordinates are x: their number, or a list of indices")
    chosen = list(range(1 if block is None else block)) if block is None or isinstance(block, int) else list(block)
    within = all(isinstance(i, int) and 0 <= i < size for i in chosen)
    if not within or len(set(chosen)) != len(chosen) or not 0 < len(chosen) < size:
        raise InputError(
            f"block must be a number from 1 to {size - 1}, or as many different indices from 0 to {size - 1}, "
            f"got {block!r}"
        )
    return torch.tensor(chosen), torch.tensor([i for i in range(size) if i not in chosen])


def _log_det(covariance: Tensor, index: Tensor) -> Tensor:
    return torch.logdet(covariance[..., index[:, None], index])


def _marginals(
    joint: Distribution, blocks: Sequence[Tensor], given: tuple[Distribution, Distribution] | None
) -> list[Distribution]:
    """p(x) and p(y), known or given."""
    if given is None:
        known = [marginal(joint, index) for index in blocks]
        parts = [part for part in known if part is not None]
        if len(parts) != len(blocks):
            raise InputError(f"the marginals of {type(joint).__name__} are not known: give marginals=(p_x, p_y)")
        return parts
    if len(given) != 2 or not all(isinstance(p, Distribution) for p in given):
        raise InputError("marginals must be two torch distributions, p(x) and p(y)")
    for p, index, name in zip(given, blocks, "xy", strict=True):
        if p.event_shape.numel() != len(index):
            raise InputError(
                f"marginals must match the blocks: {name} has {len(index)} coordinates, "
                f"but its marginal has events of shape {list(p.event_shape)}"
            )
    return [prepared("marginals", p) for p in given]


def _part(values: Tensor, index: Tensor, p: Distribution) -> Tensor:
    """The coordinates ``index`` of ``values [..., D]`` as an event of ``p``, a number where that is one."""
    part = values[..., index]
    return part if p.event_shape else part.squeeze(-1)
