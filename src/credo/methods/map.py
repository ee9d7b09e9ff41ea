"""The maximum a posteriori estimate: one network, regularized by a prior; the baseline of every comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from typing_extensions import override

from credo._devices import at_least_float32
from credo.functional import Caller, Forward
from credo.likelihoods import Likelihood
from credo.methods.base import check_samples
from credo.methods.network import NetworkMethod, NetworkPredictor
from credo.posteriors._gaussian_kl import gaussian_penalty
from credo.posteriors.point import PointMass
from credo.priors import Normal, Prior, move_priors, resolve, to_config
from credo.selection import as_json, parameter_owners, select
from credo.training.supervised import Terms


class MAP(NetworkMethod):
    r"""The weights that maximize log p(D | w) + log p(w). Its predictive has no epistemic part.

    Args:
        net: any ``nn.Module``.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        prior: p(w); a wide one, ``Normal(0, 1e3)``, approaches maximum likelihood.
        bayesian: name pattern or patterns of the parameters the prior is put on.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Example:
        >>> model = credo.MAP(net, credo.Categorical()).fit((x, y), epochs=10)
        >>> model.predict(x_new).mean
    """

    posterior: PointMass
    _derived = frozenset({"_groups", "_caller", "_wide"})

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        *,
        bayesian: str | Sequence[str] = "*",
        forward: Forward | None = None,
    ) -> None:
        super().__init__(net, likelihood, forward)
        self.prior: Prior = Normal(0.0, 1.0) if prior is None else prior
        self._bayesian = bayesian
        self.posterior = PointMass(net, select(net, bayesian))
        self._priors = resolve(self.prior, {name: w.shape for name, w in self.posterior.mean().items()})
        self._follow_parameters()

    @override
    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        self._resolve_likelihood(y)
        output = self._caller[0](x)
        return Terms(self._weighted_nll(self.likelihood.log_prob(output, y), sample_weight), self.kl())

    @override
    def kl(self) -> Tensor:
        penalties = []
        for prior, scale, owners in self._groups:
            weights = [
                self.posterior._under(prior, name, module._parameters[key].to(self._wide))  # type: ignore[union-attr]
                for name, (module, key) in owners
            ]
            if scale is not None:
                penalties.append(gaussian_penalty(weights, scale))
            else:
                penalties += [-prior.log_prob(weight).sum() for weight in weights]
        return torch.stack(penalties).sum() if len(penalties) > 1 else penalties[0]

    def _follow_parameters(self) -> None:
        """Move the priors to the device of the parameters, and note which parameters share one."""
        self._wide = at_least_float32(self.dtype)
        priors = move_priors(self._priors, self.device, self._wide)
        owners = parameter_owners(self.net, list(priors))
        shared: dict[int, tuple[Distribution, float | None, list[tuple[str, tuple[nn.Module, str]]]]] = {}
        for name, prior in priors.items():
            is_centered = isinstance(prior, Normal) and prior.is_centered and prior.batch_shape == ()
            scale = float(prior.scale) if is_centered else None  # type: ignore[attr-defined]
            shared.setdefault(id(prior), (prior, scale, []))[2].append((name, owners[name]))
        self._groups = list(shared.values())
        self._caller = (Caller(self.net, self._forward),)  # in a tuple, so that the network is registered once

    def _predictor(self, samples: int | str, seed: int | None) -> NetworkPredictor:
        """All draws are the same, so one is enough."""
        check_samples(samples)
        return NetworkPredictor(self, 0, None)

    def _describe_parameter(self, name: str) -> str:
        return f"point estimate (prior {self._priors[name]!r})"

    @override
    def extra_repr(self) -> str:
        """The prior.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        return f"prior={self.prior!r}"

    def _own_config(self) -> dict[str, object]:
        bayesian = as_json(self._bayesian)
        return {"prior": to_config(self.prior), "bayesian": bayesian}
