r"""Priors over the weights of a network.

A prior is any univariate ``torch.distributions.Distribution`` over the real line; its parameters broadcast
against the weight it is put on. A mapping from name patterns to priors gives different layers different
priors. KL(Normal ‖ prior) is computed in closed form if ``torch.distributions.kl`` has one.
"""

from __future__ import annotations

import copy
import math
import typing
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily, constraints
from torch.distributions import Laplace as _TorchLaplace
from torch.distributions import Normal as _TorchNormal
from torch.distributions.kl import kl_divergence, register_kl

from credo._arguments import check_positive
from credo._registry import Registry
from credo.errors import InputError, LoadError, UnsupportedError
from credo.selection import match_one

Prior: TypeAlias = Distribution | Mapping[str, Distribution]


_PRIORS: Registry[Distribution] = Registry("prior")
register_prior = _PRIORS.register
_BY_NAME = "by_name"


@_PRIORS.register
class Normal(_TorchNormal):
    r"""A Gaussian prior, N(w; mean, scale²).

    Args:
        mean: the prior mean, a number or a tensor of the weight's shape.
        scale: the prior standard deviation (not a variance).

    Example:
        >>> credo.BayesByBackprop(net, credo.Categorical(), prior=credo.Normal(0.0, 0.1))
    """

    def __init__(self, mean: float | Tensor = 0.0, scale: float | Tensor = 1.0) -> None:
        _check_positive("scale", scale)
        self.is_centered = not isinstance(mean, Tensor) and mean == 0
        super().__init__(_double(mean), _double(scale), validate_args=False)

    def get_config(self) -> dict[str, float] | None:
        """The constructor's arguments.

        Returns:
            Numbers by name, or ``None`` if they are tensors.
        """
        return _location_scale(self)

    def __repr__(self) -> str:
        return f"Normal(mean={_short(self.loc)}, scale={_short(self.scale)})"


@_PRIORS.register
class LaplacePrior(_TorchLaplace):
    r"""A Laplace prior, exp(−|w − mean|/scale)/(2·scale), which favors sparse weights; its std is √2·scale.

    Args:
        mean: the prior mean.
        scale: the scale, 1/√2 of the standard deviation.
    """

    def __init__(self, mean: float | Tensor = 0.0, scale: float | Tensor = 1.0) -> None:
        _check_positive("scale", scale)
        super().__init__(_double(mean), _double(scale), validate_args=False)

    def get_config(self) -> dict[str, float] | None:
        """The constructor's arguments.

        Returns:
            Numbers by name, or ``None`` if they are tensors.
        """
        return _location_scale(self)

    def __repr__(self) -> str:
        return f"LaplacePrior(mean={_short(self.loc)}, scale={_short(self.scale)})"


@register_kl(_TorchNormal, LaplacePrior)  # type: ignore[untyped-decorator]
def _kl_normal_laplace(q: _TorchNormal, p: LaplacePrior) -> Tensor:
    r"""log(2b) + E|w − m|/b − H(q), with E|w − m| = σ·√(2/π)·e^{−δ²/2} + (μ − m)·erf(δ/√2), δ = (μ − m)/σ.

    δ is held below 40, where the exponential is 0 and the error function 1 to the last digit, so that gradients
    stay finite however small σ is.
    """
    offset = q.loc - p.loc
    delta = offset / torch.maximum(q.scale, offset.detach().abs() / 40.0)
    distance = q.scale * math.sqrt(2.0 / math.pi) * torch.exp(-0.5 * delta.square())
    distance = distance + offset * torch.erf(delta / math.sqrt(2.0))
    entropy = q.scale.log() + 0.5 * math.log(2.0 * math.pi * math.e)
    return torch.log(2.0 * p.scale) + distance / p.scale - entropy


