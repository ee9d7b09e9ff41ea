"""Gaussian priors whose variances are unknown too: one object for samplers and for variational Bayes."""

from __future__ import annotations

import math
import typing
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints, kl_divergence
from torch.distributions.kl import register_kl

from credo._arguments import check_option, check_positive
from credo.errors import UnsupportedError
from credo.priors import register_prior

_GROUPS = ("layer", "input", "unit")


class GammaPrecisions(NamedTuple):
    """Gamma distributions of the precisions of groups of weights.

    Attributes:
        concentration: the same for all groups.
        rate: one per group, a tensor that broadcasts against the weights, in float64.
    """

    concentration: float
    rate: Tensor


@register_prior
class HierarchicalNormal(Distribution):
    r"""A zero-mean Gaussian prior whose variance is unknown, one per group g of the weights of a parameter tensor.

    .. math:: w_k \mid s_g^2 \sim N(0, s_g^2), \qquad s_g^2 \sim \mathrm{InvGamma}(a, b).

    The hyperprior is conjugate. Samplers (:class:`credo.HMC`, :class:`credo.MCLMC`, :class:`credo.SGLD`,
    :class:`credo.SGHMC`) draw the variances in turn with the weights, by Gibbs sampling from

    .. math:: s_g^2 \mid w \sim \mathrm{InvGamma}(a + n_g/2,\; b + \tfrac12 \sum_{k \in g} w_k^2),

    and :class:`credo.BayesByBackprop` uses the best ones for its posterior as it stands (empirical Bayes), as with
    :class:`credo.AdaptiveNormal`, which is the case of one group per tensor.

    Args:
        groups: which weights share a variance. ``"layer"``: all of a parameter tensor, weights and biases apart.
            ``"input"``: those of one input of a layer, dim 1 of its weight, so that irrelevant inputs are switched off
            (automatic relevance determination). ``"unit"``: those of one unit, dim 0 of its weight. Biases and other
            tensors of one dimension are one group in every case.
        shape: a.
        rate: b.

    Example:
        >>> credo.HMC(net, credo.Gaussian("learned"), prior=credo.HierarchicalNormal("input"))
        >>> credo.BayesByBackprop(net, credo.Gaussian("learned"), prior=credo.HierarchicalNormal("input"))

    References: R. M. Neal, "Bayesian learning for neural networks", Springer 1996. D. J. C. MacKay, "Bayesian nonlinear
    modeling for the prediction competition", ASHRAE Transactions 100, 1994 (automatic relevance determination).
    """

    arg_constraints: typing.ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.real

    def __init__(self, groups: str = "layer", shape: float = 1.0, rate: float = 1.0) -> None:
        self.groups = check_option(groups, "groups", _GROUPS)
        self.shape, self.rate = check_positive(shape, "shape"), check_positive(rate, "rate")
        super().__init__(validate_args=False)

    def group_sums(self, values: Tensor, shape: torch.Size) -> Tensor:
        """The sum of ``values`` over every group.

        Args:
            values: ``[..., *shape]``.
            shape: of the parameter tensor.

        Returns:
            Sums that broadcast against ``values``: each summed dimension has size 1.
        """
        dims, leading = len(shape), values.dim() - len(shape)
        own = {"layer": None, "input": 1, "unit": 0}[self.groups] if dims > 1 else None
        return values.sum([leading + i for i in range(dims) if i != own], keepdim=True) if dims else values

    @torch.no_grad()
    def best_scale(self, mean: Tensor, scale: Tensor) -> Tensor:
        """ŝ for a posterior N(mean, scale²), which minimizes KL(q ‖ p(w | s²)) − log p(s²).

        Args:
            mean: μ of the weights of one tensor.
            scale: σ of the weights.

        Returns:
            ŝ of every weight, ŝ_g² = (2b + Σ (μ² + σ²))/(n_g + 2a + 2).
        """
        squares = self.group_sums(torch.addcmul(mean.square(), scale, scale), mean.shape)
        size = mean.numel() / max(squares.numel(), 1)
        return ((2.0 * self.rate + squares) / (size + 2.0 * self.shape + 2.0)).sqrt().expand_as(mean)

    def log_marginal(self, weight: Tensor) -> Tensor:
        r"""log p(w) of one parameter tensor, the variances integrated out: a multivariate Student t per group.

        .. math:: \sum_g \log \frac{\Gamma(a + n_g/2)\, b^a}{\Gamma(a)\, (2\pi)^{n_g/2}}
            \Bigl(b + \tfrac12 \sum_{k \in g} w_k^2\Bigr)^{-(a + n_g/2)}.

        Args:
            weight: the tensor.

        Returns:
            A scalar in nats, differentiable.
        """
        squares = self.group_sums(weight.square(), weight.shape)
        size = weight.numel() / max(squares.numel(), 1)
        a = self.shape + 0.5 * size
        constant = math.lgamma(a) - math.lgamma(self.shape) - 0.5 * size * math.log(2.0 * math.pi)
        return (constant + self.shape * math.log(self.rate) - a * (self.rate + 0.5 * squares).log()).sum()

    @torch.no_grad()
    def precisions_given(self, weights: Tensor, shape: torch.Size) -> GammaPrecisions:
        """The distribution of 1/s² of every group given the weights, for a step of Gibbs sampling.

        Args:
            weights: values of one parameter tensor, ``[..., *shape]``.
            shape: of the parameter tensor.

        Returns:
            Its parameters: concentration a + n_g/2 and rate b + ½ Σ w².
        """
        squares = self.group_sums(weights.double().square(), shape)
        size = weights.numel() / max(squares.numel(), 1)
        return GammaPrecisions(self.shape + 0.5 * size, self.rate + 0.5 * squares)

    def draw_weights(self, shape: torch.Size) -> Tensor:
        """One draw from the prior, by torch's default generator: variances, then weights.

        Args:
            shape: of the parameter tensor.

        Returns:
            Weights of that shape, on the CPU.
        """
        like = self.group_sums(torch.zeros(shape), shape)
        gamma = torch._standard_gamma(torch.full_like(like, self.shape))
        return torch.randn(shape) * (gamma / self.rate).rsqrt()

    def log_prob(self, value: Tensor) -> typing.Never:
        """Not available: weights of a group are not independent; see :meth:`log_marginal`.

        Args:
            value: weights.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "the weights under HierarchicalNormal are not independent, so they have no densities one by one: use it "
            "with a sampler such as credo.HMC, or with credo.BayesByBackprop and kl='auto'"
        )

    def get_config(self) -> dict[str, object]:
        """The constructor's arguments.

        Returns:
            Their values by name.
        """
        return {"groups": self.groups, "shape": self.shape, "rate": self.rate}

    def __repr__(self) -> str:
        return f"HierarchicalNormal(groups={self.groups!r}, shape={self.shape:g}, rate={self.rate:g})"


@register_kl(Normal, HierarchicalNormal)  # type: ignore[untyped-decorator]
def _kl_normal_hierarchical(q: Normal, p: HierarchicalNormal) -> Tensor:
    """KL(q ‖ N(0, ŝ²)), elementwise, with ŝ held constant."""
    return kl_divergence(q, Normal(torch.zeros_like(q.loc), p.best_scale(q.loc, q.scale), validate_args=False))
