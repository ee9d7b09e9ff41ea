r"""MC dropout: dropout at prediction time as draws from an approximate posterior.

With W = diag(z)·M, z ~ Bernoulli(1 − p), and the prior N(0, l⁻²) on every weight, the KL of Gal & Ghahramani is,
up to a constant, (1 − p)·l²/2·‖M‖² + l²/2·‖b‖². Torch rescales kept activations by 1/(1 − p), so the parameter it
stores is W̄ = (1 − p)·M, and the penalty beside −mean log p(y | x, w) reads

    l²/(2N(1 − p))·‖W̄‖² + l²/(2N)·‖b‖².

The paper divides a Gaussian −log p = τ/2·(y − f)² + … by τ and writes λ·‖M‖² beside the squared error, with
λ = (1 − p)·l²/(2Nτ): the same objective. τ⁻¹, the noise variance of ``Gaussian(noise=τ**-0.5)``, is part of the
predictive variance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from credo._arguments import check_non_negative
from credo._devices import at_least_float32
from credo._notices import notify
from credo.errors import InputError, UnsupportedError
from credo.functional import Caller, Forward, Replica
from credo.likelihoods import Likelihood
from credo.methods._noise_hooks import channel_dim, noisy_layers
from credo.methods._planning import plan_estimators
from credo.methods.network import NetworkMethod
from credo.nests import count_rows
from credo.posteriors.dropout import WeightDropout, weight_layers
from credo.posteriors.dropout_layers import LayerDropout, check_dropout
from credo.selection import match_one, match_parameters, tied_parameters
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
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Example:
        >>> model = credo.MCDropout(net, credo.Categorical(), p=0.1).fit((x, y), epochs=10)
        >>> model.predict(x_new, samples=100).epistemic

    Reference: Y. Gal, Z. Ghahramani, "Dropout as a Bayesian approximation: representing model uncertainty in deep
    learning", ICML 2016.
    """

    posterior: WeightDropout | LayerDropout
    _derived = frozenset({"_replica", "_masks", "_planned", "_penalized"})
    _planned: bool

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        *,
        p: float | Mapping[str, float] | None = None,
        length_scale: float = 1.0,
        weight_noise: float = 0.0,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(net, likelihood, forward)
        check_non_negative(length_scale, "length_scale")
        check_non_negative(weight_noise, "weight_noise")
        if p is None and weight_noise > 0:
            raise InputError("weight_noise needs dropout before the weight layers: pass p as well")
        self.p, self.length_scale, self.weight_noise = p, float(length_scale), float(weight_noise)
        if p is None:
            check_dropout(net)
            self.posterior = LayerDropout()
        else:
            units = weight_layers(net)
            if not units:
                raise InputError("the network has no weight layer that dropout could stand before")
            rates = {name: _rate(p, name, list(units)) for name in units}
            if not isinstance(p, Mapping) and not all(found.is_all for found in units.values()):
                units = {name: found for name, found in units.items() if not found.is_all}
            self.posterior = WeightDropout(net, units, {name: rates[name] for name in units}, self.weight_noise)
            self._notify_of_uncovered(rates)
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
        dtype = at_least_float32(self.dtype)
        squares = [
            _sum_of_squares(self.net.get_parameter(name), dtype) / (1.0 - rates.get(name, 0.0))
            for name in self._penalized
        ]
        return 0.5 * self.length_scale**2 * torch.stack(squares).sum()

    def _prepare(self, x: Any) -> None:
        """Update the private replica; on the first batch find the layers that can have a mask per row."""
        self._replica.sync_from_network()
        if isinstance(self.posterior, WeightDropout):
            self._inspect(x, training=True)
        if not self._masks.plan or self._planned:
            return
        probe = Replica(self.net, self._forward, own_buffers=True)
        self._masks.plan = plan_estimators(probe, list(self._masks.plan), "flipout", x)
        self._planned = True

    def _describe_parameter(self, name: str) -> str:
        assert isinstance(self.posterior, WeightDropout)
        return f"dropout before it, p={self.posterior.rates[name]:g}"

    @override
    def extra_repr(self) -> str:
        """Rate and length scale.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        return f"p={self.p!r}, length_scale={self.length_scale:g}, weight_noise={self.weight_noise:g}"

    def _own_config(self) -> dict[str, object]:
        p = dict(self.p) if isinstance(self.p, Mapping) else self.p
        return {"p": p, "length_scale": self.length_scale, "weight_noise": self.weight_noise}

    def _notify_of_uncovered(self, rates: Mapping[str, float]) -> None:
        """Name the weights without dropout before them: single inputs, and layers of unknown kinds."""
        covered = self.posterior.names()
        inputs = [name for name in rates if name not in covered]
        if inputs:
            notify(
                f"no dropout is put before {', '.join(inputs)}, whose input is a single unit or channel and would be "
                "erased; name it in a mapping p={...} to have it there"
            )
        unknown = [n for n in match_parameters(self.net) if n not in rates and self.net.get_parameter(n).dim() > 1]
        if unknown:
            kinds = {type(self.net.get_submodule(name.rpartition(".")[0])).__name__ for name in unknown}
            shown = ", ".join(unknown[:3]) + (", …" if len(unknown) > 3 else "")
            notify(f"no dropout is put before {shown}: how {', '.join(sorted(kinds))} meets its inputs is not known")

    def _noisy_forward(self, x: Any) -> Tensor:
        if isinstance(self.posterior, LayerDropout):
            output: Tensor = Caller(self.net, self._forward)(x)
            return output
        if not self.training:
            return self._replica({}, x)
        drawn = [name for name in self.posterior.names() if not self._masks.covers(name)]
        weights = self.posterior.rsample(drawn)
        self._masks.begin(count_rows(x))
        try:
            output = self._replica(weights, x)
        finally:
            self._masks.end()
        if not torch.compiler.is_compiling():
            self._replica.sync_to_network()
        return output

    def _derive(self) -> None:
        """Build the replica that training runs on, with its masks."""
        self._replica = Replica(self.net, self._forward, own_buffers=False)
        rates = self.posterior.rates if isinstance(self.posterior, WeightDropout) else {}
        layers = noisy_layers(self.net, rates, tied_parameters(self.net)) if self.weight_noise == 0 else {}
        self._penalized = match_parameters(self.net)
        self._masks = _RowMasks(self._replica, {path: rates[f"{path}.weight".lstrip(".")] for path in layers})
        self._planned = False


class _RowMasks:
    """Pre-hooks that drop the inputs of layers, with a mask for every row that all its positions share."""

    def __init__(self, replica: Replica, rates: Mapping[str, float]) -> None:
        self.plan: dict[str, str] = dict.fromkeys(rates, "flipout")
        self.rows, self.active = 0, False
        self._drawn: dict[str, Tensor] = {}
        for path, rate in rates.items():
            replica.net.get_submodule(path).register_forward_pre_hook(self._mask_for(path, rate), with_kwargs=True)

    def begin(self, rows: int) -> None:
        self.rows, self.active, self._drawn = rows, True, {}

    def end(self) -> None:
        self.active, self._drawn = False, {}

    def covers(self, name: str) -> bool:
        path, _, attribute = name.rpartition(".")
        return attribute == "weight" and self.plan.get(path, "weight") != "weight"

    def _mask_for(self, path: str, rate: float) -> Callable[..., Any]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self.plan[path] == "weight":
                return None
            if torch.is_grad_enabled() and not self.active and layer.training:
                raise UnsupportedError(
                    "the network uses gradient checkpointing, which would recompute activations with other masks "
                    "than the forward pass drew; switch it off in the network"
                )
            if not self.active:
                return None
            x, rest = (args[0], args[1:]) if args else (kwargs["input"], ())
            if path not in self._drawn:
                shape = [1] * x.dim()
                shape[0] = x.shape[0] if x.shape[0] == self.rows else 1
                shape[channel_dim(layer)] = x.shape[channel_dim(layer)]
                kept = torch.rand(shape, device=x.device) >= rate
                self._drawn[path] = kept.to(x.dtype) / (1.0 - rate)
            others = {key: value for key, value in kwargs.items() if key != "input"}
            return (x * self._drawn[path], *rest), others

        return hook


def _sum_of_squares(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.view_as_real(weight).square().sum() if weight.is_complex() else weight.to(dtype).square().sum()


def _rate(p: float | Mapping[str, float], name: str, names: list[str]) -> float:
    rate = match_one(p, name, names) if isinstance(p, Mapping) else p
    if not 0.0 <= rate < 1.0:
        raise InputError(f"p is the rate at which inputs are dropped and must lie in [0, 1), got {rate}")
    return float(rate)
