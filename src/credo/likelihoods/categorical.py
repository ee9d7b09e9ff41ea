"""The categorical likelihood, with Gaussian noise on the logits where asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from credo._arguments import check_integer
from credo.errors import InputError
from credo.likelihoods.base import Likelihood, as_outputs, halves, one_draw, trailing_dim
from credo.predictive import Predictive
from credo.predictive.categorical import CategoricalComponents
from credo.predictive.classes import ClassPredictive


class Categorical(Likelihood):
    """One of C classes: y ~ Categorical(softmax(f(x))).

    Targets are integer class indices of the output's shape without ``class_dim``.

    With ``logit_noise`` the network outputs ``[logits z, log variance s]`` along ``class_dim``, and the class is drawn
    from noisy logits (Kendall & Gal 2017, eq. 12), the noise integrated out by Monte Carlo within each weight draw:

        p(y | f(x)) = E_ε softmax(z + e^{s/2} ε)_y ≈ (1/T) Σ_t softmax(z + e^{s/2} ε_t)_y,    ε ~ N(0, I).

    ``log_prob`` draws fresh ε from the global generator (its log is biased low by O(1/T), a lower bound as the ELBO
    is); ``predictive`` uses one fixed quasi-random set, so predictions are reproducible and each row's is its own.

    Args:
        logit_noise: whether the network outputs a log variance too.
        class_dim: the dimension of the network's output ``[B, ...]`` along which classes lie; 1 for images.
        weight: ``[C]``, factors on the log probability of each class, in ``log_prob`` only: a weighted likelihood
            trains, but a predictive density has no weights.
        ignore_index: a label whose targets count nothing.
        noise_samples: T.
    """

    weight: Tensor | None

    def __init__(
        self,
        logit_noise: bool = False,
        class_dim: int = -1,
        weight: Sequence[float] | Tensor | None = None,
        ignore_index: int | None = None,
        noise_samples: int = 128,
    ) -> None:
        super().__init__()
        if not isinstance(logit_noise, bool):
            raise InputError(f"logit_noise must be True or False, got {logit_noise!r}.")
        self.logit_noise = logit_noise
        self.class_dim = check_integer(class_dim, "class_dim")
        self.ignore_index = None if ignore_index is None else check_integer(ignore_index, "ignore_index")
        self.noise_samples = check_integer(noise_samples, "noise_samples", minimum=1)
        self.register_buffer("weight", None)
        if weight is not None:
            self.weight = torch.as_tensor(weight, dtype=torch.get_default_dtype()).detach().clone()
            if self.weight.ndim != 1 or not bool(((self.weight >= 0) & self.weight.isfinite()).all()):
                raise InputError(f"weight must hold one number of 0 or more for each class, got {weight!r}.")

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """Σ_i w_{y_i} log p(y_i) of every row, ``[B]``, over the pixels or tokens not ignored."""
        logits, log_variance, dim = self._split(one_draw(output))
        if log_variance is None:
            log_p = logits.log_softmax(dim)
        else:
            noise = torch.randn((self.noise_samples, *logits.shape), dtype=logits.dtype, device=logits.device)
            noisy = (logits + (0.5 * log_variance).exp() * noise).log_softmax(dim)
            # A logit of −∞ is −∞ whatever the noise, and the gradient of its logsumexp is NaN.
            impossible = noisy.amax(0) == -math.inf
            log_p = torch.where(impossible, 0.0, noisy).logsumexp(0) - math.log(self.noise_samples)
            log_p = torch.where(impossible, -math.inf, log_p)
        if self.weight is not None:
            # log p_c ↦ w_c log p_c before the class is picked, so that ignored targets need no index of their own. A
            # class without weight counts nothing, even where it is impossible: 0 · ∞ is NaN.
            weight = self.weight.to(log_p.dtype).view(-1, *[1] * (-dim - 1))
            log_p = torch.where(weight == 0, 0.0, log_p * weight)
        return self._components(log_p, dim).row_log_prob(y)[0]

    def predictive(self, outputs: Tensor) -> Predictive:
        """The mixture over S draws, from their outputs ``[S, B, ...]``."""
        logits, log_variance, dim = self._split(as_outputs(outputs))
        if log_variance is None:
            return ClassPredictive(self._components(logits.log_softmax(dim), dim))
        scale = (0.5 * log_variance).exp()
        log_p = torch.full_like(logits, -math.inf)
        for noise in _fixed_noise(self.noise_samples, logits.shape[dim], logits):
            log_p = log_p.logaddexp((logits + scale * noise.view(-1, *[1] * (-dim - 1))).log_softmax(dim))
        return ClassPredictive(self._components(log_p.log_softmax(dim), dim))

    def check(self, output: Tensor, y: Tensor) -> None:
        """Raise ``InputError`` for targets that do not fit by shape, dtype or value."""
        logits, _, dim = self._split(one_draw(output))
        self._components(logits, dim).check(y)

    def get_config(self) -> dict[str, object]:
        """The constructor's arguments and ``"name"``."""
        return {
            "name": "Categorical",
            "logit_noise": self.logit_noise,
            "class_dim": self.class_dim,
            "weight": None if self.weight is None else self.weight.tolist(),
            "ignore_index": self.ignore_index,
            "noise_samples": self.noise_samples,
        }

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"logit_noise={self.logit_noise}, class_dim={self.class_dim}"

    def _components(self, log_p: Tensor, dim: int) -> CategoricalComponents:
        return CategoricalComponents(log_p, dim, self.ignore_index)

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor | None, int]:
        dim = trailing_dim(self.class_dim, outputs, "class_dim")
        logits, log_variance = halves(outputs, dim, "[logits, log variance]") if self.logit_noise else (outputs, None)
        classes = logits.shape[dim]
        if classes < 2:
            raise InputError(f"Categorical() needs two classes or more, the network has {classes}: use Bernoulli().")
        if self.weight is not None and len(self.weight) != classes:
            raise InputError(f"weight holds {len(self.weight)} numbers, but the network has {classes} classes.")
        return logits, log_variance, dim


def _fixed_noise(count: int, classes: int, like: Tensor) -> Tensor:
    """``[count, classes]`` standard normal numbers that are always the same: scrambled Sobol where it reaches."""
    if classes > SobolEngine.MAXDIM:
        noise = torch.randn(count, classes, generator=torch.Generator().manual_seed(0))
    else:
        engine = SobolEngine(classes, scramble=True, seed=0)
        uniform = engine.draw(count, dtype=torch.float64)
        noise = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    return noise.to(like)
