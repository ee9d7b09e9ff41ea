r"""SWAG: a Gaussian posterior from the weights that an optimizer passes through."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Never, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from typing_extensions import Unpack, override

from credo import data as data_
from credo._arguments import check_integer
from credo._devices import at_least_float32
from credo._loaders import with_all_rows
from credo._notices import notify
from credo.errors import InputError, LoadError, UnsupportedError
from credo.functional import Caller, Forward
from credo.likelihoods import Likelihood
from credo.methods.base import check_samples
from credo.methods.network import NetworkMethod, NetworkPredictor
from credo.posteriors.trajectory import TrajectoryGaussian
from credo.priors import Normal, Prior, move_priors, resolve, to_config
from credo.seeding import seeded
from credo.selection import as_json, select
from credo.training.options import FitKeywords, FitOptions, with_fit_options
from credo.training.step import is_too_few_rows
from credo.training.supervised import SupervisedTask, Terms

_COLLECTING_RATE = 0.2
"""The learning rate while weights are collected, as a fraction of that at the start."""


class SWAG(NetworkMethod):
    r"""Stochastic weight averaging, Gaussian: the mean and the covariance of the weights late in training.

    :meth:`fit` trains the network as :class:`credo.MAP` does. From ``start`` of the training on it collects the
    weights; then

        q(w) = N(θ̄, ½·diag(v) + D·Dᵀ/(2·(K − 1))),

    where θ̄ and v are their mean and variance, and the columns of D the deviations of the last K of them from the mean
    so far. The network ends with the weights θ̄.

    By default the learning rate falls linearly to a fifth until ``start`` and stays there, and the optimizer is Adam.
    The paper uses ``fit(..., optimizer=functools.partial(torch.optim.SGD, momentum=0.9), lr=...)``; the spread of the
    posterior depends on the optimizer and its learning rate. For several modes there is
    ``credo.DeepEnsemble(net, base=credo.SWAG)`` (multi-SWAG).

    Batch norm: after training its running statistics are computed again for the weights θ̄. Drawn weights use the same
    ones, as a prediction has no training data to compute their own with.

    Args:
        net: any ``nn.Module``; it is not rewritten.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        prior: p(w), whose log density is part of the loss.
        bayesian: name pattern or patterns of the parameters to cover; ``"*"`` is all trainable ones but the affine
            parameters of normalization layers.
        rank: the largest K; 0 leaves the weights independent, N(θ̄, diag(v)).
        start: the fraction of the training steps before the first weights are collected, from 0 to below 1.
        snapshots: the number of times that weights are collected, at even distances up to the last step; every step
            where there are fewer.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Example:
        >>> model = credo.SWAG(net, credo.Categorical()).fit((x, y), epochs=40)
        >>> model.predict(x_new).epistemic

    References: W. Maddox, T. Garipov, P. Izmailov, D. Vetrov, A. G. Wilson, "A simple baseline for Bayesian uncertainty
    in deep learning", NeurIPS 2019. A. G. Wilson, P. Izmailov, "Bayesian deep learning and a probabilistic perspective
    of generalization", NeurIPS 2020 (multi-SWAG).
    """

    posterior: TrajectoryGaussian
    _derived = frozenset({"_priors_here"})

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        *,
        bayesian: str | Sequence[str] = "*",
        rank: int = 20,
        start: float = 0.5,
        snapshots: int = 100,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(net, likelihood, forward)
        if isinstance(start, bool) or not isinstance(start, int | float) or not 0.0 <= start < 1.0:
            raise InputError(f"start must be a fraction of the training from 0 to below 1, got {start!r}")
        self._start = float(start)
        self._snapshots = check_integer(snapshots, "snapshots", minimum=2)
        self._bayesian, self._rank = bayesian, rank
        self.prior: Prior = Normal(0.0, 1.0) if prior is None else prior
        self.posterior = TrajectoryGaussian(net, select(net, bayesian), rank)
        self._priors = resolve(self.prior, {name: w.shape for name, w in self.posterior.mean().items()})
        self._is_fitting = False
        self._follow_parameters()

    @override
    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        return self._point_terms(x, y, sample_weight)

    @override
    def kl(self) -> Tensor:
        """−log p(w) of the network's weights, which training minimizes.

        Returns:
            A scalar in nats, differentiable.
        """
        dtype = at_least_float32(self.dtype)
        weights = {name: self.net.get_parameter(name).to(dtype) for name in self._priors_here}
        penalties = [-p.log_prob(self.posterior._under(p, n, weights[n])).sum() for n, p in self._priors_here.items()]
        return torch.stack(penalties).sum()

    @with_fit_options
    def fit(self, data: Any, **options: Unpack[FitKeywords]) -> Self:
        """Train the network, collect its weights on the way, and leave it with their mean.

        A model that was fitted before continues from that mean, and forgets the weights that it had collected.

        Args:
            data: a DataLoader, a Dataset, or a tuple of tensors or arrays ``(x, y)`` or ``(x, y, sample_weight)``,
                rows along dim 0.
            **options: see :class:`credo.training.FitOptions`.

        Returns:
            The model itself.

        Raises:
            InputError: data or options do not match the model; it is unchanged.
            DivergenceError: the loss became NaN or infinite; the model is as after its last good epoch.
        """
        options.setdefault("schedule", self._learning_rate_factor)
        self._is_fitting = True
        try:
            super().fit(data, **options)
        finally:
            self._is_fitting = False
        self._refresh_batch_norm(data, FitOptions.from_keywords(options).batch_size)
        return self

    def _learning_rate_factor(self, progress: float) -> float:
        """From 1 at the start, linearly to what it is while weights are collected."""
        if progress >= self._start:
            return _COLLECTING_RATE
        return 1.0 - (1.0 - _COLLECTING_RATE) * progress / self._start

    @torch.no_grad()
    def _refresh_batch_norm(self, data: Any, batch_size: int) -> None:
        """Compute the running statistics of batch norm for the mean weights, as averages over all rows.

        Minibatches are in random order, as in training: those of sorted rows would vary less.
        """
        norms = [
            module
            for module in self.net.modules()
            if isinstance(module, _NormBase) and module.running_mean is not None and _is_trainable(module)
        ]
        if not norms or not self.posterior.count:
            return
        before = [(norm, norm.momentum, copy.deepcopy(norm.state_dict())) for norm in norms]
        caller, rows, is_done = Caller(self.net, self._forward), 0, False
        for norm in norms:
            norm.reset_running_stats()
            norm.train()
        try:
            with seeded(0, self.device):
                loader = data_.make_loader(data, batch_size, 0, 0, 1, self.dtype, self.device)
                for raw in with_all_rows(loader):
                    batch = data_.move(data_.as_batch(raw), self.device)
                    for norm in norms:
                        norm.momentum = len(batch.y) / (rows + len(batch.y))
                    try:
                        caller(batch.x)
                    except ValueError as error:
                        if not is_too_few_rows(error):
                            raise
                        continue  # one row has no variance
                    rows += len(batch.y)
            is_done = rows > 0
        finally:
            for norm, momentum, state in before:
                norm.momentum = momentum
                norm.eval()
                if not is_done:
                    norm.load_state_dict(state)
        if is_done:
            notify(
                "the statistics of batch norm were computed again for the mean weights; predictions use them for all "
                "drawn weights"
            )

    @override
    def elbo(self, data: Any, samples: int = 10, seed: int | None = None) -> Never:
        """Not available: the covariance comes from the trajectory, not from a bound, and may be singular.

        Args:
            data: as for :meth:`fit`.
            samples: number of weight draws.
            seed: for the draws.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "SWAG has no evidence lower bound: its covariance may be singular; compare models by predict(x).log_prob(y)"
        )

    def _predictor(self, samples: int | str, seed: int | None) -> NetworkPredictor:
        return NetworkPredictor(self, 0 if self._is_fitting else check_samples(samples), seed)

    def _training_task(self) -> _CollectingTask:
        return _CollectingTask(self)

    def _follow_parameters(self) -> None:
        """Move the priors to the device of the parameters."""
        self._priors_here = move_priors(self._priors, self.device, at_least_float32(self.dtype))

    def _describe_parameter(self, name: str) -> str:
        return f"SWAG ({int(self.posterior.count)} sets of weights, prior {self._priors[name]!r})"

    @override
    def extra_repr(self) -> str:
        """The prior and what is collected.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        return f"prior={self.prior!r}, rank={self._rank}, start={self._start:g}, snapshots={self._snapshots}"

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        super()._check_sizes(config, tensors)
        held = [len(value) for name, value in tensors.items() if ".deviations." in f".{name}" and value.dim()]
        if config.get("rank") not in held:
            raise LoadError(f"has rank {config.get('rank')!r:.100}, but no tensor of that many deviations")

    def _own_config(self) -> dict[str, object]:
        return {
            "prior": to_config(self.prior),
            "bayesian": as_json(self._bayesian),
            "rank": self._rank,
            "start": self._start,
            "snapshots": self._snapshots,
        }


class _CollectingTask(SupervisedTask[SWAG]):
    """Collects weights at even distances, from ``start`` of the training to its end."""

    def check_keywords(self, keywords: FitKeywords) -> None:
        """Raise ``InputError`` for early stopping, which keeps the weights of one moment."""
        if keywords.get("patience") is not None:
            raise InputError(
                "patience keeps the weights of one epoch, but SWAG takes the moments of many: leave it out"
            )

    def on_train_start(self, steps: int | None) -> None:
        """Forget an earlier trajectory."""
        if steps is None:
            raise InputError(
                "SWAG needs to know the number of steps in advance, but the loader has no length; "
                "pass tensors or a data set, or a loader with a length"
            )
        self._length, self._first = steps, int(self.model._start * steps)
        self._every = max(1, (steps - self._first) // self.model._snapshots)
        if steps:
            self.model.posterior.clear()

    def on_batch_end(self, step: int) -> None:
        """Collect the weights after some of the steps, the last one among them."""
        if step > self._first and (self._length - step) % self._every == 0:
            self.model.posterior.collect()

    def on_train_end(self) -> None:
        """Set the network to the mean."""
        if self.model.posterior.count:
            self.model.posterior.center()
        if self.model.posterior.count == 1:
            notify(
                "the weights of one step only were collected, so that the posterior has no width and predictions no "
                "epistemic uncertainty: train for more epochs, in smaller batches, or with a lower start="
            )


def _is_trainable(module: nn.Module) -> bool:
    """Whether a layer is not frozen; one without parameters is not."""
    parameters = list(module.parameters())
    return not parameters or any(parameter.requires_grad for parameter in parameters)
