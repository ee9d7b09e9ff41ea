"""Members of an ensemble trained at once: their parameters are the rows of one matrix, and one step moves all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.data import DataLoader, Dataset

from credo import data as data_
from credo._embeddings import without_padding
from credo.errors import CredoError, UnsupportedError
from credo.functional import Draw
from credo.methods._flat_stack import LIKELIHOOD, NET, FlatStack, RowLogLikelihood
from credo.methods._log_joint import LogPrior
from credo.methods.map import MAP
from credo.methods.network import NetworkMethod
from credo.priors import move_priors
from credo.stacking import Stack
from credo.training.options import FitKeywords
from credo.training.supervised import SupervisedTask
from credo.training.task import SINGLE, Task

_LARGEST_NETWORK = 100_000
"""Parameters, above which arithmetic takes most of the time of a step on a CPU, and stacking has nothing to gain."""
_ELEMENTWISE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.SGD)
_TOGETHER = ("checkpoint", "compile", "gradient_clip", "patience", "resume")
"""Options that act on the weights, or the course, of one network."""


class CannotStack(CredoError):
    """Members cannot be trained at once; raised before the first step."""


def find_obstacle(members: Sequence[NetworkMethod], options: FitKeywords, is_asked_for: bool) -> str | None:
    """Why members are not to be trained at once, or ``None``.

    Args:
        members: the members.
        options: of ``fit``.
        is_asked_for: stack large networks too.
    """
    nets = [member.net for member in members]
    size = sum(parameter.numel() for parameter in nets[0].parameters())
    asked = [name for name in _TOGETHER if options.get(name)]
    if len(members) == 1:
        return "there is only one"
    if not all(type(member) is MAP for member in members):
        return f"{type(members[0]).__name__} trains each with noise of its own"
    if asked:
        return f"{asked[0]} is for one network at a time"
    if options.get("devices", 1) != 1 or str(options.get("precision", "32-true")) not in ("32-true", "32"):
        return "that needs one process and precision='32-true'"
    if options.get("optimizer") not in (None, *_ELEMENTWISE):
        return "it is not known whether the optimizer treats every weight by itself"
    if torch.finfo(members[0].dtype).bits < 32:
        return "that needs at least 32 bits"
    if any(isinstance(module, _NormBase) for net in nets for module in net.modules()):
        return "batch norm keeps statistics, which they would share"
    if any(not parameter.requires_grad for net in nets for parameter in net.parameters()):
        return "they have frozen parameters, which they would share"
    if not is_asked_for and members[0].device.type == "cpu" and size > _LARGEST_NETWORK:
        return "large networks gain nothing on a CPU"
    return None


class MemberStack(nn.Module):
    r"""K members of one architecture, and the matrix ``[K, P]`` that holds their weights during training.

    The loss is the *sum* of the members' losses, so that each row of its gradient is the gradient of one member, and an
    elementwise optimizer moves each as if it were alone.

    Args:
        members: point estimates with networks of one architecture.
    """

    _training_path: str | None = None

    def __init__(self, members: Sequence[MAP]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.history: list[dict[str, float]] = []
        self.n_data: int | None = None
        self.last_terms: dict[str, Tensor] = {}
        self.weights: nn.Parameter | None = None
        self.noise: nn.Parameter | None = None
        self._resting: list[nn.Parameter] = []

    @property
    def models(self) -> list[MAP]:
        """The members."""
        return [member for member in self.members if isinstance(member, MAP)]

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.models[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the parameters."""
        return self.models[0].dtype

    def build(self, batch: data_.Batch) -> None:
        """Stack the weights, after a check on ``batch`` that one network with K sets of weights is the K networks.

        Raises:
            CannotStack: it is not.
        """
        modules = [RowLogLikelihood(m.net, m.likelihood, m._forward) for m in self.models]
        named = [{n: p for n, p in module.named_parameters() if p.requires_grad} for module in modules]
        shapes = [{name: p.shape for name, p in own.items()} for own in named]
        if any(own != shapes[0] for own in shapes) or len({(m.device, m.dtype) for m in self.models}) > 1:
            raise CannotStack("they have different parameters")
        stacked = {name: torch.stack([own[name].detach() for own in named]) for name in named[0]}
        self._check(modules[0], stacked, batch)
        self._rows = FlatStack(modules[0], list(stacked), len(modules), training=True)
        first = self.models[0]
        priors = move_priors(first._priors, self.device, first._wide)
        self._prior = LogPrior({f"{NET}{name}": prior for name, prior in priors.items()}, self._rows)
        for name, row in self._rows.padding.items():  # at the center of its prior, which does not move it there
            prior = priors.get(name.removeprefix(NET))
            stacked[name] = torch.stack([without_padding(weight, row, prior) for weight in stacked[name]])
        noise = {name: value for name, value in stacked.items() if name.startswith(LIKELIHOOD)}
        self.weights = nn.Parameter(self._rows.flatten({n: v for n, v in stacked.items() if n not in noise}))
        self.noise = nn.Parameter(self._rows.flatten(noise)) if noise else None
        self._resting = [parameter for own in named for parameter in own.values()]
        self._rest(True)

    @torch.no_grad()
    def _check(self, module: RowLogLikelihood, stacked: Draw, batch: data_.Batch) -> None:
        """Raise ``CannotStack`` unless the stack computes what the members do."""
        try:
            self.models[0]._inspect(batch.x, training=True)
            stack = Stack(module, len(self.members), names=list(stacked))
            rows = stack(stacked, (batch.x, batch.y))
        except UnsupportedError as error:
            raise CannotStack(str(error)) from error
        if not stack.is_vectorized:
            raise CannotStack("their networks run one after the other in any case")
        for member, found in zip(self.models, rows, strict=True):
            expected = member.likelihood.log_prob(member._predictor(0, None).outputs(batch.x)[0], batch.y)
            if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3):
                raise CannotStack("their networks differ in more than their weights")

    def forward(self, x: Any, y: Tensor, n_data: int, *, sample_weight: Tensor | None = None) -> Tensor:
        """The sum of the members' losses."""
        position = self._position()
        likelihood = self._rows.log_likelihood(position, data_.Batch(x, y, sample_weight)).times(-1.0 / max(len(y), 1))
        prior = self._prior(position)
        nll, kl = likelihood.log_density, -prior.log_density
        self.last_terms = {"nll": nll.to(self.dtype), "kl": kl.to(self.dtype)}
        gradient = likelihood.gradient.sub(prior.gradient, alpha=1.0 / n_data)
        return _WithGradient.apply(position, nll.add(kl, alpha=1.0 / n_data).sum(), gradient)  # type: ignore[no-any-return, no-untyped-call]

    @torch.no_grad()
    def write_back(self) -> None:
        """Give the members their rows of the matrix."""
        self._rows.write(self._position(), [(member.net, member.likelihood) for member in self.models])

    def finish(self) -> None:
        """Give the members their weights and histories, if training has begun."""
        self._rest(False)
        if self.weights is None:
            return
        self.write_back()
        for k, member in enumerate(self.models):
            member.history = [_entry_of(k, entry) for entry in self.history]
            member.n_data, member._training_path = self.n_data, self._training_path

    def _rest(self, is_resting: bool) -> None:
        """Freeze the members' own parameters, which training does not change, so that no epoch copies them."""
        for parameter in self._resting:
            parameter.requires_grad_(not is_resting)

    def _position(self) -> Tensor:
        """All weights, ``[K, P]``."""
        assert self.weights is not None
        return self.weights if self.noise is None else torch.cat([self.weights, self.noise], 1)


