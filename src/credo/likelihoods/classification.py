"""Likelihoods of class-valued targets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from credo._arguments import check_bool, check_integer
from credo._special import sobol_normal
from credo.errors import InputError
from credo.likelihoods.base import REGISTRY, Likelihood, as_draw, split_in_two, trailing_dim
from credo.predictive.classes import BernoulliComponents, CategoricalComponents, OrdinalComponents


@REGISTRY.register
class Categorical(Likelihood):
    """One of C classes: y ~ Categorical(softmax(f(x))).

    Targets are integer class indices of the output's shape without ``class_dim``.

    With ``logit_noise`` the network outputs ``[logits z, log variance s]`` along ``class_dim``, and the class is drawn
    from noisy logits (Kendall & Gal 2017, eq. 12), the noise integrated out by Monte Carlo within each weight draw:

        p(y | f(x)) = E_ε softmax(z + e^{s/2} ε)_y ≈ (1/T) Σ_t softmax(z + e^{s/2} ε_t)_y,    ε ~ N(0, I).

    ``log_prob`` draws new ε from the global generator (the log of the mean is biased low by O(1/T), a lower bound, as
    the ELBO is); ``predictive`` uses one fixed quasi-random set, so predictions are reproducible and rows independent.

    Args:
        logit_noise: whether the network also outputs a log variance.
        class_dim: the class dimension of the network's output ``[B, ...]``; 1 for images.
        weight: a factor on the log probability of each class, ``[C]``, in ``log_prob`` only: predictions are not
            weighted. ``None`` weights all classes equally.
        ignore_index: targets with this label are ignored; ``None`` ignores none.
        noise_samples: T, the number of noise samples.

    Raises:
        InputError: if an argument is not valid.

    Example:
        >>> model = credo.BayesByBackprop(net, likelihood=credo.Categorical()).fit((x, labels), epochs=20)
        >>> model.predict(x_new).mode
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
        self.logit_noise = check_bool(logit_noise, "logit_noise")
        self.class_dim = check_integer(class_dim, "class_dim")
        self.ignore_index = None if ignore_index is None else check_integer(ignore_index, "ignore_index")
        self.noise_samples = check_integer(noise_samples, "noise_samples", minimum=1)
        self.register_buffer("weight", None)
        if weight is not None:
            self.weight = torch.as_tensor(weight, dtype=torch.get_default_dtype()).detach().clone()
            if self.weight.ndim != 1 or not bool(((self.weight >= 0) & self.weight.isfinite()).all()):
                raise InputError(f"weight must hold one number of at least 0 per class, got {weight!r}.")

    @override
    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        logits, log_variance, dim = self._split(as_draw(output))
        if log_variance is None:
            log_p = logits.log_softmax(dim)
        else:
            noise = torch.randn((self.noise_samples, *logits.shape), dtype=logits.dtype, device=logits.device)
            noisy = (logits + (0.5 * log_variance).exp() * noise).log_softmax(dim)
            # A logit of −∞ stays −∞ under noise, and the gradient of its logsumexp is NaN.
            impossible = noisy.amax(0) == -math.inf
            log_p = torch.where(impossible, 0.0, noisy).logsumexp(0) - math.log(self.noise_samples)
            log_p = torch.where(impossible, -math.inf, log_p)
        return self.weighted_log_prob(log_p, dim, y)

    def weighted_log_prob(self, log_p: Tensor, dim: int, y: Tensor) -> Tensor:
        """Return Σ_i w_{y_i} log p(y_i) of every row, over the pixels or tokens that are not ignored.

        Args:
            log_p: log probabilities of all classes, ``[1, B, ...]``.
            dim: their class dimension, a negative index.
            y: the targets.

        Returns:
            ``[B]``.
        """
        if self.weight is not None:
            # Weight log p_c before the class is selected, so that ignored targets need no special case. A class of
            # weight 0 contributes 0 even if it is impossible: 0 · ∞ is NaN.
            weight = self.weight.to(log_p.dtype).view(-1, *[1] * (-dim - 1))
            log_p = torch.where(weight == 0, 0.0, log_p * weight)
        return CategoricalComponents(log_p, dim, self.ignore_index).row_log_prob(y)[0]

    @override
    def components(self, outputs: Tensor) -> CategoricalComponents:
        logits, log_variance, dim = self._split(outputs)
        log_p = logits
        if log_variance is not None:
            scale = (0.5 * log_variance).exp()
            log_p = torch.full_like(logits, -math.inf)
            for noise in sobol_normal(self.noise_samples, logits.shape[dim]).to(logits):
                log_p = log_p.logaddexp((logits + scale * noise.view(-1, *[1] * (-dim - 1))).log_softmax(dim))
        return CategoricalComponents(log_p.log_softmax(dim), dim, self.ignore_index)

    @override
    def check(self, output: Tensor, y: Tensor) -> None:
        logits, _, dim = self._split(as_draw(output))
        CategoricalComponents(logits, dim, self.ignore_index).check(y)

    @override
    def get_config(self) -> dict[str, object]:
        return {
            "name": "Categorical",
            "logit_noise": self.logit_noise,
            "class_dim": self.class_dim,
            "weight": None if self.weight is None else self.weight.tolist(),
            "ignore_index": self.ignore_index,
            "noise_samples": self.noise_samples,
        }

    def extra_repr(self) -> str:
        """Return the arguments that ``print`` shows.

        Returns:
            The arguments.
        """
        return f"logit_noise={self.logit_noise}, class_dim={self.class_dim}"

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor | None, int]:
        """Return the logits, their log variance (``None`` without noise), and the class dimension."""
        dim = trailing_dim(self.class_dim, outputs, "class_dim")
        logits, log_variance = outputs, None
        if self.logit_noise:
            logits, log_variance = split_in_two(outputs, dim, "[logits, log variance]")
        classes = logits.shape[dim]
        if classes < 2:
            raise InputError(
                f"Categorical() needs at least two classes, but the network has {classes}: for two classes use "
                "Bernoulli(), for numbers y.float() and Gaussian(), for counts Poisson()."
            )
        if self.weight is not None and len(self.weight) != classes:
            raise InputError(f"weight holds {len(self.weight)} numbers, but the network has {classes} classes.")
        return logits, log_variance, dim


