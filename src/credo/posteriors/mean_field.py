r"""A Gaussian posterior with independent weights, q(w | θ) = ∏ᵢ N(wᵢ; μᵢ, σᵢ²), σ = softplus(ρ)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Normal, kl_divergence

from credo._devices import at_least_float32
from credo.errors import InputError, UnsupportedError, unknown_name
from credo.functional import Draw, Sampler
from credo.posteriors._gaussian_kl import scale_and_kl
from credo.posteriors.base import Posterior
from credo.priors import AdaptiveNormal, Prior, all_moved, moved, resolve
from credo.seeding import seeded, standard_normal
from credo.selection import owners

_SMALL = 2**15
_KL_CHOICES = ("auto", "analytic", "sampled")


class MeanField(Posterior):
    r"""q(w | θ) over the named parameters of a network. The network's parameters *are* μ; only ρ is added.

    ρ has at least 32 bits, whatever the network has: a step of learning is lost in the rounding of fewer.

    Args:
        net: the network.
        names: the parameters to cover, as :func:`credo.selection.select` returns them.
        initial_scale: σ at the start, for every weight.

    Reference: C. Blundell et al., "Weight uncertainty in neural networks", ICML 2015.
    """

    def __init__(self, net: nn.Module, names: Sequence[str], initial_scale: float = 0.01) -> None:
        super().__init__()
        if not (initial_scale > 0 and math.isfinite(initial_scale)):
            raise InputError(f"initial_scale must be positive and finite, got {initial_scale}")
        self._owners = owners(net, names)
        self.rho = nn.Module()
        self.kept = nn.Module()
        initial_rho = initial_scale + math.log(-math.expm1(-initial_scale))
        for name in names:
            mean = self._mean(name)
            rho = torch.full_like(mean, initial_rho, dtype=at_least_float32(mean.dtype))
            self.rho.register_parameter(_key(name), nn.Parameter(rho))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the scales, but never to fewer than 32 bits."""
        before = {key: rho.detach() for key, rho in self.rho.named_parameters()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for key, rho in self.rho.named_parameters():
            if rho.dtype != at_least_float32(rho.dtype):
                rho.data = before[key].to(rho.device, at_least_float32(rho.dtype))
        return self

    def names(self) -> list[str]:
        """The covered parameters."""
        return list(self._owners)

    def scale_parameters(self) -> dict[Tensor, Tensor]:
        """ρ of every mean, as an optimizer needs to know them."""
        return {self._mean(name): self._rho(name) for name in self._owners}

    def extra_repr(self) -> str:
        """How much is covered."""
        weights = sum(self._mean(name).numel() for name in self._owners)
        return f"{weights:,} weights in {len(self._owners)} tensors"

    def mean(self) -> Draw:
        """μ, detached; zero where a weight was pruned, whatever an optimizer did to it since."""
        means = {}
        for name in self._owners:
            mean, kept = self._mean(name).detach(), self._kept(name)
            means[name] = mean if kept is None else mean * kept
        return means

    def point(self) -> Draw:
        """The means of pruned tensors, which the network's parameters may have left."""
        return {name: mean for name, mean in self.mean().items() if self._kept(name) is not None}

    def scale(self) -> dict[str, Tensor]:
        """σ = softplus(ρ), differentiable; zero where a weight was pruned."""
        return {name: self._scale(name) for name in self._owners}

    @torch.no_grad()
    def sampler(self, seed: int) -> Sampler:
        """Draws w = μ + σ·ε, with ε from the stream (seed, s)."""
        mean, scale = self.mean(), self.scale()
        wide = {name: mean[name].to(scale[name].dtype) for name in mean}
        memory: list[Tensor] = []

        @torch.no_grad()
        def draw(numbers: Sequence[int]) -> list[Draw]:
            noises = standard_normal(list(scale.values()), [(seed, s) for s in numbers], memory)
            return [
                {
                    name: torch.addcmul(wide[name], scale[name], epsilon, out=epsilon).to(mean[name].dtype)
                    for name, epsilon in zip(mean, noise, strict=True)
                }
                for noise in noises
            ]

        return draw

    def rsample(self, names: Sequence[str], scale: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One reparameterized draw of ``names``, w = μ + σ·ε, from torch's default generator."""
        return {
            name: torch.addcmul(self._wide_mean(name), scale[name], torch.randn_like(scale[name])).to(
                self._mean(name).dtype
            )
            for name in names
        }

    def kl(self, prior: Prior, samples: int = 1, seed: int | None = None, kind: str = "auto") -> Tensor:
        """KL(q ‖ prior) in nats, summed over all weights; see :meth:`kl_by_name`."""
        return torch.stack(list(self.kl_by_name(prior, samples, seed, kind).values())).sum()

    def kl_by_name(
        self, prior: Prior, samples: int = 1, seed: int | None = None, kind: str = "auto"
    ) -> dict[str, Tensor]:
        r"""KL(q ‖ prior) of every parameter tensor, in nats; differentiable.

        Args:
            prior: a distribution, or a mapping from name patterns to distributions.
            samples: draws for the Monte Carlo estimate, where one is needed.
            seed: for the Monte Carlo estimate.
            kind: ``"analytic"`` insists on the closed form (SGVB B), ``"sampled"`` on the estimate
                E_q[log q − log p] (SGVB A), ``"auto"`` takes the closed form where one is known.
        """
        if samples < 1:
            raise InputError(f"samples must be at least 1, got {samples}")
        priors = resolve(prior, {name: self._mean(name).shape for name in self._owners})
        rho = next(iter(self.rho.parameters()))
        kinds = choose_kl(kind, priors)
        priors = all_moved(priors, rho.device, rho.dtype)
        with seeded(seed, rho.device):
            return {name: self.kl_of(name, priors[name], kinds[name], samples) for name in self._owners}

    def kl_of(
        self, name: str, prior: Distribution, kind: str, samples: int = 1, weight: Tensor | None = None
    ) -> Tensor:
        """``"analytic"`` or ``"sampled"`` KL of one parameter tensor; ``weight`` is a draw to use for the latter."""
        kept = self._kept(name)
        if kind == "analytic":
            if isinstance(prior, Normal | AdaptiveNormal) and kept is None:
                return self._gaussian_kl([name], prior)[1]
            q = self._distribution(name)
            if isinstance(prior, AdaptiveNormal) and kept is not None:
                prior = Normal(
                    torch.zeros_like(q.loc), prior.best_scale(q.loc[kept], q.scale[kept]), validate_args=False
                )
            divergence = kl_divergence(q, prior)
        else:
            divergence = self._sampled_kl(name, prior, samples, weight)
        return divergence.sum() if kept is None else (divergence * kept).sum()

    def scale_and_kl(
        self, priors: Mapping[str, Distribution], kinds: Mapping[str, str]
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """σ of every parameter tensor, and the terms of the KL that have a closed form, for little more than one.

        Small tensors under the same Gaussian prior are handled as one long vector: a network of many small
        tensors would otherwise spend its time on calls, not numbers.
        """
        scale: dict[str, Tensor] = {}
        kl: list[Tensor] = []
        together: list[list[str]] = []
        for name, kind in kinds.items():
            prior = priors[name]
            gaussian = kind == "analytic" and isinstance(prior, Normal | AdaptiveNormal) and self._kept(name) is None
            if gaussian and prior.batch_shape == () and self._mean(name).numel() < _SMALL:
                group = next((names for names in together if priors[names[0]] is prior), None)
                if group is None:
                    together.append([name])
                else:
                    group.append(name)
            elif gaussian:
                scale[name], term = self._gaussian_kl([name], prior)
                kl.append(term)
            else:
                scale[name] = self._scale(name)
                kl += [self.kl_of(name, prior, kind)] if kind == "analytic" else []
        for names in together:
            flat, term = self._gaussian_kl(names, priors[names[0]])
            parts = flat.split([self._mean(name).numel() for name in names]) if len(names) > 1 else [flat]
            scale.update({name: part.view_as(self._mean(name)) for name, part in zip(names, parts, strict=True)})
            kl.append(term)
        return scale, kl

    def log_prob(self, weights: Mapping[str, Tensor]) -> Tensor:
        """log q(w), summed over all weights."""
        return torch.stack([self._distribution(n).log_prob(weights[n]).sum() for n in self._owners]).sum()

    def snr(self) -> dict[str, Tensor]:
        """Signal-to-noise ratio |μ|/σ of every weight (Blundell et al. 2015, section 3.3); 0 where pruned."""
        ratios = {}
        for name in self._owners:
            ratio = self._wide_mean(name).detach().abs() / F.softplus(self._rho(name).detach())
            kept = self._kept(name)
            ratios[name] = ratio if kept is None else ratio * kept
        return ratios

    @torch.no_grad()
    def prune(self, fraction: float) -> int:
        """Set the ``fraction`` of weights with the lowest signal-to-noise ratio to exactly zero, for good.

        A pruned weight is 0 in every draw, leaves the KL, and stays 0 under further training.

        Returns:
            The number of weights that are zero now.
        """
        if not 0.0 <= fraction <= 1.0:
            raise InputError(f"fraction must lie between 0 and 1, got {fraction}")
        snr = self.snr()
        ranking = torch.cat([ratio.flatten() for ratio in snr.values()]).argsort(stable=True)
        pruned = torch.zeros_like(ranking, dtype=torch.bool)
        pruned[ranking[: round(fraction * len(ranking))]] = True
        parts = pruned.split([ratio.numel() for ratio in snr.values()])
        for name, part in zip(snr, parts, strict=True):
            self.keep(name, ~part.view_as(snr[name]))
        self.enforce_pruning()
        return sum(int((~mask).sum()) for mask in self.kept.buffers())

    def keep(self, name: str, mask: Tensor) -> None:
        """Mark the weights of ``name`` to keep (``True``) or prune (``False``), on top of earlier pruning."""
        before = self._kept(name)
        mask = mask if before is None else mask & before
        self.kept.register_buffer(_key(name), mask)

    def _expected_tensors(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The scales, and the masks of a posterior that was pruned before it was saved."""
        masks = {f"kept.{_key(name)}": self._mean(name) for name in self._owners if f"kept.{_key(name)}" in saved}
        kept = {key: torch.ones_like(mean, dtype=torch.bool) for key, mean in masks.items()}
        return {**self.state_dict(keep_vars=True), **kept}

    def _prepare_for(self, saved: Mapping[str, Tensor]) -> None:
        """Register the masks of a posterior that was pruned before it was saved."""
        for name in self._owners:
            if f"kept.{_key(name)}" in saved:
                self.keep(name, torch.ones_like(self._mean(name), dtype=torch.bool))

    @torch.no_grad()
    def enforce_pruning(self) -> None:
        """Put the means of pruned weights back to zero, after an optimizer moved them."""
        for name in self._owners:
            kept = self._kept(name)
            if kept is not None:
                self._mean(name).mul_(kept)

    @property
    def is_pruned(self) -> bool:
        """Whether any weight was pruned."""
        return bool(self.kept._buffers)

    def _mean(self, name: str) -> Tensor:
        module, attribute = self._owners[name]
        mean = getattr(module, attribute)
        assert isinstance(mean, Tensor)
        return mean

    def _wide_mean(self, name: str) -> Tensor:
        """μ in the precision of the scales."""
        return self._mean(name).to(self._rho(name).dtype)

    def _rho(self, name: str) -> Tensor:
        rho = self.rho._parameters[_key(name)]
        assert rho is not None
        return rho

    def _kept(self, name: str) -> Tensor | None:
        return self.kept._buffers.get(_key(name))

    def _scale(self, name: str) -> Tensor:
        scale = F.softplus(self._rho(name))
        kept = self._kept(name)
        return scale if kept is None else scale * kept

    def _gaussian_kl(self, names: Sequence[str], prior: Distribution) -> tuple[Tensor, Tensor]:
        """σ and KL of some tensors under one Gaussian prior; of several, σ is one long vector."""
        mean, rho = _joined([self._wide_mean(name) for name in names]), _joined([self._rho(name) for name in names])
        if isinstance(prior, AdaptiveNormal):
            sizes = [self._mean(name).numel() for name in names] if len(names) > 1 else None
            return scale_and_kl(mean, rho, None, prior.best_scale(mean, F.softplus(rho), sizes))
        assert isinstance(prior, Normal)
        center = None if getattr(prior, "is_centered", False) else prior.loc
        return scale_and_kl(mean, rho, center, prior.scale)

    def _sampled_kl(self, name: str, prior: Distribution, samples: int, weight: Tensor | None) -> Tensor:
        """log q(w) − log p(w) elementwise, a mean over draws w = μ + σ·ε, with log q = −log σ − ε²/2 − log √2π."""
        q = self._distribution(name)
        if weight is None or weight.dtype != q.loc.dtype:  # a draw in 16 bits has lost its noise by rounding
            noise = torch.randn((samples, *q.loc.shape), dtype=q.loc.dtype, device=q.loc.device)
            weight = torch.addcmul(q.loc, q.scale, noise)
        else:
            weight = weight.unsqueeze(0)
            noise = ((weight - q.loc) / q.scale).detach()
        log_q = -q.scale.log() - noise.square().mean(0).mul_(0.5).add_(0.5 * math.log(2.0 * math.pi))
        return log_q - prior.log_prob(weight).mean(0)

    def _distribution(self, name: str) -> Normal:
        """q of one tensor, with σ kept off zero, so that log σ and its gradient stay finite far down the tail."""
        scale = F.softplus(self._rho(name))
        return Normal(self._wide_mean(name), scale.clamp_min(torch.finfo(scale.dtype).tiny), validate_args=False)


def has_closed_form(prior: Distribution) -> bool:
    """Whether KL(Normal ‖ prior) is known in closed form."""
    probe = Normal(torch.zeros(()), torch.ones(()), validate_args=False)
    try:
        kl_divergence(probe, moved(prior, torch.device("cpu")))
    except NotImplementedError:
        return False
    return True


def choose_kl(kind: str, priors: Mapping[str, Distribution]) -> dict[str, str]:
    """``"analytic"`` or ``"sampled"`` for every parameter, given what was asked for and what is known."""
    if kind not in _KL_CHOICES:
        raise unknown_name("kl", kind, _KL_CHOICES)
    chosen = {}
    for name, prior in priors.items():
        known = kind != "sampled" and has_closed_form(prior)
        if kind == "analytic" and not known:
            raise UnsupportedError(
                f"kl='analytic', but KL(Normal ‖ {type(prior).__name__}) of {name!r} has no known closed form; "
                "use kl='auto' or kl='sampled'"
            )
        chosen[name] = "analytic" if known else "sampled"
    return chosen


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor as it is; several as one long vector."""
    return tensors[0] if len(tensors) == 1 else torch.cat([tensor.flatten() for tensor in tensors])


def _key(name: str) -> str:
    """A parameter name as a registration key, which may not hold a dot."""
    return name.replace(".", "/")
