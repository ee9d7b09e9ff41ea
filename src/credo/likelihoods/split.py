"""Likelihoods of distilled networks, whose outputs are a predictive distribution with both parts of its uncertainty."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from credo._arguments import check_integer
from credo.errors import InputError, UnsupportedError
from credo.likelihoods.base import REGISTRY, Likelihood
from credo.predictive import ClassPredictive, Predictive, RealPredictive
from credo.predictive.classes import SplitCategoricalComponents
from credo.predictive.components import RealComponents, log_average_exp, quadrature
from credo.predictive.location_scale import GaussianComponents
from credo.predictive.real import chunk_size

_SMALLEST_SHARE = 1e-6
"""Of the variance or entropy that each part is at least, so that its logarithm is finite."""


_POINTS = 512  # per distribution, on which a KL is integrated
_NODES = 8  # of a trapezoidal rule for one Gaussian
_DRAWS_PER_STEP = 16
_MAX_DRAWS = 256  # in targets
_QUANTILES = 64  # that stand for a mixture of other components than Gaussian ones


class SplitLikelihood(Likelihood):
    """A likelihood that also says how far a distilled network is from its teacher."""

    def targets(self, predictive: Predictive) -> Tensor:
        """What the network learns of the rows of a teacher's prediction, ``[B, T]``."""
        raise NotImplementedError

    def n_outputs(self, target: Tensor) -> int:
        """The number of outputs that a network needs for targets ``[B, T]``: T, unless a likelihood says otherwise."""
        return target.shape[-1]

    def divergence(self, output: Tensor, target: Tensor) -> Tensor:
        """The training loss of each row in nats, ``[B]``: 0 if student and teacher are the same, up to quadrature."""
        raise NotImplementedError

    def kl(self, teacher: Predictive, student: Predictive) -> Tensor:
        """KL(teacher ‖ student) of the predictive distributions of each row in nats, ``[B]``."""
        raise NotImplementedError


@REGISTRY.register
class SplitGaussian(SplitLikelihood):
    r"""N(y | m, a + e) with aleatoric variance a and epistemic variance e; the network outputs [m, log a, log e].

    For a teacher with moments (m_t, a_t, e_t) and v = a + e, the divergence is

        KL(N(m_t, v_t) ‖ N(m, v)) + g(a_t/a) + g(e_t/e),    g(r) = (r − 1 − log r)/2.

    The first term is KL(teacher ‖ student) up to a constant of the teacher, whatever its distribution: a Gaussian is
    fitted by its moments. The others are KL(N(0, a_t) ‖ N(0, a)) and KL(N(0, e_t) ‖ N(0, e)).

    Example:
        >>> likelihood = SplitGaussian()
        >>> p = likelihood.predictive(torch.zeros(1, 4, 3))
        >>> torch.equal(p.epistemic, p.aleatoric)
        True
    """

    @override
    def components(self, outputs: Tensor) -> GaussianComponents:
        if outputs.shape[-1] % 3:
            raise InputError(
                "a distilled network outputs [mean, log aleatoric, log epistemic], a multiple of 3, but its output has "
                f"size {outputs.shape[-1]}"
            )
        mean, aleatoric, epistemic = outputs.chunk(3, -1)
        return GaussianComponents(mean, torch.logaddexp(aleatoric, epistemic), aleatoric.exp(), epistemic.exp())

    @override
    def get_config(self) -> dict[str, object]:
        return {"name": "SplitGaussian"}

    @override
    def targets(self, predictive: Predictive) -> Tensor:
        return torch.cat([predictive.mean, *_check_variance(_log_parts(predictive))], -1)

    @override
    def divergence(self, output: Tensor, target: Tensor) -> Tensor:
        own, teacher = (self.components(t[None]) for t in (output, target))
        mean_error = (teacher.mean - own.mean).square() * (-own.log_variance).exp()
        total = 0.5 * mean_error + _variance_divergence(teacher.log_variance - own.log_variance)
        logs = zip(target.chunk(3, -1)[1:], output.chunk(3, -1)[1:], strict=True)
        parts = sum(_variance_divergence(wanted - found) for wanted, found in logs)
        return (total[0] + parts).sum(-1)

    @override
    def kl(self, teacher: Predictive, student: Predictive) -> Tensor:
        """−H[teacher] − E_teacher[log student], the second term in closed form; summed over outputs."""
        assert isinstance(student.components, RealComponents)
        own = student.components
        assert isinstance(own, GaussianComponents)
        spread = teacher.variance + (teacher.mean - own.mean[0]).square()
        cross = own.entropy[0] + 0.5 * (spread / own.variance[0] - 1.0)
        return (cross - teacher.entropy).flatten(1).sum(1)


