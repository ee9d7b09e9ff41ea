"""Deep ensembles: networks trained independently from different initial weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Never, Self

import torch
from torch import Tensor, nn
from typing_extensions import Unpack, override

from credo._arguments import check_integer, check_option
from credo._notices import notify
from credo._tensors import TENSORS
from credo.errors import InputError, LoadError, UnsupportedError
from credo.io import MODELS
from credo.methods._initialization import check_is_fresh, perturb, reinitialize
from credo.methods._stacked_training import CannotStack, MemberStack, StackedTask, find_obstacle
from credo.methods.base import Method, Predictor, check_samples
from credo.methods.map import MAP
from credo.methods.network import NetworkMethod
from credo.model import Model
from credo.predictive import Predictive
from credo.seeding import check_seed, derive
from credo.selection import check_network
from credo.training.loggers import NumberedLogger
from credo.training.loop import train
from credo.training.options import FitKeywords, with_fit_options

_INITS = ("fresh", "perturb")


class DeepEnsemble(Method):
    """A mixture of models, each trained independently; with equal weights, unless :meth:`set_weights` sets others.

    Args:
        net_or_factory: a network, which is copied; a callable that makes a network; or a list of ready networks,
            which are kept as they are.
        members: number of members; ``None``: 5, or as many as there are ready networks.
        base: the method each member is fitted with, such as ``credo.MAP`` or ``credo.BayesByBackprop``.
        init: where the copies of a network start. ``"fresh"``: each trainable parameter anew at random, by its module's
            ``reset_parameters``. ``"perturb"``: at the network's own weights, with Gaussian noise of a tenth of each
            tensor's root mean square, for members that fine-tune a trained network. ``None``: fresh; raises
            ``InputError`` if the network looks trained. Frozen parameters are never changed.
        members_at_once: whether to train all members in one step, with their weights stacked, on the same minibatches:
            for small networks little more than the price of one. ``"auto"``: for point estimates, where it is possible
            and, on a CPU, the networks are small; ``True``: large ones too; ``False``: one after the other, each with
            minibatches of its own. Other methods, convolutions on a CPU, batch norm, frozen parameters, early stopping,
            checkpoints and gradient clipping train one after the other in any case.
        **options: passed to ``base``: ``likelihood=``, ``prior=``, … A likelihood with learned noise is copied, so
            that every member learns its own.

    Example:
        >>> ensemble = credo.DeepEnsemble(net, members=5, likelihood=credo.Gaussian("heteroscedastic"))
        >>> ensemble.fit((x, y), epochs=40).predict(x_new).epistemic

    Reference: B. Lakshminarayanan, A. Pritzel, C. Blundell, "Simple and scalable predictive uncertainty estimation
    using deep ensembles", NeurIPS 2017.
    """

    def __init__(
        self,
        net_or_factory: nn.Module | Callable[[], nn.Module] | Sequence[nn.Module],
        members: int | None = None,
        base: type[NetworkMethod] = MAP,
        init: str | None = None,
        members_at_once: bool | str = "auto",
        **options: Any,
    ) -> None:
        super().__init__()
        self._at_once = _check_at_once(members_at_once)
        if init is not None:
            check_option(init, "init", _INITS)
        if not (isinstance(base, type) and issubclass(base, NetworkMethod)):
            raise InputError(
                "base must be the class of a method such as credo.MAP, "
                f"got {getattr(base, '__name__', type(base).__name__)}"
            )
        networks = _networks(net_or_factory, members, init)
        _check_apart(networks)
        self.members = nn.ModuleList(base(net, **_own(options)) for net in networks)
        self.base = base
        self.weights: list[float] | None = None

    def set_weights(self, weights: Sequence[float] | None) -> None:
        """Set the weights of the members in predictions.

        Args:
            weights: one number of at least 0 per member, divided by their sum; ``None``: equal weights.

        Raises:
            InputError: the weights are not such numbers.
        """
        if weights is None:
            self.weights = None
            return
        try:
            values = torch.as_tensor(weights, dtype=torch.float64)
        except (TypeError, ValueError):
            values = torch.zeros(0, dtype=torch.float64)
        if values.shape != (len(self.members),) or not bool((values >= 0).all()) or not 0 < float(values.sum()) < 1e300:
            raise InputError(
                f"weights must be one finite number of at least 0 for each of {len(self.members)} members, and not all "
                f"0, got {weights!r:.100}"
            )
        total = float(values.sum())
        self.weights = (values if abs(total - 1.0) < 1e-9 else values / total).tolist()  # saved ones stay as they are

    @override
    def forward(self, x: Any, y: Tensor, n_data: int | None = None, **options: Any) -> Tensor:
        """The mean of the members' losses; they share no parameters, so each is trained as if alone.

        Args:
            x: inputs, rows along dim 0.
            y: targets.
            n_data: the number of training data.
            **options: as for the members.

        Returns:
            The loss in nats, a scalar.
        """
        return torch.stack([member(x, y, n_data, **options) for member in self._models()]).mean()

    @with_fit_options
    def fit(self, data: Any, **options: Unpack[FitKeywords]) -> Self:
        """Fit every member: all at once, see ``members_at_once``, or one after the other, each with a seed of its own.

        With ``checkpoint="folder"`` member ``i`` writes to ``folder/member_i``.

        Args:
            data: as for every method.
            **options: see :class:`credo.training.FitOptions`.

        Returns:
            The ensemble itself.
        """
        obstacle = self._fit_at_once(data, options) if self._at_once else "members_at_once is False"
        if obstacle is not None:
            if self._at_once is True:
                notify(f"members are trained one after the other: {obstacle}")
            self._fit_one_by_one(data, options)
        self.history = [{"member": i, **entry} for i, m in enumerate(self._models()) for entry in m.history]
        return self

    def _fit_at_once(self, data: Any, options: FitKeywords) -> str | None:
        """Train the stacked members; or leave them as they are, and say why."""
        members = self._models()
        obstacle = find_obstacle(members, options, self._at_once is True)
        if obstacle is not None:
            return obstacle
        stack = MemberStack([member for member in members if isinstance(member, MAP)])
        try:
            train(StackedTask(stack), data, options)
        except CannotStack as error:
            return str(error)
        finally:
            stack.finish()
        return None

    def _fit_one_by_one(self, data: Any, options: FitKeywords) -> None:
        seed, folder = options.get("seed"), options.get("checkpoint")
        for i, member in enumerate(self._models()):
            own: FitKeywords = {**options, "seed": None if seed is None else derive(check_seed(seed), i)}
            if folder is not None:
                own["checkpoint"] = f"{folder}/member_{i}"
            if options.get("logger") is not None:
                own["logger"] = NumberedLogger(options["logger"], i)
            member.fit(data, **own)

    def _predictor(self, samples: int | str, seed: int | None) -> Predictor:
        return EnsemblePredictor(self._models(), check_samples(samples), seed, self.weights)

    @override
    def elbo(self, data: Any, samples: int = 10, seed: int | None = None) -> float:
        return sum(member.elbo(data, samples, seed) for member in self._models()) / len(self.members)

    @override
    def parameter_groups(self, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        return [group for member in self._models() for group in member.parameter_groups(weight_decay)]

    @override
    def summary(self) -> str:
        return f"{len(self.members)} members, each:\n{self._models()[0].summary()}"

    def _training_task(self) -> Never:
        raise UnsupportedError("members of an ensemble are trained one after the other, each by its own task")

    def _get_config(self) -> dict[str, object]:
        first = self._models()[0]
        return {
            "base": self.base.__name__,
            "members": len(self.members),
            "members_at_once": self._at_once,
            "member": first._get_config(),
            "weights": self.weights,
        }

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        found = len({name.split(".")[1] for name in tensors if name.startswith("members.")})
        if config.get("members") != found:
            raise LoadError(f"has {config.get('members')!r:.100} members, but {TENSORS} holds {found}")
        base = MODELS.lookup(config.get("base"))
        checked = base if issubclass(base, NetworkMethod) else NetworkMethod
        checked._check_sizes(config["member"] if isinstance(config.get("member"), dict) else {}, tensors)

    @classmethod
    def _from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        base = MODELS.lookup(config.get("base"))
        if not issubclass(base, NetworkMethod):
            raise LoadError(f"{base.__name__} cannot be the base of an ensemble")
        ensemble = cls.__new__(cls)
        Method.__init__(ensemble)
        networks = _networks(net, config["members"], "as it is")
        ensemble.members = nn.ModuleList(base._from_config(config["member"], n, **_own(overrides)) for n in networks)
        ensemble.base = base
        ensemble.set_weights(config.get("weights"))
        ensemble._at_once = _check_at_once(config.get("members_at_once", "auto"))
        return ensemble

    def _describe_networks(self) -> dict[str, object]:
        return self._models()[0]._describe_networks()

    def _describe_training(self) -> dict[str, object]:
        return {"history": self.history, "members": [member._describe_training() for member in self._models()]}

    def _restore_training(self, card: object) -> None:
        super()._restore_training(card)
        cards = card.get("members") if isinstance(card, dict) else None
        for member, own in zip(self._models(), cards if isinstance(cards, list) else [], strict=False):
            member._restore_training(own)

    def _models(self) -> list[NetworkMethod]:
        return [member for member in self.members if isinstance(member, NetworkMethod)]


class Share(NamedTuple):
    """The part of one member in a prediction by draws.

    Attributes:
        model: the member.
        samples: number of its draws; 0: its mean weights.
        seed: of its draws; 0 if there are none.
        weight: of the member; those of all members sum to 1.
    """

    model: NetworkMethod
    samples: int
    seed: int
    weight: float


def share_draws(
    models: Sequence[NetworkMethod], samples: int, seed: int | None, weights: Sequence[float] | None
) -> list[Share]:
    """⌈S/M⌉ draws of each of M members; with S = 0, the mean weights of the most important member alone."""
    if samples == 0:
        first = 0 if weights is None else max(range(len(models)), key=weights.__getitem__)
        return [Share(models[first], 0, 0, 1.0)]
    base, each = check_seed(seed), -(-samples // len(models))
    equal = [1.0 / len(models)] * len(models)
    members = zip(models, equal if weights is None else weights, strict=True)
    return [Share(model, each, derive(base, i), weight) for i, (model, weight) in enumerate(members)]


def shares_of(model: Method, samples: int, seed: int) -> list[Share]:
    """The networks of a method with the draws that its ``predict`` has for the same arguments."""
    if isinstance(model, NetworkMethod):
        return [Share(model, samples, seed, 1.0)]
    if isinstance(model, DeepEnsemble):
        return share_draws(model._models(), samples, seed, model.weights)
    raise UnsupportedError(f"model must be a method with a network, or an ensemble of them, not {type(model).__name__}")


class EnsemblePredictor(Predictor):
    """Predicts with ⌈S/M⌉ draws of each of M members; with S = 0, with the mean weights of the most important alone.

    Args:
        models: the members.
        samples: S, or ``"moments"``.
        seed: of the draws.
        weights: of the members, summing to 1; ``None``: they are equal.

    Attributes:
        parts: the predictors of the members.
        weights: their weights, ``[M]``; ``None``: they are equal.
    """

    def __init__(
        self,
        models: list[NetworkMethod],
        samples: int | str,
        seed: int | None,
        weights: Sequence[float] | None = None,
    ) -> None:
        self.parts: list[Predictor]
        self.weights = None if weights is None else torch.tensor(weights, dtype=torch.float64)
        if isinstance(samples, str):
            self.parts = [model._predictor(samples, None) for model in models]
            return
        shares = share_draws(models, samples, seed, weights)
        self.parts = [share.model._predictor(share.samples, share.seed) for share in shares]
        if samples == 0:
            self.weights = None

    def __call__(self, x: Any, batch_size: int | None = None, vectorize: str = "auto") -> Predictive:
        """The mixture of the members' predictive distributions."""
        return Predictive.mixture([part(x, batch_size, vectorize) for part in self.parts], self.weights)


