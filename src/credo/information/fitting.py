"""The Gaussian nearest to a distribution, by either direction of the divergence.

KL(q ‖ p) punishes q for mass where p has none: its minimizer hides inside one mode, and is too sure of itself where a
correlation is left out. KL(p ‖ q) punishes q for missing mass of p: its minimizer has the moments of p, and covers what
lies between modes too. The first is what variational inference minimizes, the second expectation propagation.

Reference: C. M. Bishop, Pattern Recognition and Machine Learning, 2006, section 10.1.2 and Figures 10.2 and 10.3.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from credo._estimate import Estimate
from credo.errors import InputError, unknown_name
from credo.information import _reverse
from credo.information._densities import device_of, draws, is_discrete, log_prob, prepared, support_of
from credo.information._gaussians import Moments, as_multivariate_normal, moments
from credo.information.measures import kl
from credo.seeding import check_seed, derive

Direction = Literal["reverse", "forward"]
DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)

Family: TypeAlias = str | type[Distribution]
_IS_DIAGONAL: Final = {"normal": True, "diagonal": True, "multivariate_normal": False, "full": False}

_SCOUTS: Final = 1000  # draws of p that show where it lies
_FAR: Final = 1e6


@dataclass(frozen=True, eq=False)
class Fit:
    """The Gaussian that was found.

    Attributes:
        distribution: q, in float64: a ``Normal`` for numbers; for vectors an ``Independent`` ``Normal``, or a
            ``MultivariateNormal``.
        divergence: KL(q ‖ p) or KL(p ‖ q), as the direction says.
        direction: ``"reverse"`` or ``"forward"``.
        exact: whether the parameters of q are in closed form, rather than from draws or a search.
        minima: the divergence where each start of the search ended, lowest first: different numbers are different local
            minima. One number where nothing had to be searched.
    """

    distribution: Normal | Independent[Normal] | MultivariateNormal
    divergence: Estimate
    direction: Direction
    exact: bool
    minima: tuple[float, ...]


def fit_q(
    p: Distribution,
    family: Family = "normal",
    direction: Direction = "reverse",
    *,
    start: ArrayLike | Tensor | None = None,
    starts: int = 8,
    samples: int = 10_000,
    seed: int | None = 0,
) -> Fit:
    """The Gaussian q that minimizes KL(q ‖ p), ``"reverse"``, or KL(p ‖ q), ``"forward"``.

    Forward, q takes the mean and the covariance of p, or its variances where q is diagonal. Reverse, for a Gaussian p
    with precision Λ, a diagonal q has the mean of p and the precisions Λ_dd (Bishop 10.12 to 10.15); for any other p
    the divergence is minimized numerically from several starts, of which the best local minimum is returned.

    Args:
        p: a continuous distribution over numbers or vectors ``[D]``, without a batch.
        family: ``"normal"`` or ``"diagonal"``, a product of univariate Gaussians; ``"multivariate_normal"`` or
            ``"full"``, any covariance; or the torch class, ``Normal`` or ``MultivariateNormal``.
        direction: ``"reverse"`` or ``"forward"``.
        start: the mean that a search begins at, ``[D]``: to find the minimum of a chosen mode.
        starts: how many searches otherwise: one from the middle of p, as broad as p, the others from draws of p.
        samples: Monte Carlo draws for moments and divergences that have no closed form.
        seed: of all draws; ``None`` for fresh ones each time.
    """
    diagonal = _is_diagonal(family)
    if direction not in DIRECTIONS:
        raise unknown_name("direction", direction, DIRECTIONS)
    target = _checked(p, diagonal)
    seed = check_seed(seed)
    if direction == "forward":
        found, exact = _forward(target, diagonal, samples, seed)
        q = _gaussian(target, found, diagonal)
        divergence = kl(target, q, samples=samples, seed=derive(seed, 0))
        return Fit(q, divergence, direction, exact, (float(divergence),))
    known = _reverse_of_gaussian(target, diagonal)
    if known is not None:
        q = _gaussian(target, known, diagonal)
        divergence = kl(q, target)
        return Fit(q, divergence, direction, True, (float(divergence),))
    minima = _search(target, diagonal, start, starts, seed)
    best = minima[0]
    if best.slope > _reverse.FLAT:
        warnings.warn(
            f"the search for q stopped on a slope of {best.slope:.1g}, not at a minimum: look at the density of p for "
            "kinks and infinities, or give a start=",
            UserWarning,
            stacklevel=2,
        )
    q = _gaussian(target, Moments(best.mean, best.factor @ best.factor.T), diagonal)
    divergence = kl(q, target, samples=samples, seed=derive(seed, 0))
    return Fit(q, divergence, direction, False, tuple(minimum.divergence for minimum in minima))


def _is_diagonal(family: Family) -> bool:
    """Whether q is a product of univariate Gaussians."""
    if isinstance(family, type):
        if issubclass(family, Normal | MultivariateNormal):
            return issubclass(family, Normal)
        raise unknown_name("family", family.__name__, _IS_DIAGONAL)
    if not isinstance(family, str) or family not in _IS_DIAGONAL:
        raise unknown_name("family", family, _IS_DIAGONAL)
    return _IS_DIAGONAL[family]


def _checked(p: Distribution, diagonal: bool) -> Distribution:
    """A copy of ``p`` to compute with, or an error that says why no Gaussian can stand for it."""
    if not isinstance(p, Distribution):
        raise InputError(f"p must be a torch Distribution, got {type(p).__name__}")
    if p.batch_shape:
        raise InputError(f"p must be one distribution, got a batch of shape {list(p.batch_shape)}: fit each by itself")
    if len(p.event_shape) > 1:
        raise InputError(f"p must be over numbers or vectors, got events of shape {list(p.event_shape)}")
    if is_discrete(p):
        raise InputError(f"p must be continuous to be compared with a Gaussian, got {type(p).__name__}")
    if not p.event_shape and not diagonal:
        raise InputError("p is over single numbers, which have no covariance: use family='normal'")
    return prepared("p", p)


def _gaussian(p: Distribution, found: Moments, diagonal: bool) -> Normal | Independent[Normal] | MultivariateNormal:
    """The member of the family with the moments ``[D]`` and ``[D, D]``, over the events of ``p``."""
    if not bool(found.mean.isfinite().all() & found.covariance.isfinite().all()):
        raise InputError(
            f"p, {type(p).__name__}, has no finite mean and variance for q to have: use direction='reverse'"
        )
    if not diagonal:
        factor, failed = torch.linalg.cholesky_ex(found.covariance)
        if bool(failed):
            raise InputError("p has a singular covariance, so that no Gaussian density is near it: drop a coordinate")
        return MultivariateNormal(found.mean, scale_tril=factor)
    scale = found.covariance.diagonal().sqrt()
    if not bool((scale > 0.0).all()):
        raise InputError("p has a coordinate without variance, so that no Gaussian density is near it: drop it")
    return Independent(Normal(found.mean, scale), 1) if p.event_shape else Normal(found.mean[0], scale[0])


def _forward(p: Distribution, diagonal: bool, samples: int, seed: int) -> tuple[Moments, bool]:
    """The moments of p, and whether they are known rather than from draws."""
    known = moments(p) if p.event_shape else None
    if known is not None:
        return known, True
    if diagonal:
        try:
            return Moments(p.mean.double().reshape(-1), p.variance.double().reshape(-1).diag()), True
        except NotImplementedError:
            pass
    x = draws(p, samples, derive(seed, 1), p.batch_shape).reshape(int(samples), -1)
    return Moments(x.mean(0), torch.cov(x.T).reshape(x.shape[1], x.shape[1])), False


def _reverse_of_gaussian(p: Distribution, diagonal: bool) -> Moments | None:
    """The minimizer of KL(q ‖ p) for a Gaussian p: the same mean, and Λ or its diagonal as the precision."""
    if isinstance(p, Normal):
        return Moments(p.mean.reshape(1), p.variance.reshape(1, 1))
    gaussian = as_multivariate_normal(p)
    if gaussian is None:
        return None
    if diagonal:
        return Moments(gaussian.mean, gaussian.precision_matrix.diagonal().reciprocal().diag())
    return Moments(gaussian.mean, gaussian.covariance_matrix)


def _search(
    p: Distribution, diagonal: bool, start: ArrayLike | Tensor | None, starts: int, seed: int
) -> list[_reverse.Minimum]:
    """The local minima of KL(q ‖ p) from every start, lowest first."""
    dimension = p.event_shape.numel()
    scouts = draws(p, _SCOUTS, derive(seed, 2), p.batch_shape).reshape(_SCOUTS, dimension)
    _check_unbounded(p, scouts)
    lower, middle, upper = scouts.quantile(scouts.new_tensor([0.16, 0.5, 0.84]), dim=0)
    spread = 0.5 * (upper - lower)
    if start is not None:
        begin = [(_mean(start, scouts), 0.5 * spread)]
    else:
        # The first may come to span several modes; the others are narrow enough to settle in the one they start in.
        begin = [(middle, spread), *((mean, 0.5 * spread) for mean in scouts[: _count(starts) - 1])]
    at = _reverse.points(dimension, derive(seed, 3) % 2**31, device_of(p))
    density = _log_density(p)
    return _reverse.lowest([_reverse.minimize(density, at, mean, scale, diagonal) for mean, scale in begin])


def _log_density(p: Distribution) -> Callable[[Tensor], Tensor]:
    """log p of rows ``[N, D]``, also where p is over numbers."""
    return lambda x: log_prob(p, x if p.event_shape else x.squeeze(-1))


def _mean(start: ArrayLike | Tensor, scouts: Tensor) -> Tensor:
    """The mean that the user wants a search to begin at, ``[D]``."""
    mean = torch.as_tensor(start, dtype=scouts.dtype, device=scouts.device).detach()
    if mean.numel() != scouts.shape[1] or not bool(mean.isfinite().all()):
        raise InputError(f"start must be a mean of {scouts.shape[1]} finite numbers, got {start!r}")
    return mean.reshape(-1)


def _count(starts: int) -> int:
    if isinstance(starts, bool) or not isinstance(starts, int) or not 1 <= starts <= _SCOUTS:
        raise InputError(f"starts must be an integer from 1 to {_SCOUTS}, got {starts!r}")
    return starts


def _check_unbounded(p: Distribution, scouts: Tensor) -> None:
    """A Gaussian has mass everywhere, and KL(q ‖ p) is infinite unless p has, too."""
    support = support_of(p)
    far = scouts.new_tensor([-_FAR, _FAR])[:, None].expand(2, scouts.shape[1])
    if support is not None and not bool(support.check(far if p.event_shape else far.squeeze(-1)).all()):
        raise InputError(
            f"p, {type(p).__name__}, must have a density everywhere for direction='reverse': a Gaussian has mass where "
            "p has none, and KL(q ‖ p) is infinite; use direction='forward', or a transformed variable"
        )
