r"""A Gaussian posterior with independent weights, q(w | θ) = ∏ᵢ N(wᵢ; μᵢ, σᵢ²), σ = softplus(ρ)."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Normal, kl_divergence
from typing_extensions import override

from credo._arguments import check_integer, check_positive
from credo._devices import at_least_float32
from credo.errors import InputError
from credo.functional import Draw, Sampler
from credo.posteriors._gaussian_kl import (
    Group,
    KLPlan,
    choose_kl,
    fused_mixture_kl,
    half_square,
    joined,
    make_plan,
    sampled_kl,
    scales_and_kl,
)
from credo.posteriors._gaussian_sampler import gaussian_sampler
from credo.posteriors._wide_parameters import WideParameters, as_key
from credo.posteriors.base import Posterior
from credo.priors import AdaptiveNormal, Prior, move_priors, resolve
from credo.seeding import seeded
from credo.selection import parameter_owners


class MeanField(Posterior):
    r"""q(w | θ) over the named parameters of a network. The network's parameters *are* μ; only ρ is added.

    ρ has at least 32 bits, whatever the network has: a step of learning is lost in the rounding of fewer.

    Args:
        net: the network.
        names: the parameters to cover, as :func:`credo.selection.select` returns them.
        initial_scale: σ at the start, for every weight.

    Attributes:
        antithetic: whether draws, also those of ``predict``, come in pairs μ ± σ·ε. The predictive mean then has a
            smaller error and half the random numbers are needed, but the epistemic uncertainty may have a larger
            error, see ``docs/guide.md``. Not saved with a model; ``False`` at first.

    Example:
        >>> model = credo.BayesByBackprop(net, credo.Gaussian(0.1)).fit((x, y), epochs=20)
        >>> model.posterior.mean(), model.posterior.scale(), model.posterior.sample(10)

    Reference: C. Blundell et al., "Weight uncertainty in neural networks", ICML 2015.
    """

    antithetic: bool = False

    def __init__(self, net: nn.Module, names: Sequence[str], initial_scale: float = 0.01) -> None:
        super().__init__(net)
        check_positive(initial_scale, "initial_scale")
        self._owners = parameter_owners(net, names)
        self.rho = WideParameters()
        self.kept = nn.Module()
        initial_rho = initial_scale + math.log(-math.expm1(-initial_scale))
        for name in names:
            mean = self._mean(name)
            self.rho.add(name, torch.full_like(mean, initial_rho, dtype=at_least_float32(mean.dtype)))

    @override
    def names(self) -> list[str]:
        return list(self._owners)

    def scale_parameters(self) -> dict[Tensor, Tensor]:
        """The parameter ρ of every mean, for :class:`credo.training.NaturalAdam`.

        Returns:
            Mean to ρ, both as parameters.
        """
        return {self._mean(name): self._rho(name) for name in self._owners}

    @override
    def extra_repr(self) -> str:
        """The number of weights.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        weights = sum(self._mean(name).numel() for name in self._owners)
        return f"{weights:,} weights in {len(self._owners)} tensors"

    def mean(self) -> Draw:
        """μ, detached; 0 for pruned weights, whatever an optimizer did to them since.

        Returns:
            Name to tensor.
        """
        means = {}
        for name in self._owners:
            mean, kept = self._mean(name).detach(), self._kept(name)
            means[name] = mean if kept is None else mean * kept
        return means

    def point(self) -> Draw:
        """The means of pruned tensors, from which the network's parameters may differ.

        Returns:
            Name to tensor.
        """
        return {name: mean for name, mean in self.mean().items() if self._kept(name) is not None}

    def scale(self) -> dict[str, Tensor]:
        """σ = softplus(ρ), differentiable; 0 for pruned weights.

        Returns:
            Name to tensor.
        """
        return {name: self._scale(name) for name in self._owners}

    @override
    @torch.no_grad()
    def sampler(self, seed: int) -> Sampler:
        return gaussian_sampler(self.mean(), self.scale(), seed, self.antithetic)

    def rsample(self, names: Sequence[str], scale: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One reparameterized draw w = μ + σ·ε, from torch's default generator.

        Args:
            names: the parameters to draw.
            scale: their σ, by name.

        Returns:
            Name to tensor, differentiable.
        """
        return {
            name: torch.addcmul(self._wide_mean(name), scale[name], torch.randn_like(scale[name])).to(
                self._mean(name).dtype
            )
            for name in names
        }

    def kl(self, prior: Prior, samples: int = 1, seed: int | None = None, kind: str = "auto") -> Tensor:
        """KL(q ‖ prior), summed over all weights.

        Args:
            prior: a distribution, or a mapping from name patterns to distributions.
            samples: number of draws for a Monte Carlo estimate.
            seed: for the Monte Carlo estimate.
            kind: ``"auto"``, ``"analytic"`` or ``"sampled"``, see :meth:`kl_by_name`.

        Returns:
            A scalar in nats, differentiable.
        """
        return torch.stack(list(self.kl_by_name(prior, samples, seed, kind).values())).sum()

    def kl_by_name(
        self, prior: Prior, samples: int = 1, seed: int | None = None, kind: str = "auto"
    ) -> dict[str, Tensor]:
        r"""KL(q ‖ prior) of every parameter tensor, in nats; differentiable.

        Args:
            prior: a distribution, or a mapping from name patterns to distributions.
            samples: number of draws for a Monte Carlo estimate.
            seed: for the Monte Carlo estimate.
            kind: ``"analytic"``: the closed form (SGVB B); ``"sampled"``: the estimate E_q[log q − log p] (SGVB A);
                ``"auto"``: the closed form if there is one.

        Returns:
            Name to scalar.

        Raises:
            UnsupportedError: ``kind="analytic"``, but a prior has no closed form.
        """
        check_integer(samples, "samples", minimum=1)
        priors = resolve(prior, {name: self._mean(name).shape for name in self._owners})
        rho = next(iter(self.rho.parameters()))
        kinds = choose_kl(kind, priors)
        priors = move_priors(priors, rho.device, rho.dtype)
        with seeded(seed, rho.device):
            return {name: self.kl_of(name, priors[name], kinds[name], samples) for name in self._owners}

    def kl_of(
        self, name: str, prior: Distribution, kind: str, samples: int = 1, weight: Tensor | None = None
    ) -> Tensor:
        """KL(q ‖ prior) of one parameter tensor.

        Args:
            name: the parameter.
            prior: its prior, on the same device.
            kind: ``"analytic"`` or ``"sampled"``.
            samples: number of draws for ``"sampled"``.
            weight: a draw to use for ``"sampled"`` instead of fresh ones.

        Returns:
            A scalar in nats, differentiable.
        """
        kept = self._kept(name)
        if kind == "analytic":
            if isinstance(prior, Normal | AdaptiveNormal) and kept is None:
                return self._gaussian_kl(Group([name], prior))[1]
            q = self._distribution(name, prior)
            if isinstance(prior, AdaptiveNormal) and kept is not None:
                prior = Normal(
                    torch.zeros_like(q.loc), prior.best_scale(q.loc[kept], q.scale[kept]), validate_args=False
                )
            divergence = kl_divergence(q, prior)
        else:
            single = samples == 1 and kept is None
            weight = None if name in self._padding else weight  # a draw around the vector that the network has
            mean = self._under(prior, name, self._wide_mean(name))
            fused = fused_mixture_kl(mean, self._rho(name), prior, weight) if single else None
            if fused is not None:
                return fused
            divergence = sampled_kl(self._distribution(name, prior), prior, samples, weight)
        return divergence.sum() if kept is None else (divergence * kept).sum()

    def plan(
        self, priors: Mapping[str, Distribution], kinds: Mapping[str, str], squared: Container[str] = ()
    ) -> KLPlan:
        """What :meth:`scale_and_kl` needs to know; it changes when weights are pruned.

        Args:
            priors: the prior of every parameter.
            kinds: ``"analytic"`` or ``"sampled"`` for every parameter.
            squared: the parameters of which σ²/2 is wanted instead of σ.

        Returns:
            The tensors that are computed together, and the others.
        """
        sizes = {name: self._mean(name).numel() for name in self._owners if self._kept(name) is None}
        return make_plan(sizes, priors, kinds, squared)

    def scale_and_kl(self, plan: KLPlan) -> tuple[dict[str, Tensor], list[Tensor]]:
        """σ of every tensor and the closed-form terms of the KL.

        Args:
            plan: from :meth:`plan`.

        Returns:
            σ, or σ²/2 where the plan says so, by name; and the terms of the KL in nats.
        """
        values: dict[str, Tensor] = {}
        kl: list[Tensor] = []
        for group in plan.groups:
            parts, term = self._gaussian_kl(group)
            values.update(zip(group.names, parts, strict=True))
            kl.append(term)
        for name, prior, kind in plan.others:
            scale = self._scale(name)
            values[name] = half_square(scale) if name in plan.squared else scale
            kl += [self.kl_of(name, prior, kind)] if kind == "analytic" else []
        return values, kl

    def log_prob(self, weights: Mapping[str, Tensor]) -> Tensor:
        """log q(w), summed over all weights.

        Args:
            weights: name to tensor.

        Returns:
            A scalar in nats.
        """
        return torch.stack([self._distribution(n).log_prob(weights[n]).sum() for n in self._owners]).sum()

    def snr(self) -> dict[str, Tensor]:
        """The signal-to-noise ratio |μ|/σ of every weight (Blundell et al. 2015, section 3.3); 0 for pruned weights.

        Returns:
            Name to tensor.
        """
        ratios = {}
        for name in self._owners:
            ratio = self._wide_mean(name).detach().abs() / F.softplus(self._rho(name).detach())
            kept = self._kept(name)
            ratios[name] = ratio if kept is None else ratio * kept
        return ratios

    @torch.no_grad()
    def prune(self, fraction: float) -> int:
        """Set the weights with the lowest signal-to-noise ratio to zero, permanently.

        A pruned weight is 0 in every draw, adds nothing to the KL, and stays 0 under further training. Vectors for
        padding, which are no parameters, stay as they are.

        Args:
            fraction: the fraction of weights, from 0 to 1.

        Returns:
            The number of weights that are zero now.
        """
        if not 0.0 <= fraction <= 1.0:
            raise InputError(f"fraction must be a number from 0 to 1, got {fraction!r}")
        snr = self.snr()
        for name in snr.keys() & self._padding.keys():
            snr[name][self._padding[name]] = math.inf
        ratios = torch.cat([ratio.flatten() for ratio in snr.values()])
        ranking = ratios.argsort(stable=True)
        pruned = torch.zeros_like(ranking, dtype=torch.bool)
        pruned[ranking[: round(fraction * int((ratios < math.inf).sum()))]] = True
        parts = pruned.split([ratio.numel() for ratio in snr.values()])
        for name, part in zip(snr, parts, strict=True):
            self.keep(name, ~part.view_as(snr[name]))
        self.enforce_pruning()
        return sum(int((~mask).sum()) for mask in self.kept.buffers())

    def keep(self, name: str, mask: Tensor) -> None:
        """Mark weights to keep or to prune, in addition to earlier pruning.

        Args:
            name: the parameter.
            mask: ``True`` to keep a weight, ``False`` to prune it.
        """
        before = self._kept(name)
        mask = mask if before is None else mask & before
        self.kept.register_buffer(as_key(name), mask)

    def masks(self) -> Draw:
        """Which weights are kept, of the parameters that were pruned; the others are 0.

        Returns:
            Name to bool tensor.
        """
        return {name: kept for name in self._owners if (kept := self._kept(name)) is not None}

    def _expected_tensors(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The scales, and the masks of a posterior that was pruned before it was saved."""
        masks = {f"kept.{as_key(name)}": self._mean(name) for name in self._owners if f"kept.{as_key(name)}" in saved}
        kept = {key: torch.ones_like(mean, dtype=torch.bool) for key, mean in masks.items()}
        return {**self.state_dict(keep_vars=True), **kept}

    def _prepare_for(self, saved: Mapping[str, Tensor]) -> None:
        """Register the masks of a posterior that was pruned before it was saved."""
        for name in self._owners:
            if f"kept.{as_key(name)}" in saved:
                self.keep(name, torch.ones_like(self._mean(name), dtype=torch.bool))

    @torch.no_grad()
    def enforce_pruning(self) -> None:
        """Set the means of pruned weights to zero again, after an optimizer changed them."""
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
        mean = module._parameters[attribute]
        assert mean is not None
        return mean

    def _wide_mean(self, name: str) -> Tensor:
        """μ in the precision of the scales."""
        return self._mean(name).to(self._rho(name).dtype)

    def _rho(self, name: str) -> Tensor:
        return self.rho.get(name)

    def _kept(self, name: str) -> Tensor | None:
        return self.kept._buffers.get(as_key(name))

    def _scale(self, name: str) -> Tensor:
        scale = F.softplus(self._rho(name))
        kept = self._kept(name)
        return scale if kept is None else scale * kept

    def _gaussian_kl(self, group: Group) -> tuple[Sequence[Tensor], Tensor]:
        """σ or σ²/2 of some tensors, and their KL."""
        rhos = [self._rho(name) for name in group.names]
        means = [self._under(group.prior, name, self._wide_mean(name)) for name in group.names]
        if isinstance(group.prior, AdaptiveNormal):
            sizes = [mean.numel() for mean in means] if len(means) > 1 else None
            best = group.prior.best_scale(joined(means), F.softplus(joined(rhos)), sizes)
            return scales_and_kl(means, rhos, None, best, group.squared)
        assert isinstance(group.prior, Normal)
        center = None if getattr(group.prior, "is_centered", False) else group.prior.loc
        return scales_and_kl(means, rhos, center, group.prior.scale, group.squared)

    def _distribution(self, name: str, prior: Distribution | None = None) -> Normal:
        """q of one tensor, as its prior sees it if one is given.

        σ is kept off zero, so that log σ and its gradient stay finite far down the tail.
        """
        mean, scale = self._wide_mean(name), F.softplus(self._rho(name))
        mean = mean if prior is None else self._under(prior, name, mean)
        return Normal(mean, scale.clamp_min(torch.finfo(scale.dtype).tiny), validate_args=False)