@REGISTRY.register
class SplitMixture(SplitLikelihood):
    r"""(1/K) Σ_k N(y | m_k, v_k) for one real target, a share ρ of each v_k being aleatoric.

    The network outputs [m_1, …, m_K, log v_1, …, log v_K, logit ρ], so that

        a = ρ · mean_k v_k,    e = (1 − ρ) · mean_k v_k + var_k m_k.

    A mixture follows the tails and the skewness of a teacher that is a mixture over draws, which one Gaussian cannot.
    For a teacher Σ_s N(m_s, v_s)/S the divergence is

        −H[teacher] − mean_s E_z[log q(m_s + √v_s z)] + w · (g(a_t/a) + g(e_t/e)),    g(r) = (r − 1 − log r)/2,

    with z ~ N(0, 1) and w = 0.1. The expectation is the trapezoidal rule on eight points, shifted at random in every
    step: on fixed points, narrow components there would gain without limit. A step uses at most 16 of the draws, chosen
    at random. ``targets`` are m, log v, log a_t, log e_t and H[teacher].

    Args:
        components: K.

    Example:
        >>> p = SplitMixture(2).predictive(torch.tensor([[[-1.0, 1.0, 0.0, 0.0, 0.0]]]))
        >>> float(p.aleatoric), float(p.epistemic)
        (0.5, 1.5)
    """

    part_weight: ClassVar[float] = 0.1

    def __init__(self, components: int = 3) -> None:
        super().__init__()
        self.n_components = check_integer(components, "components", minimum=1)

    @override
    def components(self, outputs: Tensor) -> GaussianComponents:
        k = self.n_components
        if outputs.shape[-1] != 2 * k + 1:
            raise InputError(
                f"a network distilled with {k} components outputs {2 * k + 1} values, their means, their log variances "
                f"and the logit of the aleatoric share, but its output has size {outputs.shape[-1]}"
            )
        # draws are dim 0: [S, B, K] becomes [S·K, B, 1]
        mean, log_variance = (t.movedim(-1, 1).flatten(0, 1).unsqueeze(-1) for t in outputs[..., :-1].chunk(2, -1))
        logit = outputs[:, None, :, -1:].expand(-1, k, -1, -1).flatten(0, 1)
        variance = log_variance.exp()
        return GaussianComponents(mean, log_variance, logit.sigmoid() * variance, (-logit).sigmoid() * variance)

    @override
    def get_config(self) -> dict[str, object]:
        return {"name": "SplitMixture", "components": self.n_components}

    @override
    def targets(self, predictive: Predictive) -> Tensor:
        parts = _check_variance(_log_parts(predictive))
        if predictive.mean.shape[1] != 1:
            raise UnsupportedError("a mixture is distilled from one real target: use SplitGaussian for several")
        gaussians = _as_gaussians(predictive)
        moments = [t.squeeze(-1).T for t in (gaussians.mean, gaussians.log_variance)]
        return torch.cat([*moments, *parts, predictive.entropy], -1)

    @override
    def n_outputs(self, target: Tensor) -> int:
        return 2 * self.n_components + 1

    @override
    def divergence(self, output: Tensor, target: Tensor) -> Tensor:
        own = RealPredictive(self.components(output[None]))
        draws = (target.shape[-1] - 3) // 2
        mean, log_variance, wanted, entropy = target.split([draws, draws, 2, 1], -1)
        if draws > _DRAWS_PER_STEP and self.training:
            some = torch.rand(draws, device=target.device).topk(_DRAWS_PER_STEP).indices
            mean, log_variance = mean[:, some], log_variance[:, some]
        shift = torch.rand_like(entropy) if self.training else torch.full_like(entropy, 0.5)
        z = torch.arange(_NODES, device=target.device) - _NODES / 2 + shift
        y = mean[:, :, None] + (0.5 * log_variance).exp()[:, :, None] * z[:, None]  # [B, S, nodes]
        log_q = _log_density(own, y.flatten(1).T[..., None])[..., 0].T.view_as(y)
        cross = -(log_q.mean(1) * (-0.5 * z.square()).softmax(-1)).sum(-1)
        parts = _variance_divergence(wanted - torch.cat(_log_parts(own), -1)).sum(-1)
        loss: Tensor = cross - entropy[:, 0] + self.part_weight * parts
        return loss

    @override
    def kl(self, teacher: Predictive, student: Predictive) -> Tensor:
        """∫ p_t (log p_t − log p) dy, by quadrature on a grid that resolves all components of both."""
        pair = [p.double() for p in (teacher, student)]
        size = chunk_size(pair[0].mean.device, 4 * _POINTS * sum(p.n_draws for p in pair))
        found = []
        for start in range(0, len(teacher), size):
            parts = [p[start : start + size] for p in pair]
            grids = [p.components.grid(_POINTS) for p in parts if isinstance(p.components, RealComponents)]
            y, areas = quadrature(torch.cat(grids).sort(0).values, discrete=False)
            wanted, own = (_log_density(p, y) for p in parts)
            found.append((areas * wanted.exp() * (wanted - own)).sum(0)[:, 0])
        return torch.cat(found)


