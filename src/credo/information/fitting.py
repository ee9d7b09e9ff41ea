"""The nearest Gaussian to a distribution, in either direction of the Kullback–Leibler divergence.

Minimizing KL(q ‖ p) penalizes mass of q where p has none: the minimizer covers one mode, and underestimates variances
if it leaves out a correlation. Minimizing KL(p ‖ q) penalizes q for missing mass of p: the minimizer has the moments of
p, and covers the region between modes too. Variational inference minimizes the first, expectation propagation the
second (Bishop 2006, section 10.1.2 and Figures 10.2 and 10.3).

For KL(q ‖ p) without a closed form, with x = m + Cε, ε ~ N(0, I) and C lower triangular with a positive diagonal,

    KL(q ‖ p) = −H(q) − E_ε[log p(m + Cε)],    H(q) = Σ_d log C_dd + ½ D log 2πe.

The expectation is over fixed weighted points ε, so that the divergence is a smooth, deterministic function of m and C.
Up to two dimensions the points are an even grid, whose error decreases exponentially with the spacing if log p is
smooth (Trefethen and Weideman, SIAM Review 2014), and with its square if log p has kinks; in the plane it is rotated,
so that a kink along an axis does not meet a whole row of points. In more dimensions they are a scrambled Sobol
sequence, shifted and scaled to mean 0 and covariance I, so that a quadratic log p is integrated exactly.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from credo._arguments import check_integer, check_option
from credo._estimate import Estimate
from credo._special import sobol_normal
from credo.errors import DivergenceError, InputError
from credo.functional import outside_inference_mode
from credo.information._closed_forms import MeanAndCovariance, mean_and_covariance, to_multivariate_normal
from credo.information._densities import device_of, draw_samples, is_discrete, log_prob, support_of, to_distribution
from credo.information.measures import kl
from credo.seeding import check_seed, derive

Direction = Literal["reverse", "forward"]
Family: TypeAlias = str | type[Distribution]
_IS_DIAGONAL: Final = {"normal": True, "diagonal": True, "multivariate_normal": False, "full": False}

_PILOT_DRAWS: Final = 1000  # draws of p that locate it
_FAR: Final = 1e6
_GRID_POINTS: Final = {1: 2001, 2: 71}  # per dimension
_GRID_EDGE: Final = 7.0  # standard deviations; the mass beyond is 3e-12
_GRID_SLOPE: Final = (1.0 + math.sqrt(5.0)) / 2.0  # the golden ratio, the slope furthest from all simple fractions
_SOBOL_POINTS: Final = 4096
_POINTS_PER_DIMENSION: Final = 8
_MAX_ITERATIONS: Final = 1000
_MAX_GRADIENT: Final = 1e-2
"""The largest component of the gradient at a minimum, in units of the initial scales: if the curvature is about 1, the
divergence can decrease by half its square."""


@dataclass(frozen=True, eq=False)
class Fit:
    """The result of :func:`fit_q`.

    Attributes:
        distribution: q, in float64: a ``Normal`` for scalars; for vectors an ``Independent`` ``Normal`` or a
            ``MultivariateNormal``.
        divergence: KL(q ‖ p) for ``"reverse"``, KL(p ‖ q) for ``"forward"``.
        direction: ``"reverse"`` or ``"forward"``.
        exact: whether the parameters of q are in closed form, not from draws or a search.
        minima: the divergence that each start of the search reached, lowest first; different numbers are different
            local minima. One number if there was no search.

    Example:
        >>> import torch
        >>> from credo.information import fit_q
        >>> fit = fit_q(torch.distributions.Gamma(4.0, 2.0), "normal", "forward")
        >>> fit.exact, fit.distribution.mean.item()
        (True, 2.0)
    """

    distribution: Normal | Independent[Normal] | MultivariateNormal
    divergence: Estimate
    direction: Direction
    exact: bool
    minima: tuple[float, ...]


@outside_inference_mode()
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
    """Fit a Gaussian q that minimizes KL(q ‖ p), ``"reverse"``, or KL(p ‖ q), ``"forward"``.

    Forward, q has the mean and the covariance of p, or its variances if q is diagonal. Reverse, for a Gaussian p
    with precision Λ, a diagonal q has the mean of p and the precisions Λ_dd (Bishop 10.12 to 10.15); for other p
    the divergence is minimized numerically from several starts, and the best local minimum is returned.

    Args:
        p: a continuous distribution over scalars or vectors ``[D]``, without a batch shape.
        family: ``"normal"`` or ``"diagonal"`` for a product of univariate Gaussians; ``"multivariate_normal"`` or
            ``"full"`` for any covariance; or the torch class, ``Normal`` or ``MultivariateNormal``.
        direction: ``"reverse"`` or ``"forward"``.
        start: initial mean of a single search, ``[D]``, to find the minimum at a chosen mode; ``None`` for several.
        starts: number of searches if ``start`` is ``None``: one from the median of p, as wide as p, the others from
            draws of p.
        samples: number of Monte Carlo draws for moments and divergences without a closed form, at least 2.
        seed: seed of all draws; ``None`` for new ones each time.

    Returns:
        q and the divergence.

    Raises:
        InputError: if no Gaussian of the family can be fitted to ``p`` in this direction, or an option is unknown.
        DivergenceError: if no search reaches a finite divergence.
    """
    diagonal = _is_diagonal(family)
    check_option(direction, "direction", get_args(Direction))
    target = _check_target(p, diagonal)
    seed = check_seed(seed)
    if direction == "forward":
        moments, exact = _moments(target, diagonal, samples, seed)
        q = _gaussian(target, moments, diagonal)
        divergence = kl(target, q, samples=samples, seed=derive(seed, 0))
        return Fit(q, divergence, direction, exact, (float(divergence),))
    closed_form = _reverse_of_gaussian(target, diagonal)
    if closed_form is not None:
        q = _gaussian(target, closed_form, diagonal)
        divergence = kl(q, target)
        return Fit(q, divergence, direction, True, (float(divergence),))
    minima = _search(target, diagonal, start, starts, seed)
    best = minima[0]
    if best.gradient > _MAX_GRADIENT:
        warnings.warn(
            f"the search for q stopped with a gradient of {best.gradient:.1g}, not at a minimum: check the density of "
            "p for kinks and infinities, or pass start=",
            UserWarning,
            stacklevel=2,
        )
    q = _gaussian(target, MeanAndCovariance(best.mean, best.factor @ best.factor.T), diagonal)
    divergence = kl(q, target, samples=samples, seed=derive(seed, 0))
    return Fit(q, divergence, direction, False, tuple(minimum.divergence for minimum in minima))


def _is_diagonal(family: Family) -> bool:
    """Whether q is a product of univariate Gaussians."""
    if isinstance(family, type) and issubclass(family, Normal | MultivariateNormal):
        return issubclass(family, Normal)
    name = family.__name__ if isinstance(family, type) else family
    return _IS_DIAGONAL[check_option(name, "family", _IS_DIAGONAL)]


def _check_target(p: Distribution, diagonal: bool) -> Distribution:
    """A float64 copy of ``p``; ``InputError`` if no Gaussian can approximate it."""
    if not isinstance(p, Distribution):
        raise InputError(f"p must be a torch Distribution, got {type(p).__name__}")
    if p.batch_shape:
        raise InputError(f"p must be one distribution, got a batch of shape {list(p.batch_shape)}: fit each separately")
    if len(p.event_shape) > 1:
        raise InputError(f"p must be over scalars or vectors, got events of shape {list(p.event_shape)}")
    if is_discrete(p):
        raise InputError(f"p must be continuous to be compared with a Gaussian, got {type(p).__name__}")
    if not p.event_shape and not diagonal:
        raise InputError("p is over scalars, which have no covariance: use family='normal'")
    return to_distribution("p", p)


def _gaussian(
    p: Distribution, moments: MeanAndCovariance, diagonal: bool
) -> Normal | Independent[Normal] | MultivariateNormal:
    """The member of the family with the moments ``[D]`` and ``[D, D]``, over the events of ``p``."""
    if not bool(moments.mean.isfinite().all() & moments.covariance.isfinite().all()):
        raise InputError(f"p, {type(p).__name__}, has no finite mean and variance: use direction='reverse'")
    if not diagonal:
        factor, failed = torch.linalg.cholesky_ex(moments.covariance)
        if bool(failed):
            raise InputError("p has a singular covariance, so that no Gaussian density is near it: drop a coordinate")
        return MultivariateNormal(moments.mean, scale_tril=factor)
    scale = moments.covariance.diagonal().sqrt()
    if not bool((scale > 0.0).all()):
        raise InputError("p has a coordinate without variance, so that no Gaussian density is near it: drop it")
    return Independent(Normal(moments.mean, scale), 1) if p.event_shape else Normal(moments.mean[0], scale[0])


def _moments(p: Distribution, diagonal: bool, samples: int, seed: int) -> tuple[MeanAndCovariance, bool]:
    """The moments of p, and whether they are in closed form, not from draws."""
    known = mean_and_covariance(p) if p.event_shape else None
    if known is not None:
        return known, True
    if diagonal:
        try:
            return MeanAndCovariance(p.mean.double().reshape(-1), p.variance.double().reshape(-1).diag()), True
        except NotImplementedError:
            pass
    x = draw_samples(p, samples, derive(seed, 1), p.batch_shape).reshape(int(samples), -1)
    return MeanAndCovariance(x.mean(0), torch.cov(x.T).reshape(x.shape[1], x.shape[1])), False


def _reverse_of_gaussian(p: Distribution, diagonal: bool) -> MeanAndCovariance | None:
    """The minimizer of KL(q ‖ p) for a Gaussian p: the same mean, and Λ or its diagonal as the precision."""
    if isinstance(p, Normal):
        return MeanAndCovariance(p.mean.reshape(1), p.variance.reshape(1, 1))
    gaussian = to_multivariate_normal(p)
    if gaussian is None:
        return None
    if diagonal:
        return MeanAndCovariance(gaussian.mean, gaussian.precision_matrix.diagonal().reciprocal().diag())
    return MeanAndCovariance(gaussian.mean, gaussian.covariance_matrix)


@dataclass(frozen=True)
class _Minimum:
    """The end of a search: m ``[D]``, C ``[D, D]``, KL(q ‖ p) and the largest component of its gradient."""

    mean: Tensor
    factor: Tensor
    divergence: float
    gradient: float


def _search(
    p: Distribution, diagonal: bool, start: ArrayLike | Tensor | None, starts: int, seed: int
) -> list[_Minimum]:
    """The finite local minima of KL(q ‖ p) from every start, lowest first."""
    if check_integer(starts, "starts", minimum=1) > _PILOT_DRAWS:
        raise InputError(f"starts must be at most {_PILOT_DRAWS}, got {starts}")
    dimension = p.event_shape.numel()
    pilot = draw_samples(p, _PILOT_DRAWS, derive(seed, 2), p.batch_shape).reshape(_PILOT_DRAWS, dimension)
    _check_unbounded(p, pilot)
    lower, median, upper = pilot.quantile(pilot.new_tensor([0.16, 0.5, 0.84]), dim=0)
    spread = 0.5 * (upper - lower)
    if start is not None:
        begin = [(_check_start(start, pilot), 0.5 * spread)]
    else:
        # the first may span several modes; the others are narrow enough to stay in the mode they start in
        begin = [(median, spread), *((mean, 0.5 * spread) for mean in pilot[: starts - 1])]
    points, weights = _quadrature(dimension, derive(seed, 3) % 2**31, device_of(p))

    def expected_log_density(mean: Tensor, factor: Tensor) -> Tensor:
        x = mean + points @ factor.T
        return weights @ log_prob(p, x if p.event_shape else x.squeeze(-1))

    minima = [_minimize(expected_log_density, mean, scale, diagonal) for mean, scale in begin]
    finite = sorted((m for m in minima if math.isfinite(m.divergence)), key=lambda m: m.divergence)
    if not finite:
        raise DivergenceError(
            "no search for q reached a finite divergence: p must have a finite, differentiable log density "
            "everywhere; pass a start= near its mass"
        )
    return finite


def _check_start(start: ArrayLike | Tensor, pilot: Tensor) -> Tensor:
    mean = torch.as_tensor(start, dtype=pilot.dtype, device=pilot.device).detach()
    if mean.numel() != pilot.shape[1] or not bool(mean.isfinite().all()):
        raise InputError(f"start must be a mean of {pilot.shape[1]} finite numbers, got {start!r}")
    return mean.reshape(-1)


def _check_unbounded(p: Distribution, pilot: Tensor) -> None:
    """Raise ``InputError`` if the support of p is bounded, where KL(q ‖ p) is infinite for every Gaussian q."""
    support = support_of(p)
    far = pilot.new_tensor([-_FAR, _FAR])[:, None].expand(2, pilot.shape[1])
    if support is not None and not bool(support.check(far if p.event_shape else far.squeeze(-1)).all()):
        raise InputError(
            f"p, {type(p).__name__}, must have a positive density everywhere for direction='reverse', otherwise "
            "KL(q ‖ p) is infinite: use direction='forward', or a transformed variable"
        )


def _quadrature(dimension: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Points ε ``[N, D]`` and weights ``[N]`` for expectations over N(0, I)."""
    if dimension in _GRID_POINTS:
        line = torch.linspace(-_GRID_EDGE, _GRID_EDGE, _GRID_POINTS[dimension], dtype=torch.float64, device=device)
        grid = torch.cartesian_prod(*[line] * dimension).reshape(-1, dimension)
        if dimension == 2:
            rotation = grid.new_tensor([[1.0, _GRID_SLOPE], [-_GRID_SLOPE, 1.0]]) / math.hypot(1.0, _GRID_SLOPE)
            grid = grid @ rotation
        return grid, (-0.5 * grid.square().sum(-1)).softmax(0)
    count = max(_SOBOL_POINTS, 2 ** math.ceil(math.log2(_POINTS_PER_DIMENSION * dimension)))
    normal = sobol_normal(count, dimension, seed, margin=1.0 / (2.0 * count))
    normal = normal - normal.mean(0)
    factor = torch.linalg.cholesky(normal.T @ normal / count)
    points: Tensor = torch.linalg.solve_triangular(factor, normal.T, upper=False).T
    return points.to(device), torch.full((count,), 1.0 / count, dtype=torch.float64, device=device)


