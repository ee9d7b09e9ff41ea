r"""A Gaussian posterior with a diagonal plus low-rank covariance, q(w | θ) = N(μ, diag(σ²) + U·Uᵀ).

With R columns, U = diag(σ)·V and S = I + Vᵀ·V, which is R × R, the matrix determinant lemma and Woodbury's identity are

    log det(diag(σ²) + U·Uᵀ) = 2·Σᵢ log σᵢ + log det S,
    dᵀ·(diag(σ²) + U·Uᵀ)⁻¹·d = ‖e‖² − ‖L⁻¹·Vᵀ·e‖²,    e = d/σ,  S = L·Lᵀ,

so that nothing of size P × P is ever formed for P weights.

A prior under which the weights are independent sees q only through the variances vᵢ = σᵢ²·(1 + ‖Vᵢ‖²) of the weights
one by one. The KL is the sum of theirs, and the total correlation of q, which is in closed form:

    KL(q ‖ p) = Σᵢ KL(N(μᵢ, vᵢ) ‖ pᵢ) + C(q),    C(q) = ½·[Σᵢ log(1 + ‖Vᵢ‖²) − log det S] ≥ 0.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal, kl_divergence
from typing_extensions import override

from credo._arguments import check_integer
from credo.functional import Draw, Sampler
from credo.posteriors._gaussian_kl import KLPlan, choose_kl, half_square, sampled_kl
from credo.posteriors._gaussian_sampler import low_rank_sampler
from credo.posteriors._wide_parameters import WideParameters
from credo.posteriors.base import Posterior
from credo.posteriors.mean_field import MeanField
from credo.priors import Prior, move_priors, resolve
from credo.seeding import seeded

_INITIAL_FACTOR = 0.1
"""The standard deviation of V at the start. V = 0 would be a saddle point: V and −V are the same distribution."""


class LowRankGaussian(Posterior):
    r"""q(w | θ) = N(μ, diag(σ²) + U·Uᵀ) over the named parameters of a network, all of them jointly.

    The network's parameters *are* μ. Learned beside them are ρ, with σ = softplus(ρ), and V, with U = diag(σ)·V: the
    columns are in units of σ, so that steps of one size suit all weights.

    Args:
        net: the network.
        names: the parameters to cover, as :func:`credo.selection.select` returns them.
        rank: R, the number of columns of U.
        initial_scale: σ at the start, for every weight. V starts with small random numbers.

    Attributes:
        diagonal: the mean-field posterior N(μ, diag(σ²)).
        rank: R.

    Example:
        >>> model = credo.BayesByBackprop(net, credo.Gaussian(0.1), rank=5).fit((x, y), epochs=20)
        >>> model.posterior.columns(), model.posterior.scale(), model.posterior.sample(10)

    References: V. M.-H. Ong, D. J. Nott, M. S. Smith, "Gaussian variational approximation with a factor covariance
    structure", Journal of Computational and Graphical Statistics 2018. M. Tomczak, S. Swaroop, R. E. Turner,
    "Efficient low rank Gaussian variational inference for neural networks", NeurIPS 2020.
    """

    def __init__(self, net: nn.Module, names: Sequence[str], rank: int = 5, initial_scale: float = 0.01) -> None:
        super().__init__(net)
        self.rank = check_integer(rank, "rank", minimum=1)
        self.diagonal = MeanField(net, names, initial_scale)
        self.factor = WideParameters()
        for name in names:
            rho = self.diagonal.rho.get(name)
            self.factor.add(name, _INITIAL_FACTOR * torch.randn(rank, *rho.shape, dtype=rho.dtype, device=rho.device))

    @override
    def names(self) -> list[str]:
        return self.diagonal.names()

    @override
    def mean(self) -> Draw:
        return self.diagonal.mean()

    def scale_parameters(self) -> dict[Tensor, Tensor]:
        """The parameter ρ of every mean, for :class:`credo.training.NaturalAdam`.

        Returns:
            Mean to ρ, both as parameters.
        """
        return self.diagonal.scale_parameters()

    @override
    def extra_repr(self) -> str:
        """The rank.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        return f"rank {self.rank}"

    def scale(self) -> dict[str, Tensor]:
        """The standard deviation √(σ² + Σ_k U_k²) of every weight by itself, differentiable.

        Returns:
            Name to tensor.
        """
        return {name: self._marginal(name).scale for name in self.names()}

    def columns(self) -> dict[str, Tensor]:
        """The columns of U, differentiable.

        Returns:
            Name to tensor ``[R, *shape]``.
        """
        scale = self.diagonal.scale()
        return {name: scale[name] * self.factor.get(name) for name in scale}

    @override
    @torch.no_grad()
    def sampler(self, seed: int) -> Sampler:
        return low_rank_sampler(self.mean(), self.diagonal.scale(), self.columns(), 1.0, seed)

    def rsample(self, names: Sequence[str], scale: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One reparameterized draw w = μ + U·z + σ·ε, from torch's default generator.

        Args:
            names: the parameters to draw. Of the others the mean given z is returned, μ + U·z, for layers that add the
                rest of the noise to their outputs.
            scale: the σ of ``names``.

        Returns:
            Name to tensor, differentiable.
        """
        like = next(self.factor.parameters())
        along = torch.randn(self.rank, dtype=like.dtype, device=like.device)
        weights = {}
        for name, mean in self.mean().items():
            q = self.diagonal._distribution(name)
            weight = torch.addcmul(q.loc, q.scale, torch.tensordot(along, self.factor.get(name), 1))
            if name in names:
                weight = torch.addcmul(weight, scale[name], torch.randn_like(scale[name]))
            weights[name] = weight.to(mean.dtype)
        return weights

    def kl(self, prior: Prior, samples: int = 1, seed: int | None = None, kind: str = "auto") -> Tensor:
        """KL(q ‖ prior), over all weights jointly.

        Args:
            prior: a distribution, or a mapping from name patterns to distributions.
            samples: number of draws for a Monte Carlo estimate of E_q[log p].
            seed: for the Monte Carlo estimate.
            kind: ``"auto"``, ``"analytic"`` or ``"sampled"``, as for :meth:`MeanField.kl_by_name`.

        Returns:
            A scalar in nats, differentiable.

        Raises:
            UnsupportedError: ``kind="analytic"``, but a prior has no closed form.
        """
        check_integer(samples, "samples", minimum=1)
        like = next(self.factor.parameters())
        priors = resolve(prior, {name: mean.shape for name, mean in self.mean().items()})
        kinds = choose_kl(kind, priors)
        priors = move_priors(priors, like.device, like.dtype)
        with seeded(seed, like.device):
            terms = [self.kl_of(name, priors[name], kinds[name], samples) for name in self.names()]
        return torch.stack([*terms, self.total_correlation()]).sum()

    def kl_of(
        self, name: str, prior: Distribution, kind: str, samples: int = 1, weight: Tensor | None = None
    ) -> Tensor:
        """Σᵢ KL(N(μᵢ, vᵢ) ‖ prior) over the weights of one parameter tensor, each by itself.

        Args:
            name: the parameter.
            prior: its prior, on the same device.
            kind: ``"analytic"`` or ``"sampled"``.
            samples: number of draws for ``"sampled"``.
            weight: a draw to use for ``"sampled"`` instead of fresh ones.

        Returns:
            A scalar in nats, differentiable.
        """
        q = self._marginal(name, prior)
        weight = None if name in self._padding else weight  # a draw around the vector that the network has
        return (kl_divergence(q, prior) if kind == "analytic" else sampled_kl(q, prior, samples, weight)).sum()

    def total_correlation(self) -> Tensor:
        """C(q) = KL(q ‖ ∏ᵢ N(μᵢ, vᵢ)), what the weights know of each other.

        Returns:
            A scalar in nats, differentiable.
        """
        growth = [torch.log1p(self._growth(name)).sum() for name in self.names()]
        return 0.5 * (torch.stack(growth).sum() - _log_determinant(self._root()))

    def plan(
        self, priors: Mapping[str, Distribution], kinds: Mapping[str, str], squared: Container[str] = ()
    ) -> KLPlan:
        """What :meth:`scale_and_kl` needs to know.

        Args:
            priors: the prior of every parameter.
            kinds: ``"analytic"`` or ``"sampled"`` for every parameter.
            squared: the parameters of which σ²/2 is wanted instead of σ.

        Returns:
            The tensors under Gaussian priors, which are computed together, and the others.
        """
        closed = [name for name, kind in kinds.items() if kind == "analytic" and isinstance(priors[name], Normal)]
        gaussian = dict.fromkeys(closed, "analytic")
        others = [(name, priors[name], kind) for name, kind in kinds.items() if name not in gaussian]
        return self.diagonal.plan(priors, gaussian, squared)._replace(others=others)

    def scale_and_kl(self, plan: KLPlan) -> tuple[dict[str, Tensor], list[Tensor]]:
        """σ of every tensor and the closed-form terms of the KL.

        Under a prior N(m, s²) the logarithms of 1 + ‖Vᵢ‖² cancel: KL(q ‖ p) is that of N(μ, diag(σ²)), plus
        Σᵢ σᵢ²·‖Vᵢ‖²/(2s²) − ½·log det S.

        Args:
            plan: from :meth:`plan`.

        Returns:
            σ of the diagonal part, or σ²/2 where the plan says so, by name; and the terms of the KL in nats.
        """
        values, terms = self.diagonal.scale_and_kl(plan._replace(others=[]))
        terms.append(-0.5 * _log_determinant(self._root()))
        for group in plan.groups:
            assert isinstance(group.prior, Normal)
            for name in group.names:
                half_variance = values[name] if group.squared else half_square(values[name])
                terms.append((half_variance * self._growth(name) / group.prior.scale.square()).sum())
        for name, prior, kind in plan.others:
            scale = self.diagonal._scale(name)
            values[name] = half_square(scale) if name in plan.squared else scale
            terms += [self.kl_of(name, prior, kind)] if kind == "analytic" else []
            terms.append(0.5 * torch.log1p(self._growth(name)).sum())
        return values, terms

    def log_prob(self, weights: Mapping[str, Tensor]) -> Tensor:
        """log q(w) of all weights jointly.

        Args:
            weights: name to tensor.

        Returns:
            A scalar in nats.
        """
        root = self._root()
        along, total = root.new_zeros(self.rank), root.new_zeros(())
        for name in self.names():
            q = self.diagonal._distribution(name)
            along = along + self.factor.get(name).flatten(1) @ ((weights[name] - q.loc) / q.scale).flatten()
            total = total + q.log_prob(weights[name]).sum()
        inside = torch.linalg.solve_triangular(root, along.unsqueeze(1), upper=False)
        log_density: Tensor = total + 0.5 * (inside.square().sum() - _log_determinant(root))
        return log_density

    def _root(self) -> Tensor:
        """L of S = I + Vᵀ·V = L·Lᵀ, ``[R, R]``."""
        like = next(self.factor.parameters())
        inner = torch.eye(self.rank, dtype=like.dtype, device=like.device)
        for name in self.names():
            columns = self.factor.get(name).flatten(1)
            inner = torch.addmm(inner, columns, columns.T)
        root: Tensor = torch.linalg.cholesky_ex(inner).L  # S ≥ I; the check of it would wait for a GPU
        return root

    def _marginal(self, name: str, prior: Distribution | None = None) -> Normal:
        """N(μᵢ, vᵢ) of the weights of one tensor, as its prior sees it if one is given."""
        own = self.diagonal._distribution(name, prior)
        return Normal(own.loc, own.scale * (1.0 + self._growth(name)).sqrt(), validate_args=False)

    def _growth(self, name: str) -> Tensor:
        """‖Vᵢ‖² of the weights of one tensor."""
        factor = self.factor.get(name)
        growth: Tensor = torch.linalg.vecdot(factor, factor, dim=0)
        return growth


def _log_determinant(root: Tensor) -> Tensor:
    """log det S, from its Cholesky factor."""
    return 2.0 * root.diagonal().log().sum()
