"""What methods with a posterior over the last linear layer share: its features, and predictions in closed form."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.distributions import Normal as TorchNormal
from typing_extensions import override

from credo import data as data_
from credo._arguments import check_integer
from credo._devices import at_least_float32
from credo._special import gaussian_points
from credo.errors import InputError, UnsupportedError, unknown_name
from credo.functional import Forward, Replica
from credo.likelihoods import Gaussian, Likelihood
from credo.methods.base import Predictor, check_samples, describing_input
from credo.methods.network import NetworkMethod, NetworkPredictor
from credo.nests import default_batch_size, first_rows, flatten_rows, split_rows
from credo.posteriors.last_layer import LastLayerGaussian
from credo.predictive import Predictive
from credo.predictive.location_scale import GaussianComponents
from credo.predictive.real import ExactGaussianPredictive
from credo.priors import AdaptiveNormal, Normal, Prior, move_priors, resolve
from credo.probing import ROWS, order_of_calls
from credo.seeding import reproducible
from credo.selection import match_parameters

POINTS = 128


class OutputMoments(NamedTuple):
    """The distribution of the outputs, independent Gaussians.

    Attributes:
        mean: ``[B, ...]``.
        variance: ``[B, ...]``.
    """

    mean: Tensor
    variance: Tensor


def find_last_linear(net: nn.Module, name: str | None) -> str:
    """The path of the layer ``name``, or of the last ``nn.Linear`` if it is ``None``.

    Raises:
        InputError: there is none.
    """
    found: list[str] = [path for path, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not found:
        raise InputError("the network has no nn.Linear, and a posterior over the last layer needs one at its end")
    if name is None:
        return found[-1]
    if name not in found:
        raise unknown_name("layer", name, found)
    return name


def check_is_last(net: nn.Module, forward: Forward | None, path: str, x: Any) -> None:
    """Raise ``InputError`` if a module with trainable parameters is called after the module ``path``."""
    probe = Replica(net, forward, own_buffers=True)
    probe.net.eval()
    chosen = {id(net.get_parameter(name)) for name in match_parameters(net)}
    named = net.named_parameters(remove_duplicate=False)  # a tied parameter belongs to several modules
    modules = {name.rpartition(".")[0] for name, parameter in named if id(parameter) in chosen}
    called = order_of_calls(lambda rows: probe({}, rows), probe.net, sorted(modules), first_rows(x, ROWS))
    if path in called and called[-1] != path:
        raise InputError(
            f"parameters='last_layer' is {path!r}, the layer that was registered last, but {called[-1]!r} is called "
            f"after it: name the last layer, parameters='{called[-1]}.*'"
        )


def layer_parameters(net: nn.Module, path: str) -> list[str]:
    """The names of the weight of a linear layer, and of its bias if that is trained.

    Raises:
        InputError: the weight is frozen.
        UnsupportedError: a parameter is complex, or used in other places of the network too.
    """
    layer, prefix = net.get_submodule(path), f"{path}." if path else ""
    names = [prefix + key for key, parameter in layer.named_parameters(recurse=False) if parameter.requires_grad]
    if prefix + "weight" not in names:
        raise InputError(f"the weight of layer {path!r} is frozen: unfreeze it with requires_grad_(True)")
    everywhere = [id(parameter) for _, parameter in net.named_parameters(remove_duplicate=False)]
    for name in names:
        parameter = net.get_parameter(name)
        if everywhere.count(id(parameter)) > 1 or parameter.is_complex():
            raise UnsupportedError(
                f"{name!r} is complex, or used in several places of the network, whose output is then not linear in "
                "it: use credo.BayesByBackprop"
            )
    return names


class LastLayerCall(NamedTuple):
    """A forward pass.

    Attributes:
        output: of the network, ``[B, ...]``.
        features: the input of the layer, ``[..., D]``.
        layer_output: the output of the layer, ``[..., K]``.
    """

    output: Tensor
    features: Tensor
    layer_output: Tensor


class FeatureReplica:
    """A private replica of a network that also returns the features in front of its last layer.

    Args:
        net: the network.
        forward: ``callable(net, x)`` or ``None``.
        layer: the path of the layer.
        own_buffers: as for :class:`~credo.functional.Replica`.
    """

    def __init__(self, net: nn.Module, forward: Forward | None, layer: str, *, own_buffers: bool) -> None:
        self.replica = Replica(net, forward, own_buffers=own_buffers)
        self._layer = layer
        self._calls: list[tuple[Tensor, Tensor]] = []
        self.replica.net.get_submodule(layer).register_forward_hook(self._keep, with_kwargs=True)
        if own_buffers:
            self.replica.net.eval()

    def __call__(self, x: Any) -> LastLayerCall:
        """One forward pass.

        Raises:
            UnsupportedError: the layer is not called exactly once.
        """
        self._calls = []
        output = self.replica({}, x)
        calls, self._calls = self._calls, []
        if len(calls) != 1:
            raise UnsupportedError(
                f"layer {self._layer!r} is called {len(calls)} times in a forward pass, but the last layer is called "
                "once: name another one with layer=..."
            )
        return LastLayerCall(output, *calls[0])

    def _keep(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        self._calls.append((args[0] if args else kwargs["input"], output))


class LastLayerMethod(NetworkMethod):
    """A method with a Gaussian posterior over the last linear layer; the other parameters are point estimates.

    Args:
        net: the network.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        prior: of the layer, Gaussian; ``None``: standard normal.
        layer: the path of the layer; ``None``: the last ``nn.Linear``.
        forward: ``callable(net, x)`` or ``None``.

    Attributes:
        prior: of the layer.
    """

    posterior: LastLayerGaussian
    _derived = frozenset({"_priors_here", "_features"})
    _features: FeatureReplica

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None,
        prior: Prior | None,
        layer: str | None,
        forward: Forward | None,
    ) -> None:
        super().__init__(net, likelihood, forward)
        self._layer = layer = find_last_linear(net, layer)
        self.prior: Prior = Normal(0.0, 1.0) if prior is None else prior
        self._priors = resolve(self.prior, {n: net.get_parameter(n).shape for n in layer_parameters(net, layer)})
        for name, own in self._priors.items():
            _check_is_gaussian(name, own)
        self._derive()

    def _derive(self) -> None:
        self._follow_parameters()
        self._features = FeatureReplica(self.net, self._forward, self._layer, own_buffers=False)

    def _follow_parameters(self) -> None:
        self._priors_here = move_priors(self._priors, self.device, at_least_float32(self.dtype))

    def _inspect(self, x: Any, training: bool = False) -> None:
        is_known = training in self._inspected
        super()._inspect(x, training)
        if is_known:
            return
        probe = FeatureReplica(self.net, self._forward, self._layer, own_buffers=True)
        with torch.no_grad():
            call = reproducible(lambda: probe(first_rows(x, ROWS)), self.device)
        found, own = call.output.flatten(), call.layer_output.flatten()
        if found.shape != own.shape or not torch.allclose(found, own, rtol=0.0, atol=0.0, equal_nan=True):
            raise UnsupportedError(
                f"the network's output is not that of its layer {self._layer!r}: name the last layer with layer=..., "
                "and leave softmax or other functions of its output to the likelihood"
            )

    def _output_moments(self, call: LastLayerCall) -> OutputMoments:
        """The mean and the variance of the outputs, differentiable."""
        variance = self.posterior.output_variance(call.features)
        return OutputMoments(call.output.to(variance.dtype), variance.reshape(call.output.shape))

    def _predictor(self, samples: int | str, seed: int | None) -> Any:
        samples = check_samples(samples)
        return ClosedFormPredictor(self) if isinstance(samples, str) else NetworkPredictor(self, samples, seed)

    @override
    def parameter_groups(self, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer of your own.

        Args:
            weight_decay: for the weights in front of the last layer, which has its prior.

        Returns:
            Groups as ``torch.optim`` accepts them.
        """
        learned = [p for p in self.parameters() if p.requires_grad]
        if weight_decay == 0.0:
            return [{"params": learned, "weight_decay": 0.0}]
        own = {id(p) for p in self.net.get_submodule(self._layer).parameters()}
        decayed = {id(p) for p in self.net.parameters()} - own
        groups = [([p for p in learned if (id(p) in decayed) is wanted], wanted) for wanted in (True, False)]
        return [{"params": params, "weight_decay": weight_decay * wanted} for params, wanted in groups if params]


