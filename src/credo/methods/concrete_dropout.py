r"""Concrete dropout: MC dropout whose drop rates are learned.

With W = M·diag(z) for a layer of K input units, z ~ Bernoulli(1 − p), and the prior N(0, l⁻²) on every weight, the KL
is, up to a constant that depends neither on M nor on p,

    KL = (1 − p)·l²/2·‖M‖² − K·H(p) + l²/2·‖b‖²,    H(p) = −p·log p − (1 − p)·log(1 − p).

With a fixed rate the entropy of the masks is another constant. In torch's convention the parameter is W̄ = (1 − p)·M,
and the loss per datum is

    −mean log p(y | x, w) + 1/N·[ l²/(2(1 − p))·‖W̄‖² + l²/2·‖b‖² − K·H(p) ],

summed over the layers. The likelihood pulls p to 0 and the entropy to 1/2, the latter with a weight that falls with N.
The authors' code has the squared error instead of −log p: for noise of precision τ it is the same times 2/τ, with the
factors l²/(Nτ) of the weights and 2/(Nτ) of the entropy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from credo._arguments import check_non_negative, check_positive
from credo._notices import notify
from credo.errors import InputError
from credo.functional import Forward
from credo.likelihoods import Likelihood
from credo.methods._weight_dropout import MaskedNetwork, find_places, penalized_parameters, weight_penalty
from credo.methods.network import NetworkMethod
from credo.posteriors.concrete_dropout import ConcreteWeightDropout
from credo.training.optimizers import NaturalAdam, relative_step
from credo.training.supervised import SupervisedTask, Terms


class ConcreteDropout(NetworkMethod):
    r"""Dropout before the weight layers of a network, with a rate for each that is learned with the weights.

    In training a mask is a continuous relaxation of a Bernoulli variable, through which the gradient of the rate
    passes, and every row has its own. In prediction masks are Bernoulli variables with the learned rates, and a draw is
    one mask set for all rows, as with :class:`credo.MCDropout`. The network itself stays as it is.

    Args:
        net: any ``nn.Module``.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        p: the rate at which inputs of weight layers are dropped before training, or a mapping from weight-name
            patterns to rates, where 0 means no dropout there. A single rate spares layers with one input unit or
            channel, where dropout would erase the whole input, such as a gray image.
        length_scale: l, the inverse of the prior's standard deviation.
        relaxation: t, the temperature of the concrete distribution; masks of a lower one are closer to 0 and 1, their
            gradients have more variance.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Example:
        >>> model = credo.ConcreteDropout(net, credo.Categorical()).fit((x, y), epochs=10)
        >>> model.rates
        >>> model.predict(x_new, samples=100).epistemic

    Reference: Y. Gal, J. Hron, A. Kendall, "Concrete dropout", NeurIPS 2017.
    """

    posterior: ConcreteWeightDropout
    _derived = frozenset({"_masked", "_penalized"})
    _masked: MaskedNetwork

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        *,
        p: float | Mapping[str, float] = 0.1,
        length_scale: float = 1.0,
        relaxation: float = 0.1,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(net, likelihood, forward)
        self.p = p
        self.length_scale = check_non_negative(length_scale, "length_scale")
        self._relaxation = check_positive(relaxation, "relaxation")
        units, rates = find_places(net, p)
        learned = {name: rate for name, rate in rates.items() if rate > 0}
        if not learned:
            raise InputError("p is 0 for all weight layers; a rate that is learned has to start above 0, such as p=0.1")
        self.posterior = ConcreteWeightDropout(net, {name: units[name] for name in learned}, learned, self._relaxation)
        if any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in net.modules()):
            notify(
                "the network's own dropout layers keep their rates in training and are off in prediction; set their p "
                "to 0, or use credo.MCDropout for them"
            )
        self._derive()

    @property
    def rates(self) -> dict[str, float]:
        """The drop rate before every covered weight, as learned so far."""
        return self.posterior.bernoulli().rates

    @override
    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        self._resolve_likelihood(y)
        if not torch.compiler.is_compiling():
            self._prepare(x)
        output = self._masked(x, self.training)
        return Terms(self._weighted_nll(self.likelihood.log_prob(output, y), sample_weight), self.kl())

    def kl(self) -> Tensor:
        """Σ [ l²/(2(1 − p))·‖W̄‖² − K·H(p) ] + l²/2·‖b‖², with p = 0 for weights without dropout before them.

        Returns:
            The KL up to a constant, in nats, differentiable; it can be negative.
        """
        penalty = weight_penalty(self.net, self._penalized, self.length_scale, self.posterior.keep())
        return penalty - self.posterior.entropy()

    def _prepare(self, x: Any) -> None:
        self._inspect(x, training=True)
        self._masked.prepare(x)

    def _training_task(self) -> _ConcreteTask:
        return _ConcreteTask(self)

    def _describe_parameter(self, name: str) -> str:
        return f"dropout before it, p={self.rates[name]:.3g}, learned"

    @override
    def extra_repr(self) -> str:
        """Rate at the start and length scale.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        return f"p={self.p!r}, length_scale={self.length_scale:g}, relaxation={self._relaxation:g}"

    def _own_config(self) -> dict[str, object]:
        p = dict(self.p) if isinstance(self.p, Mapping) else self.p
        return {"p": p, "length_scale": self.length_scale, "relaxation": self._relaxation}

    def _derive(self) -> None:
        """Build the replica that training runs on, with its masks."""
        self._penalized = penalized_parameters(self.net)
        self._masked = MaskedNetwork(self.net, self._forward, self.posterior, per_row=True)


class _ConcreteTask(SupervisedTask[ConcreteDropout]):
    """Learns the rates in larger steps than the weights: one of 0.1 in log p suits all networks, as in log σ."""

    def default_optimizer(self, groups: list[dict[str, Any]], lr: float) -> Optimizer:
        """Adam, with relative steps of the rates."""
        return NaturalAdam(groups, {}, lr, relative_step(self._steps), self.model.posterior.parameters())