@REGISTRY.register
class Bernoulli(Likelihood):
    """Two classes, or several labels that do not exclude each other: y ~ Bernoulli(sigmoid(f(x))).

    log p(y) = y log p + (1 − y) log(1 − p). The network outputs logits; targets have the output's shape and hold 0 and
    1, as bool, float or integer.

    Example:
        >>> credo.BayesByBackprop(net, likelihood=credo.Bernoulli()).fit((x, y > 0), epochs=20)
    """

    @override
    def components(self, outputs: Tensor) -> BernoulliComponents:
        return BernoulliComponents(outputs)

    @override
    def get_config(self) -> dict[str, object]:
        return {"name": "Bernoulli"}


@REGISTRY.register
class Ordinal(Likelihood):
    """Ordered classes 0 < 1 < … < C − 1, such as grades: P(y ≤ k) = sigmoid(c_k − f(x)).

    The cumulative logit, or proportional odds, model (McCullagh 1980). The network outputs one number f per target,
    ``[B, ..., 1]``, the larger the higher the class, and the C − 1 ascending cut points c are learned:

        log p(y = k) = log σ(c_k − f) + log σ(f − c_{k−1}) + log(1 − exp(c_{k−1} − c_k)),    c_{−1} = −∞, c_{C−1} = ∞.

    Targets are integer class indices ``[B, ...]``. A prediction is over classes, as for :class:`Categorical`, and
    ``cdf``, ``quantile`` and ``interval`` use their order.

    Args:
        classes: C, the number of classes, at least 2.

    Raises:
        InputError: if ``classes`` is not an integer of at least 2.

    Example:
        >>> net = credo.architectures.MLP(3, (50,), 1)
        >>> credo.BayesByBackprop(net, likelihood=credo.Ordinal(5)).fit((x, grades), epochs=20)

    Reference: P. McCullagh. Regression models for ordinal data. J. R. Stat. Soc. B 42(2), 1980.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = check_integer(classes, "classes", minimum=2)
        shares = torch.arange(1, self.classes) / self.classes
        cuts = shares.logit()  # those of equally frequent classes at f = 0
        self.first_cut = nn.Parameter(cuts[0].clone())
        self.log_gaps = nn.Parameter(cuts.diff().log())

    @property
    def cuts(self) -> Tensor:
        """The current cut points c, ascending, ``[C − 1]``."""
        return self._cuts().detach()

    @override
    def components(self, outputs: Tensor) -> OrdinalComponents:
        if outputs.ndim < 3 or outputs.shape[-1] != 1:
            raise InputError(
                f"Ordinal() needs one output per target, [rows, ..., 1], but the network outputs "
                f"{list(outputs.shape[1:])}: its last layer must have width 1."
            )
        distance = self._cuts().to(outputs.dtype) - outputs
        below, above = F.logsigmoid(distance), F.logsigmoid(-distance)
        ends, gaps = torch.zeros_like(outputs), self.log_gaps.to(outputs.dtype).exp()
        inside = torch.cat([gaps.new_zeros(1), (-(-gaps).expm1()).log(), gaps.new_zeros(1)])
        return OrdinalComponents(torch.cat([below, ends], -1) + torch.cat([ends, above], -1) + inside)

    @override
    def get_config(self) -> dict[str, object]:
        return {"name": "Ordinal", "classes": self.classes}

    def extra_repr(self) -> str:
        """Return the arguments that ``print`` shows.

        Returns:
            The arguments.
        """
        return f"classes={self.classes}"

    def _cuts(self) -> Tensor:
        return torch.cat([self.first_cut[None], self.first_cut + self.log_gaps.exp().cumsum(0)])
