"""Conformance checks of posteriors."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from credo.functional import Draw
from credo.posteriors import Posterior
from credo.priors import Normal, Prior
from credo.testing._require import (
    STANDARD_ERRORS,
    require,
    require_close,
    require_equal,
    require_input_error,
    require_unchanged,
)


@runtime_checkable
class _HasKL(Protocol):
    def kl(self, prior: Prior, samples: int = 1, seed: int | None = None) -> Tensor: ...

    def kl_by_name(self, prior: Prior, samples: int = 1, seed: int | None = None) -> dict[str, Tensor]: ...


def check_posterior(
    posterior: Posterior, net: nn.Module, *, prior: Prior | None = None, samples: int = 400, closed_form: bool = True
) -> None:
    """Check that a posterior satisfies the contract of :class:`credo.Posterior`.

    Its draws are named tensors of the network's parameters. Draw s of a seed is always the same, the draws have the
    mean of the posterior, and torch's random state does not change. A KL is the sum of its parts, is not negative and
    needs no forward pass.

    Args:
        posterior: a posterior over parameters of ``net``.
        net: the network.
        prior: the prior of the KL; ``None``: a standard normal one.
        samples: the number of draws whose mean must be within five standard errors of ``posterior.mean()``.
        closed_form: whether the KL to ``prior`` has a closed form; an estimate can be negative and depends on its
            seed.

    Raises:
        AssertionError: if a check fails; the message names it.

    Example:
        >>> model = credo.BayesByBackprop(net)
        >>> check_posterior(model.posterior, net)
    """
    _check_names(posterior, net)
    _check_draws(posterior)
    _check_random_state(posterior, net)
    _check_mean(posterior, samples)
    if isinstance(posterior, _HasKL):
        _check_kl(posterior, posterior.names(), Normal() if prior is None else prior, closed_form)


def _check_names(posterior: Posterior, net: nn.Module) -> None:
    names, parameters = posterior.names(), dict(net.named_parameters())
    require(len(names) > 0, "names() must name at least one parameter")
    require(len(set(names)) == len(names), f"names() must name every parameter once, got {names}")
    unknown = [name for name in names if name not in parameters]
    require(
        not unknown,
        f"names() must be names of the network's parameters, a tied one under its first name; unknown: {unknown}",
    )
    frozen = [name for name in names if not parameters[name].requires_grad]
    require(not frozen, f"frozen parameters must stay deterministic, but names() holds {frozen}")
    mean = posterior.mean()
    require(list(mean) == names, f"mean() must hold exactly names(), in their order, got {list(mean)}")
    for name, value in mean.items():
        require(value.shape == parameters[name].shape, f"the mean of {name!r} must have the parameter's shape")
        require(value.dtype == parameters[name].dtype, f"the mean of {name!r} must have the parameter's dtype")
        require(not value.requires_grad, f"mean() must be detached, but that of {name!r} carries a gradient")


def _check_draws(posterior: Posterior) -> None:
    mean = posterior.mean()
    five = posterior.sample(5, seed=0)
    require(list(five) == list(mean), f"sample() must hold exactly names(), in their order, got {list(five)}")
    for name, value in five.items():
        wanted = [5, *mean[name].shape]
        require(list(value.shape) == wanted, f"sample(5)[{name!r}] must have shape {wanted}, got {list(value.shape)}")
        require(value.dtype == mean[name].dtype, f"sample(5)[{name!r}] must have the dtype of the mean")
        require(not value.requires_grad, f"sample() must be detached, but {name!r} carries a gradient")
        require(bool(value.isfinite().all()), f"draws of {name!r} must be finite")
    again, two = posterior.sample(5, seed=0), posterior.sample(2, seed=0)
    third = posterior.draw(0, 3)
    for name in mean:
        require_equal(again[name], five[name], f"the same seed must give the same draws of {name!r}")
        require_equal(two[name], five[name][:2], f"draw s of {name!r} must not depend on how many are drawn")
        require_equal(third[name], five[name][3], f"draw(seed, 3) of {name!r} must be number 3 of sample(n, seed)")
    if _is_random(five):
        other = posterior.sample(5, seed=1)
        require(any(not torch.equal(other[n], five[n]) for n in mean), "different seeds must give different draws")
        repeats = [n for n in mean if not torch.equal(five[n], five[n][:1].expand_as(five[n]))]
        require(len(repeats) > 0, "the draws of one seed must differ from each other")
        free = [posterior.sample(20) for _ in range(2)]
        require(any(not torch.equal(free[0][n], free[1][n]) for n in mean), "without a seed, draws must differ")
    none = posterior.sample(0)
    for name, value in mean.items():
        require(
            name in none and list(none[name].shape) == [0, *value.shape],
            f"sample(0)[{name!r}] must be empty, of shape {[0, *value.shape]}",
        )
    require_input_error(lambda: posterior.sample(-1), "sample(-1) must raise an InputError")


def _check_random_state(posterior: Posterior, net: nn.Module) -> None:
    with require_unchanged("sample", posterior, net):
        posterior.sample(3, seed=0)
    if isinstance(posterior, _HasKL):
        with require_unchanged("kl", posterior, net):
            posterior.kl(Normal(), seed=0)


def _check_mean(posterior: Posterior, samples: int) -> None:
    drawn = posterior.sample(samples, seed=2)
    for name, mean in posterior.mean().items():
        draws = drawn[name].double()
        error = draws.std(0) / samples**0.5
        rounding = 1e3 * torch.finfo(mean.dtype).eps * (1.0 + mean.abs().double())
        worst = float(((draws.mean(0) - mean.double()).abs() - rounding).div(error + 1e-300).max())
        require(
            worst <= STANDARD_ERRORS,
            f"the mean of {samples} draws of {name!r} is {worst:.1f} standard errors from mean(); "
            f"at most {STANDARD_ERRORS:g} are allowed",
        )


def _check_kl(posterior: _HasKL, names: list[str], prior: Prior, closed_form: bool) -> None:
    total, parts = posterior.kl(prior, seed=0), posterior.kl_by_name(prior, seed=0)
    require(list(parts) == names, f"kl_by_name() must hold exactly names(), in their order, got {list(parts)}")
    require(total.dim() == 0 and total.requires_grad, "kl() must be a differentiable number")
    for name, part in parts.items():
        require(part.dim() == 0 and bool(part.isfinite()), f"the KL of {name!r} must be one finite number")
    summed = torch.stack(list(parts.values())).sum()
    require_close(total, summed, "kl() must be the sum of kl_by_name() over all tensors, not a mean of any kind")
    if closed_form:
        negative = {name: float(part.detach()) for name, part in parts.items() if bool(part < 0)}
        require(not negative, f"a KL divergence is never negative, got {negative}")
        require_equal(posterior.kl(prior, seed=1), total, "a KL in closed form must not depend on a seed")


def _is_random(draws: Draw) -> bool:
    return any(bool((value != value[:1]).any()) for value in draws.values())