@_PRIORS.register
class AdaptiveNormal(Distribution):
    r"""A zero-mean Gaussian prior whose scale is learned for every parameter tensor (empirical Bayes).

    Each tensor of K weights has one variance s², with an inverse-gamma hyperprior of its own:

        w_k | s² ~ N(0, s²),    s² ~ InvGamma(a, b),    ŝ² = (2b + Σ_k (μ_k² + σ_k²)) / (K + 2a + 2),

    where ŝ² is the minimizer of KL(q ‖ p(w | s²)) − log p(s²) for the posterior q = N(μ, σ²) as it stands. At that
    minimum the derivative by s² is 0, so the KL at ŝ², held constant, has the gradient of the joint bound. No scale has
    to be chosen for each layer: a layer that is not needed shrinks as a whole.

    Args:
        shape: a of the hyperprior.
        rate: b of the hyperprior; ŝ² ≥ 2b/(K + 2a + 2) keeps a layer from being switched off permanently.

    Reference: A. Wu, S. Nowozin, E. Meeds, R. E. Turner, J. M. Hernández-Lobato, A. L. Gaunt, "Deterministic
    variational inference for robust Bayesian neural networks", ICLR 2019, section 4.
    """

    arg_constraints: typing.ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.real

    def __init__(self, shape: float = 1.0, rate: float = 1.0) -> None:
        self.shape, self.rate = check_positive(shape, "shape"), check_positive(rate, "rate")
        super().__init__(validate_args=False)

    @torch.no_grad()
    def best_scale(self, mean: Tensor, scale: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
        """ŝ of one parameter tensor with posterior N(mean, scale²), or of several that were concatenated.

        Args:
            mean: μ of the weights.
            scale: σ of the weights.
            sizes: the number of weights of each tensor, if there are several.

        Returns:
            ŝ, ``[]``, or for every weight of several tensors, ``[N]``.
        """
        square = torch.addcmul(mean.square(), scale, scale)
        parts = [square] if sizes is None else square.split(list(sizes))
        best = [((2.0 * self.rate + p.sum()) / (p.numel() + 2.0 * self.shape + 2.0)).sqrt() for p in parts]
        if sizes is None:
            return best[0]
        return torch.cat([value.expand(size) for value, size in zip(best, sizes, strict=True)])

    def log_prob(self, value: Tensor) -> typing.Never:
        """Not available: the density depends on the scale, and the scale on the posterior.

        Args:
            value: weights.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "AdaptiveNormal has no density of its own, only a KL: use it with credo.BayesByBackprop and kl='auto', "
            "credo.IVON or credo.Laplace, or use credo.Normal"
        )

    def get_config(self) -> dict[str, float]:
        """The constructor's arguments.

        Returns:
            Numbers by name.
        """
        return {"shape": self.shape, "rate": self.rate}

    def __repr__(self) -> str:
        return f"AdaptiveNormal(shape={self.shape:g}, rate={self.rate:g})"


@register_kl(_TorchNormal, AdaptiveNormal)  # type: ignore[untyped-decorator]
def _kl_normal_adaptive(q: _TorchNormal, p: AdaptiveNormal) -> Tensor:
    """KL(q ‖ N(0, ŝ²)), elementwise, with ŝ held constant."""
    return kl_divergence(q, _TorchNormal(torch.zeros_like(q.loc), p.best_scale(q.loc, q.scale), validate_args=False))


def resolve(prior: Prior, shapes: Mapping[str, torch.Size], argument: str = "prior") -> dict[str, Distribution]:
    """One prior for every parameter, after a check that it matches.

    Args:
        prior: a distribution for all, or a mapping from name patterns to distributions; the first pattern
            that matches a name is used.
        shapes: the shapes of the parameters, by name.
        argument: what an error calls ``prior``.

    Returns:
        Name to prior.
    """
    if isinstance(prior, Distribution):
        return {name: _checked(prior, name, shape) for name, shape in shapes.items()}
    if not isinstance(prior, Mapping):
        raise InputError(
            f"{argument} must be a torch Distribution, or a mapping from name patterns to them, got "
            f"{type(prior).__name__}"
        )
    return {name: _checked(match_one(prior, name, shapes), name, shape) for name, shape in shapes.items()}


def move_prior(prior: Distribution, device: torch.device, dtype: torch.dtype | None = None) -> Distribution:
    """A copy of ``prior`` with its parameters on ``device``, in ``dtype``, whose log density skips argument checks."""
    copied = copy.copy(prior)
    copied._validate_args = False
    for key, value in vars(prior).items():
        if isinstance(value, Tensor):
            setattr(copied, key, value.to(device, dtype if value.is_floating_point() else None))
        elif isinstance(value, Distribution):
            setattr(copied, key, move_prior(value, device, dtype))
    return copied


def move_priors(
    priors: Mapping[str, Distribution], device: torch.device, dtype: torch.dtype
) -> dict[str, Distribution]:
    """:func:`move_prior` for every parameter's prior; parameters under one prior share its copy."""
    copies: dict[str, Distribution] = {}
    for name, prior in priors.items():
        same = next((other for other in copies if priors[other] is prior), None)
        copies[name] = move_prior(prior, device, dtype) if same is None else copies[same]
    return copies


def check_one_scale_per_module(priors: Mapping[str, Distribution]) -> None:
    """Raise ``InputError`` if an adaptive prior covers only some parameters of a module, which share its scale."""
    found: dict[str, Distribution] = {}
    for name, prior in priors.items():
        module = name.rpartition(".")[0]
        other = found.setdefault(module, prior)
        if other is not prior and AdaptiveNormal in (type(prior), type(other)):
            raise InputError(
                f"the parameters of {module or 'the network'} share the scale of an AdaptiveNormal prior: give "
                "all of them the same one"
            )


def to_config(prior: Prior) -> dict[str, object] | None:
    """What JSON can hold of a prior.

    Args:
        prior: a distribution, or a mapping from name patterns to distributions.

    Returns:
        The configuration, or ``None`` if the prior must be passed to ``credo.load`` again.
    """
    if isinstance(prior, Mapping):
        parts = {pattern: to_config(p) for pattern, p in prior.items()}
        return None if None in parts.values() else {"name": _BY_NAME, "priors": parts}
    return _PRIORS.describe(prior)


def from_config(config: object) -> Prior:
    """The prior of a configuration, the inverse of :func:`to_config`.

    Args:
        config: what :func:`to_config` returned.

    Returns:
        The prior.

    Raises:
        LoadError: it is not the configuration of a prior.
    """
    if not isinstance(config, dict) or config.get("name") != _BY_NAME:
        return _PRIORS.build(config)
    parts = config.get("priors")
    if not isinstance(parts, dict):
        raise LoadError(f"the configuration of priors by name must hold 'priors', got {config!r:.200}")
    return {str(pattern): _PRIORS.build(part) for pattern, part in parts.items()}


def _checked(prior: object, name: str, shape: torch.Size) -> Distribution:
    if not isinstance(prior, Distribution):
        raise InputError(f"the prior of {name!r} must be a torch Distribution, got {type(prior).__name__}")
    if prior.event_shape != torch.Size():
        raise InputError(
            f"the prior of {name!r} is multivariate (event_shape {list(prior.event_shape)}); "
            "give a univariate one, it is applied to every weight"
        )
    if not _is_real_line(prior):
        raise InputError(
            f"the prior of {name!r}, {type(prior).__name__}, does not cover the real line, but weights do; "
            "use Normal, LaplacePrior, ScaleMixture or another distribution over all real numbers"
        )
    if getattr(prior, "min_dims", 0) > len(shape):
        raise InputError(
            f"the prior of {name!r}, {prior}, is for tensors of at least {prior.min_dims} dimensions, "  # type: ignore[attr-defined]
            f"but the parameter has {len(shape)}; give it a prior of its own by name"
        )
    try:
        # torch.broadcast_shapes imports sympy, which takes longer than all that follows
        fits = not prior.batch_shape or torch.broadcast_shapes(prior.batch_shape, shape) == shape
    except RuntimeError:
        fits = False
    if not fits:
        raise InputError(
            f"the prior of {name!r} has shape {list(prior.batch_shape)}, "
            f"which does not match the parameter's {list(shape)}"
        )
    return prior


def _is_real_line(prior: Distribution) -> bool:
    if isinstance(prior, MixtureSameFamily):  # its own support is an object of another kind
        return _is_real_line(prior.component_distribution)
    try:
        return prior.support is constraints.real
    except NotImplementedError:
        return True


def _check_positive(name: str, value: float | Tensor) -> None:
    if not bool(torch.as_tensor(value).gt(0).all()) or not bool(torch.as_tensor(value).isfinite().all()):
        raise InputError(f"{name} must be positive and finite, got {value}")


def _location_scale(prior: Normal | LaplacePrior) -> dict[str, float] | None:
    if prior.loc.dim() or prior.scale.dim():
        return None
    return {"mean": prior.loc.item(), "scale": prior.scale.item()}


def _double(value: float | Tensor) -> Tensor:
    """Numbers in double precision, so that a network in any precision gets them as they were written."""
    return value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)


def _short(value: Tensor) -> str:
    return f"{value.item():g}" if value.dim() == 0 else f"tensor{list(value.shape)}"