def _networks(source: Any, members: int | None, init: str | None) -> list[nn.Module]:
    if isinstance(source, list | tuple):
        if not source:
            raise InputError("the list of networks is empty; give at least one")
        if members is not None and members != len(source):
            raise InputError(f"members={members}, but {len(source)} networks were given; leave members out")
        return list(source)
    count = 5 if members is None else check_integer(members, "members", minimum=1)
    if isinstance(source, Model):
        kind = type(source).__name__
        raise InputError(f"net_or_factory is a {kind} already; pass the plain network, and base=credo.{kind}")
    if isinstance(source, nn.Module):
        check_network(source)
        networks = [copy.deepcopy(source) for _ in range(count)]
        if init is None:
            check_is_fresh(source)
        for net in networks:
            if init == "perturb":
                perturb(net)
            elif init != "as it is":
                reinitialize(net)
        return networks
    if callable(source):
        return [source() for _ in range(count)]
    raise InputError(f"net_or_factory must be a network, a callable that makes one, or a list, got {source!r}")


def _check_at_once(value: object) -> bool | str:
    """Return ``value`` if it is ``True``, ``False`` or ``"auto"``."""
    if isinstance(value, bool) or value == "auto":
        return value
    raise InputError(f"members_at_once must be True, False or 'auto', got {value!r}")


def _check_apart(networks: Sequence[nn.Module]) -> None:
    """Raise ``InputError`` for members that share parameters: they would be one network, fitted several times."""
    seen: set[int] = set()
    for net in networks:
        own = {id(parameter) for parameter in net.parameters()} if isinstance(net, nn.Module) else set()
        if own & seen:
            raise InputError(
                "members of an ensemble share parameters; a factory must make a new network at every call, and a "
                "list must hold different ones"
            )
        seen |= own


def _own(options: dict[str, Any]) -> dict[str, Any]:
    """Options for one member, with a likelihood of its own."""
    return {key: copy.deepcopy(value) if key == "likelihood" else value for key, value in options.items()}