class ClosedFormPredictor(Predictor):
    """Predicts with the Gaussian outputs of a last layer, without draws.

    For a Gaussian likelihood that is exact. For others the outputs of each row are 128 quasi-random points.

    Args:
        method: the method.

    Attributes:
        method: the method.
        features: a private copy of its network.
    """

    def __init__(self, method: LastLayerMethod) -> None:
        self.method = method
        self.features = FeatureReplica(method.net, method._forward, method._layer, own_buffers=True)

    @torch.no_grad()
    def __call__(self, x: Any, batch_size: int | None = None, vectorize: str = "auto") -> Predictive:
        """The predictive distribution for the rows of ``x``."""
        method, likelihood = self.method, self.method.likelihood
        method._check_likelihood_is_known()
        if batch_size is not None:
            check_integer(batch_size, "batch_size", minimum=1)
        x = data_.prepare_input(x, method.device, method.dtype)
        rows = batch_size or default_batch_size(x)
        with describing_input(x):
            method._inspect(x)
            parts = [method._output_moments(self.features(part)) for part in split_rows(x, rows)]
        mean, variance = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        exact = exact_predictive(likelihood, mean, variance)
        if exact is not None:
            return exact
        points = gaussian_points(flatten_rows(mean), flatten_rows(variance).sqrt(), POINTS)
        return likelihood.predictive(points.reshape(POINTS, *mean.shape))


def exact_predictive(likelihood: Likelihood, mean: Tensor, variance: Tensor) -> ExactGaussianPredictive | None:
    """The prediction for outputs N(mean, variance) in closed form; ``None`` where the likelihood has none.

    Args:
        likelihood: p(y | output).
        mean: of the outputs, ``[B, ...]``.
        variance: of the outputs, of the same shape.
    """
    if not isinstance(likelihood, Gaussian) or likelihood.noise == "heteroscedastic":
        return None
    components = likelihood.components(mean[None])
    assert isinstance(components, GaussianComponents)
    return ExactGaussianPredictive.of(components.mean[0], variance, components.variance[0])


def _check_is_gaussian(name: str, prior: Distribution) -> None:
    if not isinstance(prior, TorchNormal | AdaptiveNormal):
        raise UnsupportedError(
            f"the prior of {name!r} is a {type(prior).__name__}, but the posterior of the last layer needs a Gaussian "
            "one: use credo.Normal or credo.AdaptiveNormal"
        )