@REGISTRY.register
class SplitCategorical(SplitLikelihood):
    r"""Categorical(y | p) with a share ρ of its entropy that is epistemic; the network outputs [log p, logit ρ].

    For a teacher with mean probabilities p_t, entropy H_t and mutual information ρ_t H_t, the divergence is

        KL(p_t ‖ p) + H_t · KL(Bernoulli(ρ_t) ‖ Bernoulli(ρ)).

    The first term is the KL of the predictive distributions. Ensemble distribution distillation (Malinin et al. 2020)
    fits a Dirichlet to the teacher's draws instead; its digamma functions are not in ONNX, and its mean is then not
    fitted by the predictive KL alone.

    Example:
        >>> p = SplitCategorical().predictive(torch.zeros(1, 4, 3))
        >>> torch.allclose(p.mutual_information, 0.5 * p.entropy)
        True

    Reference: A. Malinin, B. Mlodozeniec, M. Gales. Ensemble distribution distillation. ICLR 2020.
    """

    @override
    def components(self, outputs: Tensor) -> SplitCategoricalComponents:
        return SplitCategoricalComponents(outputs[..., :-1].log_softmax(-1), share=outputs[..., -1].sigmoid())

    @override
    def get_config(self) -> dict[str, object]:
        return {"name": "SplitCategorical"}

    @override
    def targets(self, predictive: Predictive) -> Tensor:
        if not isinstance(predictive, ClassPredictive) or predictive.mean.ndim != 2:
            raise UnsupportedError("real targets of shape [rows, outputs] can be distilled, and classes of [rows]")
        entropy = predictive.entropy
        tiny = torch.finfo(entropy.dtype).tiny
        share = (predictive.mutual_information / entropy.clamp(min=tiny)).clamp(_SMALLEST_SHARE, 1 - _SMALLEST_SHARE)
        return torch.cat([predictive.mean.clamp(min=tiny).log(), share.logit()[:, None]], -1)

    @override
    def divergence(self, output: Tensor, target: Tensor) -> Tensor:
        log_p, wanted = output[..., :-1].log_softmax(-1), target[..., :-1].log_softmax(-1)
        kl = F.kl_div(log_p, wanted, log_target=True, reduction="none").sum(-1)
        entropy = -(wanted.exp() * wanted).sum(-1)
        share = target[..., -1].sigmoid()
        cross = F.binary_cross_entropy_with_logits(output[..., -1], share, reduction="none")
        own = F.binary_cross_entropy_with_logits(target[..., -1], share, reduction="none")
        return kl + entropy * (cross - own)

    @override
    def kl(self, teacher: Predictive, student: Predictive) -> Tensor:
        """Σ_c p_t (log p_t − log p)."""
        wanted = teacher.mean
        tiny = torch.finfo(wanted.dtype).tiny
        return (wanted * (wanted.clamp(min=tiny).log() - student.mean.clamp(min=tiny).log())).sum(-1)


def _log_parts(predictive: Predictive) -> list[Tensor]:
    """The logarithms of the aleatoric and the epistemic variance of real targets, ``[B, D]`` each."""
    if not isinstance(predictive, RealPredictive) or predictive.components.discrete or predictive.mean.ndim != 2:
        raise UnsupportedError("real targets of shape [rows, outputs] can be distilled, and classes of [rows]")
    variance = predictive.variance
    return [part.maximum(_SMALLEST_SHARE * variance).log() for part in (predictive.aleatoric, predictive.epistemic)]


def _check_variance(logs: list[Tensor]) -> list[Tensor]:
    """``logs``, or ``UnsupportedError`` if a variance is infinite."""
    if not all(bool(part.isfinite().all()) for part in logs):
        raise UnsupportedError("a prediction with infinite variance cannot be distilled into Gaussians")
    return logs


def _as_gaussians(predictive: Predictive) -> GaussianComponents:
    """Gaussians ``[S, B, 1]`` of equal weight: those of a Gaussian mixture, or narrow ones at quantiles of another."""
    components, weights = predictive.components, predictive.weights
    if not isinstance(components, GaussianComponents):
        levels = (torch.arange(_QUANTILES, dtype=torch.float64) + 0.5) / _QUANTILES
        points = predictive.quantile(levels)
        gaps = torch.cat([points[:1], 0.5 * (points[:-1] + points[1:]), points[-1:]]).diff(dim=0)
        tiny = _SMALLEST_SHARE * predictive.variance
        return GaussianComponents(points, (0.25 * gaps.square()).maximum(tiny).log())
    draws = predictive.n_draws
    if weights is None and draws <= _MAX_DRAWS:
        return components
    levels = (torch.arange(_MAX_DRAWS, device=components.mean.device) + 0.5) / _MAX_DRAWS
    total = levels.new_full((draws,), 1 / draws) if weights is None else weights.to(levels)
    picked = torch.searchsorted(total.cumsum(0), levels).clamp(max=draws - 1)
    return components.map(lambda t: t[picked])


def _log_density(predictive: Predictive, y: Tensor) -> Tensor:
    """The log density of the mixture at points ``[Q, B, 1]``."""
    return log_average_exp(predictive.components.log_density(y[:, None]).transpose(0, 1), predictive.weights)


def _variance_divergence(log_ratio: Tensor) -> Tensor:
    """g(r) = (r − 1 − log r)/2 of log r."""
    return 0.5 * (log_ratio.exp() - 1.0 - log_ratio)