def _minimize(
    expected_log_density: Callable[[Tensor, Tensor], Tensor], start: Tensor, scale: Tensor, diagonal: bool
) -> _Minimum:
    """Minimize KL(q ‖ p) by L-BFGS from N(start, diag(scale²)).

    Args:
        expected_log_density: E_q[log p(x)] as a function of m and C.
        start: the initial m, ``[D]``.
        scale: the initial standard deviations, ``[D]``, which are also the units of the search.
        diagonal: whether C is diagonal.
    """
    dimension = len(start)
    shift = torch.zeros_like(start, requires_grad=True)
    log_widths = torch.zeros_like(start, requires_grad=True)
    skew = torch.zeros(dimension, dimension, dtype=start.dtype, device=start.device, requires_grad=not diagonal)
    parameters = [shift, log_widths] if diagonal else [shift, log_widths, skew]

    def mean_and_factor() -> tuple[Tensor, Tensor]:
        return start + scale * shift, scale[:, None] * (log_widths.exp().diag() + skew.tril(-1))

    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=_MAX_ITERATIONS,
        tolerance_grad=1e-7,
        tolerance_change=1e-14,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        optimizer.zero_grad()
        entropy = (scale.log() + log_widths).sum() + 0.5 * dimension * math.log(2.0 * math.pi * math.e)
        divergence = -entropy - expected_log_density(*mean_and_factor())
        divergence.backward()
        return divergence.item()

    with torch.enable_grad():
        optimizer.step(closure)
        reached = closure()
    gradient = max(float(p.grad.abs().max()) for p in parameters if p.grad is not None)
    mean, factor = (part.detach() for part in mean_and_factor())
    return _Minimum(mean, factor, reached, gradient)
