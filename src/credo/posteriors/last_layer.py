r"""Gaussian posteriors over the last linear layer of a network, with a full covariance for every output.

With the weights and the bias of output k as one vector θ_k, and the features φ of a row followed by a 1 if there is a
bias, the output is Gaussian in closed form:

    θ_k ~ N(θ̄_k, S_k),  independent,        f_k = θ_kᵀφ ~ N(θ̄_kᵀφ, φᵀS_kφ).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Normal
from typing_extensions import override

from credo._arguments import check_positive
from credo._devices import at_least_float32
from credo.functional import Draw, Sampler
from credo.posteriors._wide_parameters import WideBuffers, as_key
from credo.posteriors.base import Posterior
from credo.priors import AdaptiveNormal
from credo.seeding import standard_normal
from credo.selection import parameter_owners

_BLOCK = 16
"""Draws that one matrix product computes; draw s has a fixed place in it, so that it does not depend on the others."""


class LastLayerGaussian(Posterior):
    r"""N(θ̄_k, S_k) for every output k of a linear layer, whose own parameters are the mean θ̄.

    Args:
        net: the network.
        names: the parameters of the layer to cover: its weight ``[K, D]``, and the bias ``[K]`` if it is trained.
    """

    def __init__(self, net: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self._owners = parameter_owners(net, names)

    @abstractmethod
    def variance(self) -> Draw:
        """The marginal variance of every weight, the diagonals of S_k.

        Returns:
            Name to tensor.
        """

    @abstractmethod
    def log_determinant(self) -> Tensor:
        """Σ_k log det S_k.

        Returns:
            A scalar.
        """

    @abstractmethod
    def _variance_along(self, features: Tensor) -> Tensor:
        """φᵀS_kφ ``[..., K]`` of complete features ``[..., P]``."""

    @abstractmethod
    def _perturbation(self) -> Callable[[Tensor], Tensor]:
        """A function from standard normal noise ``[K, S, P]`` to noise with the covariances S_k."""

    @override
    def names(self) -> list[str]:
        return list(self._owners)

    @override
    def mean(self) -> Draw:
        return {name: mean.detach() for name, mean in self._means().items()}

    def output_variance(self, features: Tensor) -> Tensor:
        """φᵀS_kφ, the variance of every output; differentiable.

        Args:
            features: the input of the layer, ``[..., D]``.

        Returns:
            ``[..., K]``, in at least 32 bits.
        """
        features = features.to(self._wide)
        if len(self._owners) > 1:
            features = torch.cat([features, features.new_ones(*features.shape[:-1], 1)], dim=-1)
        return self._variance_along(features)

    def kl_to(self, priors: Mapping[str, Distribution]) -> Tensor:
        r"""KL(q ‖ p) to independent Gaussians N(m_i, s_i²), in closed form; differentiable.

            KL = ½·Σ_i [ (S_ii + (θ̄_i − m_i)²)/s_i² − 1 + log s_i² ] − ½·log det S

        Args:
            priors: a Gaussian or :class:`credo.AdaptiveNormal` prior for every name, on the device of the weights.

        Returns:
            A scalar in nats.
        """
        total = -0.5 * self.log_determinant()
        variances = self.variance()
        for name, mean in self._means().items():
            variance, prior = variances[name], priors[name]
            mean = mean.to(variance.dtype)
            if isinstance(prior, AdaptiveNormal):
                center, scale = torch.zeros_like(mean), prior.best_scale(mean, variance.sqrt()).expand_as(mean)
            else:
                assert isinstance(prior, Normal)
                center, scale = prior.loc.to(mean).expand_as(mean), prior.scale.to(mean).expand_as(mean)
            ratio = (variance + (mean - center).square()) / scale.square()
            total = total + (0.5 * (ratio - 1.0) + scale.log()).sum()
        return total

    @override
    @torch.no_grad()
    def sampler(self, seed: int) -> Sampler:
        mean, perturb = self.mean(), self._perturbation()
        like = self._flat_mean().detach()
        memory: list[Tensor] = []

        @torch.no_grad()
        def draw(numbers: Sequence[int]) -> list[Draw]:
            noises = standard_normal([like], [(seed, s) for s in numbers], memory)
            blocks: dict[int, Tensor] = {}
            for s, (noise,) in zip(numbers, noises, strict=True):
                block = blocks.setdefault(s // _BLOCK, like.new_zeros(len(like), _BLOCK, like.shape[1]))
                block[:, s % _BLOCK] = noise
            moved = {number: perturb(block) for number, block in blocks.items()}
            drawn = [self._split(like + moved[s // _BLOCK][:, s % _BLOCK]) for s in numbers]
            return [{name: part.to(mean[name].dtype) for name, part in parts.items()} for parts in drawn]

        return draw

    def _means(self) -> dict[str, Tensor]:
        return {name: module.get_parameter(key) for name, (module, key) in self._owners.items()}

    @property
    def _wide(self) -> torch.dtype:
        """The dtype that is computed in."""
        return at_least_float32(next(iter(self._means().values())).dtype)

    def _flat_mean(self) -> Tensor:
        """θ̄, ``[K, P]``, differentiable."""
        parts = [mean.to(self._wide) for mean in self._means().values()]
        return torch.cat([part if part.dim() == 2 else part.unsqueeze(1) for part in parts], dim=1)

    def _split(self, flat: Tensor) -> Draw:
        """Parameters from ``[K, P]``."""
        parts = flat.split([mean[0].numel() for mean in self._means().values()], dim=1)
        return {n: part.reshape(mean.shape) for (n, mean), part in zip(self._means().items(), parts, strict=True)}


class CholeskyGaussian(LastLayerGaussian):
    r"""S_k = L_k·L_kᵀ with a learned factor L_k = diag(σ_k)·(I + M_k), σ = softplus(ρ), M_k strictly lower triangular.

    log det S_k = 2·Σ log σ_k, and M_k has no unit: it stays the same if features are rescaled.

    Args:
        net: the network.
        names: the weight of the layer, and its bias if that is trained.
        dense: whether M_k is learned; otherwise it is 0, and all weights are independent.
        initial_scale: σ at the start; M is 0.
    """

    correlations: nn.Parameter | None

    def __init__(self, net: nn.Module, names: Sequence[str], dense: bool = True, initial_scale: float = 0.1) -> None:
        super().__init__(net, names)
        start = torch.tensor(check_positive(initial_scale, "initial_scale"), dtype=torch.float64).expm1().log()
        flat = self._flat_mean().detach()
        self.rho = nn.Module()
        for name, mean in self._means().items():
            self.rho.register_parameter(
                as_key(name), nn.Parameter(torch.full_like(mean, float(start), dtype=self._wide))
            )
        size = flat.shape[1]
        self.register_parameter("correlations", nn.Parameter(flat.new_zeros(len(flat), size, size)) if dense else None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the parameters, but never to fewer than 32 bits, of which a step of learning would be lost."""
        before = [parameter.detach() for parameter in self.parameters()]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for parameter, old in zip(self.parameters(), before, strict=True):
            wide = at_least_float32(parameter.dtype)
            if parameter.dtype != wide:
                parameter.data = old.to(parameter.device, wide)
        return self

    def scale_parameters(self) -> dict[Tensor, Tensor]:
        """The parameter ρ of every mean, for :class:`credo.training.NaturalAdam`.

        Returns:
            Mean to ρ, both as parameters.
        """
        return {mean: self.rho.get_parameter(as_key(name)) for name, mean in self._means().items()}

    @override
    def variance(self) -> Draw:
        flat = self._scale().square()
        if self.correlations is not None:
            flat = flat * (1.0 + _lower(self.correlations).square().sum(-1))
        return self._split(flat)

    @override
    def log_determinant(self) -> Tensor:
        return 2.0 * self._scale().log().sum()

    @override
    def _variance_along(self, features: Tensor) -> Tensor:
        # φᵀLLᵀφ = ‖(I + M)ᵀ(σ∘φ)‖²
        if self.correlations is None:
            return F.linear(features.square(), self._scale().square())
        rows = features.reshape(-1, features.shape[-1]) * self._scale().unsqueeze(1)  # [K, N, P]
        white = torch.baddbmm(rows, rows, _lower(self.correlations))
        return white.square().sum(-1).mT.reshape(*features.shape[:-1], len(white))

    @override
    def _perturbation(self) -> Callable[[Tensor], Tensor]:
        scale = self._scale().unsqueeze(1)
        if self.correlations is None:
            return lambda noise: scale * noise
        lower = _lower(self.correlations)
        return lambda noise: scale * torch.baddbmm(noise, noise, lower.mT)

    def _scale(self) -> Tensor:
        """σ, ``[K, P]``, kept off zero, so that its logarithm is finite."""
        rho = [r if r.dim() == 2 else r.unsqueeze(1) for r in self.rho.parameters()]
        scale = F.softplus(torch.cat(rho, dim=1))
        return scale.clamp_min(torch.finfo(scale.dtype).tiny)

    @override
    def extra_repr(self) -> str:
        """The form of the covariance.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        return "diagonal" if self.correlations is None else "dense"


class OutputPrecisionGaussian(WideBuffers, LastLayerGaussian):
    r"""S_k = P_k⁻¹ with a precision for every output, P_k = diag(1/s²) + Σ_n λ_nk·φ_n·φ_nᵀ, in float64.

    λ_nk is the curvature of −log p(y_n | f) in output k. Before any data, P_k is the precision of the prior.

    Args:
        net: the network.
        names: the weight of the layer, and its bias if that is trained.
        prior_precision: 1/s² of every weight, ``[K, P]``.
    """

    precision: Tensor

    def __init__(self, net: nn.Module, names: Sequence[str], prior_precision: Tensor) -> None:
        super().__init__(net, names)
        self.register_buffer("precision", prior_precision.double().diag_embed())
        self._found: tuple[Tensor, int, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_found": None}  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def shift(self, by: Tensor) -> None:
        """Move the mean.

        Args:
            by: ``[K, P]``.
        """
        for name, part in self._split(by).items():
            self._means()[name].add_(part)

    def solve(self, right: Tensor) -> Tensor:
        """P_k⁻¹·r_k for every output.

        Args:
            right: r, ``[K, P]``, in float64.

        Returns:
            ``[K, P]``.
        """
        root = self._root()
        return (root @ (root.mT @ right.unsqueeze(-1))).squeeze(-1)

    @override
    def variance(self) -> Draw:
        return self._split(self._root().square().sum(-1))

    @override
    def log_determinant(self) -> Tensor:
        return 2.0 * self._root().diagonal(dim1=1, dim2=2).log().sum()

    @override
    def _variance_along(self, features: Tensor) -> Tensor:
        wide = features.double()
        return torch.stack([(wide @ root).square().sum(-1) for root in self._root()], dim=-1).to(features.dtype)

    @override
    def _perturbation(self) -> Callable[[Tensor], Tensor]:
        root = self._root()
        return lambda noise: (noise.double() @ root.mT).to(noise.dtype)

    def _root(self) -> Tensor:
        """R with S = R·Rᵀ, the inverse transposed Cholesky factors of P, ``[K, P, P]``; computed once for every P."""
        key = self.precision
        if self._found is None or self._found[0] is not key or self._found[1] != key._version:
            factor = torch.linalg.cholesky(key.double())
            eye = torch.eye(key.shape[-1], dtype=torch.float64, device=key.device).expand_as(factor)
            self._found = key, key._version, torch.linalg.solve_triangular(factor, eye, upper=False).mT
        return self._found[2]


def _lower(matrices: Tensor) -> Tensor:
    """The strictly lower triangles; on a CPU a product with a mask is faster than ``tril`` of many matrices."""
    return matrices * torch.ones_like(matrices[0]).tril(-1)
