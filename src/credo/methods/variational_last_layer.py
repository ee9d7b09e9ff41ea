r"""Variational Bayesian last layers: a network whose last layer has a Gaussian posterior, trained without sampling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from credo._arguments import check_option
from credo.functional import Forward
from credo.likelihoods import Likelihood
from credo.methods._expected_log_likelihood import check_has_expectation, expected_log_prob
from credo.methods._last_layer import LastLayerMethod, layer_parameters
from credo.posteriors.last_layer import CholeskyGaussian
from credo.priors import Prior, to_config
from credo.training.optimizers import STEPS, NaturalAdam, relative_step
from credo.training.supervised import SupervisedTask, Terms

_COVARIANCES = ("dense", "diagonal")


class VariationalLastLayer(LastLayerMethod):
    r"""A Gaussian posterior over the last linear layer, with features φ(x) that are learned with it.

        f_k(x) = θ_kᵀφ(x),    q(θ) = ∏_k N(θ̄_k, L_k·L_kᵀ),    p(θ) = N(m, s²)

    Features, θ̄ and L maximize a lower bound of log p(D | features) that needs no samples:

        Σ_n B_n − KL(q ‖ p),
        B_n = log N(y; θ̄ᵀφ, σ²) − φᵀSφ/(2σ²)                           Gaussian: E_q[log p(y | f)] itself
        B_n = θ̄_yᵀφ − log Σ_k exp(θ̄_kᵀφ + ½·φᵀS_kφ) ≤ E_q[log p(y | f)]      Categorical

    A step is one pass of the deterministic network and K·D² operations per row for its K outputs and D features. Given
    the features, the result for Gaussian noise is the exact posterior of Bayesian linear regression. The features
    themselves are a point estimate: give them some ``weight_decay`` in :meth:`fit`; it leaves the last layer, which has
    its prior, alone.

    Predictions draw the last layer only; the rest of the network runs once for all draws. ``predict(x,
    samples="moments")`` needs no draws: outputs are Gaussian, and so is the prediction for Gaussian noise, exactly.
    :meth:`elbo` estimates E_q[log p(D | f)] − KL(q ‖ p) by draws; for classes it is above the bound that is trained.

    Args:
        net: any ``nn.Module`` whose output is that of an ``nn.Linear``; it is not rewritten.
        likelihood: p(y | f(x)): Gaussian, Categorical without ``logit_noise``, Bernoulli or Poisson; ``None`` follows
            from the target's dtype.
        prior: p(θ), a :class:`credo.Normal` or :class:`credo.AdaptiveNormal`, or a mapping from name patterns to them.
        layer: the name of the last layer, such as ``"head"``; ``None``: the ``nn.Linear`` that was registered last.
        covariance: ``"dense"``: S_k is any covariance of the weights and the bias of output k, K·(D + 1)² numbers.
            ``"diagonal"``: all weights are independent.
        initial_scale: the standard deviations of the weights at the start.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Example:
        >>> model = credo.VariationalLastLayer(net, credo.Gaussian("learned")).fit((x, y), epochs=100)
        >>> model.predict(x_new).epistemic
        >>> model.predict(x_new, samples="moments").interval(0.95)

    Reference: J. Harrison, J. Willes, J. Snoek, "Variational Bayesian last layers", ICLR 2024.
    """

    posterior: CholeskyGaussian

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        *,
        layer: str | None = None,
        covariance: str = "dense",
        initial_scale: float = 0.1,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(net, likelihood, prior, layer, forward)
        check_has_expectation(self.likelihood)
        self._covariance = check_option(covariance, "covariance", _COVARIANCES)
        names = layer_parameters(self.net, self._layer)
        self.posterior = CholeskyGaussian(self.net, names, covariance == "dense", initial_scale)

    @override
    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        self._resolve_likelihood(y)
        if not torch.compiler.is_compiling():
            self._prepare(x)
        moments = self._output_moments(self._features(x))
        if not torch.compiler.is_compiling():
            self._features.replica.sync_to_network()
        bound = expected_log_prob(self.likelihood, moments.mean, moments.variance, y)
        return Terms(self._weighted_nll(bound, sample_weight), self.kl())

    def _prepare(self, x: Any) -> None:
        """Update the private replica, and check on a first batch that the network can be used."""
        self._features.replica.sync_from_network()
        self._inspect(x, training=True)

    @override
    def kl(self) -> Tensor:
        return self.posterior.kl_to(self._priors_here)

    def _training_task(self) -> _LastLayerTask:
        return _LastLayerTask(self)

    def _describe_parameter(self, name: str) -> str:
        return f"Bayesian ({self._covariance}, prior {self._priors[name]!r})"

    @override
    def extra_repr(self) -> str:
        """The prior and the form of the covariance.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        return f"prior={self.prior!r}, layer={self._layer!r}, covariance={self._covariance!r}"

    def _own_config(self) -> dict[str, object]:
        return {"prior": to_config(self.prior), "layer": self._layer, "covariance": self._covariance}


class _LastLayerTask(SupervisedTask[VariationalLastLayer]):
    """Trains means in units of σ, and scales and correlations in steps that do not depend on the network."""

    minimum_steps = STEPS

    def default_optimizer(self, groups: list[dict[str, Any]], lr: float) -> Optimizer:
        """Adam in units of the posterior's standard deviations."""
        posterior, step = self.model.posterior, relative_step(self._steps)
        split = []
        for group in groups:
            own = [p for p in group["params"] if p is posterior.correlations]
            split += [{**group, "params": [p for p in group["params"] if p is not posterior.correlations]}]
            split += [{**group, "params": own, "lr": max(lr, step)}] if own else []
        return NaturalAdam(split, posterior.scale_parameters(), lr, step)
