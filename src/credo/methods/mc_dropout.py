r"""MC dropout: dropout at prediction time as draws from an approximate posterior.

With W = diag(z)·M, z ~ Bernoulli(1 − p), and the prior N(0, l⁻²) on every weight, the KL of Gal & Ghahramani is,
up to a constant, (1 − p)·l²/2·‖M‖² + l²/2·‖b‖². Torch rescales kept activations by 1/(1 − p), so the parameter it
stores is W̄ = (1 − p)·M, and the penalty beside −mean log p(y | x, w) reads

    l²/(2N(1 − p))·‖W̄‖² + l²/(2N)·‖b‖².

The paper divides a Gaussian −log p = τ/2·(y − f)² + … by τ and writes λ·‖M‖² beside the squared error, with
λ = (1 − p)·l²/(2Nτ): the same objective. τ⁻¹, the noise variance of ``Gaussian(noise=τ**-0.5)``, is part of the
predictive variance.

DropConnect (Wan et al. 2013) has a mask for every single weight, W = z ⊙ M. The posterior of a weight, a mixture of two
narrow Gaussians at 0 and at Mᵢⱼ with weights p and 1 − p, is that of dropout; only weights of one unit are now
independent. The KL is a sum over weights, up to a constant (1 − p)·l²/2·Mᵢⱼ² each, so the penalty is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from credo._arguments import check_non_negative
from credo.errors import InputError
from credo.functional import Caller, Forward
from credo.likelihoods import Likelihood
from credo.methods._weight_dropout import MaskedNetwork, find_places, penalized_parameters, weight_penalty
from credo.methods.network import NetworkMethod
from credo.posteriors.dropout import WeightDropout
from credo.posteriors.dropout_layers import LayerDropout, check_dropout
from credo.training.supervised import Terms


class MCDropout(NetworkMethod):
    r"""Dropout read as variational inference, on a network as it is or with dropout put before its weight layers.

    Without ``p``, the network's own dropout layers are used, and a trained network needs no retraining. With
    ``p``, dropout stands before every weight layer, by hooks on a private replica; the network itself stays as
    it is. In training every row has its own mask; in prediction a draw is one mask set for all rows.

    Args:
        net: any ``nn.Module``.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        p: the rate at which inputs of weight layers are dropped, or a mapping from weight-name patterns to
            rates; ``None`` uses the dropout layers that the network has. A single rate spares layers with one input
            unit or channel, where dropout would erase the whole input, such as a gray image.
        length_scale: l, the inverse of the prior's standard deviation.
        weight_noise: σ of the family W = diag(z)·M + σ·ε; needs ``p``.
        connections: DropConnect: drop single weights, not input units; needs ``p``. As a mask for every row would take
            as much memory as the weights, a batch has one in training, and gradients vary more.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Example:
        >>> model = credo.MCDropout(net, credo.Categorical(), p=0.1).fit((x, y), epochs=10)
        >>> model.predict(x_new, samples=100).epistemic

    References: Y. Gal, Z. Ghahramani, "Dropout as a Bayesian approximation: representing model uncertainty in deep
    learning", ICML 2016. L. Wan, M. Zeiler, S. Zhang, Y. LeCun, R. Fergus, "Regularization of neural networks using
    DropConnect", ICML 2013.
    """

    posterior: WeightDropout | LayerDropout
    _derived = frozenset({"_masked", "_penalized"})
    _masked: MaskedNetwork | None

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        *,
        p: float | Mapping[str, float] | None = None,
        length_scale: float = 1.0,
        weight_noise: float = 0.0,
        connections: bool = False,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(net, likelihood, forward)
        check_non_negative(length_scale, "length_scale")
        check_non_negative(weight_noise, "weight_noise")
        if p is None and (weight_noise > 0 or connections):
            name = "connections" if connections else "weight_noise"
            raise InputError(f"{name} needs dropout before the weight layers: pass p as well")
        self.p, self.length_scale, self.weight_noise = p, float(length_scale), float(weight_noise)
        self._connections = bool(connections)
        if p is None:
            check_dropout(net)
            self.posterior = LayerDropout()
        else:
            places = find_places(net, p, self._connections)
            self.posterior = WeightDropout(net, *places, self.weight_noise, self._connections)
        self._derive()

    @override
    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        self._resolve_likelihood(y)
        if not torch.compiler.is_compiling():
            self._prepare(x)
        output = self._noisy_forward(x)
        return Terms(self._weighted_nll(self.likelihood.log_prob(output, y), sample_weight), self.kl())

    def kl(self) -> Tensor:
        """l²/(2(1 − p))·‖W̄‖² + l²/2·‖b‖², with p = 0 for weights without dropout before them.

        Returns:
            The penalty in nats, differentiable.
        """
        rates = self.posterior.rates if isinstance(self.posterior, WeightDropout) else {}
        keep = {name: 1.0 - rate for name, rate in rates.items()}
        return weight_penalty(self.net, self._penalized, self.length_scale, keep)

    def _prepare(self, x: Any) -> None:
        if self._masked is not None:
            self._inspect(x, training=True)
            self._masked.prepare(x)

    def _describe_parameter(self, name: str) -> str:
        assert isinstance(self.posterior, WeightDropout)
        what = "DropConnect" if self._connections else "dropout before it"
        return f"{what}, p={self.posterior.rates[name]:g}"

    @override
    def extra_repr(self) -> str:
        """Rate and length scale.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        shown = f"p={self.p!r}, length_scale={self.length_scale:g}, weight_noise={self.weight_noise:g}"
        return f"{shown}, connections=True" if self._connections else shown

    def _own_config(self) -> dict[str, object]:
        p = dict(self.p) if isinstance(self.p, Mapping) else self.p
        return {
            "p": p,
            "length_scale": self.length_scale,
            "weight_noise": self.weight_noise,
            "connections": self._connections,
        }

    def _noisy_forward(self, x: Any) -> Tensor:
        if self._masked is None:
            output: Tensor = Caller(self.net, self._forward)(x)
            return output
        return self._masked(x, self.training)

    def _derive(self) -> None:
        """Build the replica that training runs on, with its masks."""
        self._penalized = penalized_parameters(self.net)
        self._masked = (
            MaskedNetwork(self.net, self._forward, self.posterior, per_row=not (self.weight_noise or self._connections))
            if isinstance(self.posterior, WeightDropout)
            else None
        )