class StackedTask(Task[MemberStack]):
    """Trains members at once. Metrics of member k are named ``metric/k``.

    Args:
        model: the stack.
    """

    def __init__(self, model: MemberStack) -> None:
        super().__init__(model)
        self._parts = [SupervisedTask(member) for member in model.models]

    def setup(self, batch: data_.Batch) -> None:
        """Choose the likelihoods from the targets, if none were given."""
        for part in self._parts:
            part.model.n_data = self.model.n_data
            part.setup(batch)

    def undo_setup(self) -> None:
        """Restore likelihoods and numbers of data, and drop the stacked weights."""
        super().undo_setup()
        self.model.weights = self.model.noise = None
        for part in self._parts:
            part.undo_setup()

    def check_data(self, batch: data_.Batch, dataset: Dataset[Any] | DataLoader[Any]) -> None:
        """Raise ``InputError`` for data that do not match the members; stack the weights of those that can be."""
        self._parts[0].check_data(batch, dataset)
        if self.model.weights is None:
            self.model.build(batch)

    def check_batch(self, batch: data_.Batch) -> None:
        """Raise ``InputError`` if a minibatch does not match the members."""
        self._parts[0].check_batch(batch)

    def parameter_groups(self, weight_decay: float) -> dict[str, list[dict[str, Any]]]:
        """One optimizer, with weight decay on the networks' weights only."""
        groups: list[dict[str, Any]] = [{"params": [self.model.weights], "weight_decay": weight_decay}]
        if self.model.noise is not None:
            groups.append({"params": [self.model.noise], "weight_decay": 0.0})
        return {SINGLE: groups}

    def step_metrics(self) -> Mapping[str, Tensor]:
        """NLL and KL of every member."""
        return {
            f"{term}/{k}": value
            for term, values in self.model.last_terms.items()
            for k, value in enumerate(values.unbind())
        }

    @torch.no_grad()
    def finite_check(self, batch: data_.Batch) -> Tensor:
        """The sum of the losses."""
        loss: Tensor = self.model(batch.x, batch.y, self.model.n_data)
        return loss

    def epoch_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """NLL per row, KL and ELBO of every member."""
        assert self.model.n_data is not None
        members = range(len(self._parts))
        elbo = {f"elbo/{k}": -self.model.n_data * means[f"nll/{k}"] - means[f"kl/{k}"] for k in members}
        return {**means, **elbo}

    def progress_text(self, metrics: Mapping[str, float]) -> str:
        """Means over the members, as for one of them."""
        members = [_entry_of(k, metrics) for k in range(len(self._parts))]
        return self._parts[0].progress_text({key: sum(m[key] for m in members) / len(members) for key in members[0]})

    def validation_step(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        """Mean log predictive density and ELBO per held-out row, of every member, and their means over the members."""
        self.model.write_back()
        scores = [part.validation_step(held_out, seed) for part in self._parts]
        own = {f"{key}/{k}": value for k, found in enumerate(scores) for key, value in found.items()}
        return {**own, **{key: sum(found[key] for found in scores) / len(scores) for key in scores[0]}}


class _WithGradient(torch.autograd.Function):
    """A value whose gradient is known already."""

    @staticmethod
    def forward(ctx: Any, position: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value.to(position.dtype)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return outer[0] * gradient, None, None


def _entry_of(k: int, entry: Mapping[str, float]) -> dict[str, float]:
    """What an entry of the history says of member ``k``."""
    own = {key: value for key, value in entry.items() if "/" not in key}
    return own | {key.partition("/")[0]: value for key, value in entry.items() if key.endswith(f"/{k}")}
