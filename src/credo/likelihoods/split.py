"""Likelihoods of distilled networks, whose outputs are a predictive distribution with both parts of its uncertainty."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from credo.errors import InputError, UnsupportedError
from credo.likelihoods.base import REGISTRY, Likelihood
from credo.predictive import ClassPredictive, Predictive, RealPredictive
from credo.predictive.classes import SplitCategoricalComponents
from credo.predictive.components import RealComponents
from credo.predictive.location_scale import GaussianComponents

_SMALLEST_SHARE = 1e-6
"""Of the variance or entropy that each part is at least, so that its logarithm is finite."""


class SplitLikelihood(Likelihood):
    """A likelihood that also says how far a distilled network is from its teacher."""

    def targets(self, predictive: Predictive) -> Tensor:
        """What the network should output for the rows of a teacher's prediction, ``[B, K]``."""
        raise NotImplementedError

    def divergence(self, output: Tensor, target: Tensor) -> Tensor:
        """The training loss of each row in nats, ``[B]``; 0 only where ``output`` is ``target``."""
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
        if not isinstance(predictive, RealPredictive) or predictive.components.discrete or predictive.mean.ndim != 2:
            raise UnsupportedError("real targets of shape [rows, outputs] can be distilled, and classes of [rows]")
        variance = predictive.variance
        if not bool(variance.isfinite().all()):
            raise UnsupportedError("a prediction with infinite variance cannot be distilled into a Gaussian")
        parts = (predictive.aleatoric, predictive.epistemic)
        logs = [part.maximum(_SMALLEST_SHARE * variance).log() for part in parts]
        return torch.cat([predictive.mean, *logs], -1)

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


def _variance_divergence(log_ratio: Tensor) -> Tensor:
    """g(r) = (r − 1 − log r)/2 of log r."""
    return 0.5 * (log_ratio.exp() - 1.0 - log_ratio)
