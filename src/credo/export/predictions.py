"""Predictions as functions of tensors that can be traced: no choices by the data, draws as constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial, singledispatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from credo._special import normal_points
from credo.architectures import MLP, TabularMLP
from credo.errors import UnsupportedError
from credo.evaluation import Evaluator
from credo.functional import Draw, Replica, describe_modules, stack_draws
from credo.likelihoods import Likelihood
from credo.methods._last_layer import POINTS, ClosedFormPredictor, exact_predictive
from credo.methods._linearized import LinearizedPredictor
from credo.methods._sampling import DrawnLikelihood
from credo.methods.base import Predictor
from credo.methods.deep_ensemble import EnsemblePredictor
from credo.methods.network import NetworkPredictor
from credo.posteriors.base import Posterior
from credo.posteriors.dropout_layers import LayerDropout
from credo.predictive import Predictive
from credo.predictive.classes import ClassPredictive
from credo.predictive.components import ClassComponents
from credo.predictive.real import RealPredictive

PredictionFunction = Callable[[Any], Predictive]


@singledispatch
def as_function(predictor: Predictor, x: Any) -> PredictionFunction:
    """A prediction as a function from inputs to the predictive distribution that can be traced.

    Args:
        predictor: with its draws; the function gives the same up to rounding.
        x: a few rows, from which is found out how draws are evaluated at once.

    Raises:
        UnsupportedError: the prediction needs operations that ONNX does not have.
    """
    raise UnsupportedError(
        f"a {type(predictor).__name__} cannot be exported: use a method that draws weights, with samples=100, or "
        "distill the model first: credo.distill"
    )


@as_function.register
def _(predictor: NetworkPredictor, x: Any) -> PredictionFunction:
    evaluate, likelihood = predictor._evaluate, predictor._likelihood
    if not isinstance(evaluate, Evaluator):
        raise UnsupportedError(
            "samples='moments' cannot be exported, as ONNX has no derivatives: use samples=100, or distill the model "
            "into a network that outputs its moments: credo.distill"
        )
    outputs = _batched_outputs([evaluate], x)
    return lambda x: _predictive(likelihood, outputs(x))


@as_function.register
def _(predictor: EnsemblePredictor, x: Any) -> PredictionFunction:
    parts = predictor.parts
    evaluators = [part._evaluate for part in parts if isinstance(part, NetworkPredictor)]
    found = [evaluate for evaluate in evaluators if isinstance(evaluate, Evaluator)]
    if len(found) < len(parts) or not _are_alike(found):
        functions = [as_function(part, x) for part in parts]
        return lambda x: Predictive.mixture([function(x) for function in functions], predictor.weights)
    likelihoods = [part._likelihood for part in parts if isinstance(part, NetworkPredictor)]
    outputs, each = _batched_outputs(found, x), found[0].samples

    def predict(x: Any) -> Predictive:
        by_member = outputs(x).split(each)
        found = [_predictive(own, part) for own, part in zip(likelihoods, by_member, strict=True)]
        return Predictive.mixture(found, predictor.weights)

    return predict


@as_function.register
def _(predictor: ClosedFormPredictor, x: Any) -> PredictionFunction:
    method, features = predictor.method, predictor.features
    likelihood = method.likelihood

    def predict(x: Any) -> Predictive:
        mean, variance = method._output_moments(features(x))
        exact = exact_predictive(likelihood, mean, variance)
        if exact is not None:
            return exact
        return likelihood.predictive(mean + variance.sqrt() * points)

    with torch.no_grad():
        shape = method._output_moments(features(x)).mean.shape[1:]
    points = normal_points(POINTS, shape.numel()).to(method.dtype).view(POINTS, 1, *shape)
    return predict


@as_function.register
def _(predictor: LinearizedPredictor, x: Any) -> PredictionFunction:
    raise UnsupportedError(
        "predictions of a linearized network need its derivatives, which ONNX does not have: build Laplace(..., "
        "linearized=False), which draws weights, or distill the model: credo.distill"
    )


def freeze_draws(predictor: Predictor, dtype: torch.dtype) -> None:
    """Draw once, so that a model can then be converted to ``dtype`` and keeps the draws that it has now.

    Args:
        predictor: whose draws are kept in ``dtype``.
        dtype: of the graph.
    """
    if isinstance(predictor, EnsemblePredictor):
        for part in predictor.parts:
            freeze_draws(part, dtype)
    if not isinstance(predictor, NetworkPredictor) or not isinstance(predictor._evaluate, Evaluator):
        return
    evaluate, likelihood = predictor._evaluate, predictor._likelihood
    draws = [_cast(_clone(draw), dtype) for draw in evaluate._sampler(range(evaluate.samples))]
    evaluate._sampler = lambda numbers: [draws[number] for number in numbers]
    if isinstance(likelihood, DrawnLikelihood):
        likelihood._draws = _cast(likelihood._draws, dtype)


def _batched_outputs(evaluators: Sequence[Evaluator], x: Any) -> Callable[[Any], Tensor]:
    """The outputs ``[S, B, ...]`` of the draws of all ``evaluators``, whose networks are alike, by one batched pass."""
    first = evaluators[0]
    replica, posterior = first._build(), first._posterior
    _index_embeddings(replica)
    draws = [_clone(draw) for evaluate in evaluators for draw in evaluate._sampler(range(evaluate.samples))]
    if len(evaluators) > 1:
        networks = [_tensors_of(evaluate._build()) for evaluate in evaluators for _ in range(evaluate.samples)]
        draws = [network | draw for network, draw in zip(networks, draws, strict=True)]
    if posterior is None and len(draws) == 1:
        return lambda x: replica(draws[0], x).unsqueeze(0)
    if posterior is not None:
        posterior.prepare(replica, x)
    if isinstance(posterior, LayerDropout) and posterior.can_vectorize(replica, x):
        return lambda x: posterior.call_folded(replica, draws, x)

    def call(draw: Draw, x: Any) -> Tensor:
        return replica(draw, x) if posterior is None else posterior.call(replica, draw, x)

    stacked, together = stack_draws(draws), vmap(call, in_dims=(0, None))
    if posterior is None or type(posterior).call is Posterior.call:
        if type(replica.net) is MLP:
            return partial(_stacked_mlp, replica.net, stacked)
        if type(replica.net) is TabularMLP:
            return partial(_stacked_tabular_mlp, replica.net, stacked)
    try:
        with torch.no_grad():
            together(stacked, x)
    except Exception:  # a layer without a batching rule, or masks of rows that see each other
        return lambda x: torch.stack([call(draw, x) for draw in draws])
    return lambda x: together(stacked, x)


def _index_embeddings(replica: Replica) -> None:
    """Let embeddings index their weights: ``vmap`` traces that for any number of rows, but not ``F.embedding``."""
    for layer in replica.net.modules():
        if type(layer) is nn.Embedding and layer.max_norm is None:
            layer.forward = partial(_look_up, layer)  # type: ignore[method-assign]


def _look_up(layer: nn.Embedding, tokens: Tensor) -> Tensor:
    return layer.weight[tokens]


def _stacked_mlp(net: MLP, stacked: Draw, x: Tensor) -> Tensor:
    """The outputs ``[S, B, ...]`` of a multilayer perceptron, as its forward computes them for one draw.

    ``vmap`` cannot trace its constants for any number of rows.
    """
    own = {name: parameter.detach()[None] for name, parameter in net.named_parameters()} | stacked
    out = x
    for i, layer in enumerate(net.layers):
        if isinstance(layer, nn.Linear):
            out = out @ own[f"layers.{i}.weight"].mT + own[f"layers.{i}.bias"].unsqueeze(1)
        else:
            out = layer(out)
    if net.skip is not None:
        out = out + x @ own["skip.weight"].mT
    if net.constants is not None:
        constants = own["constants.weight"].reshape(-1, 1, own["constants.weight"].shape[-1])
        out = torch.cat([out, constants.expand(out.shape[0], out.shape[1], -1)], -1)
    return out


def _stacked_tabular_mlp(net: TabularMLP, stacked: Draw, x: Tensor) -> Tensor:
    """The outputs ``[S, B, ...]`` of a network for tables, whose draws encode the same columns."""
    own = {name: tensor[None] for name, tensor in net.state_dict().items()} | stacked
    inside = {name.removeprefix("perceptron."): value for name, value in own.items() if name.startswith("perceptron.")}
    codes = x
    if net.config["encoded"]:
        values = x.index_select(-1, own["encoding.columns"][0]).unsqueeze(-1)
        passed = (values - own["encoding.start"].unsqueeze(1)) * own["encoding.slope"].unsqueeze(1)
        codes = passed.clamp(0.0, 1.0).flatten(-2)
        codes = torch.cat([x.expand(codes.shape[0], -1, -1), codes], -1)
    out: Tensor = _stacked_mlp(net.perceptron, inside, codes) + x @ own["linear.weight"].mT
    return out


def _predictive(likelihood: Likelihood, outputs: Tensor) -> Predictive:
    """The predictive distribution, with drawn parameters of the likelihood in one batch."""
    if not isinstance(likelihood, DrawnLikelihood):
        return likelihood.predictive(outputs)
    module, draws = likelihood._components, likelihood._draws
    example = functional_call(module, {name: value[0] for name, value in draws.items()}, (outputs[:1],))

    def fields(draw: Draw, output: Tensor) -> dict[str, Tensor]:
        return functional_call(module, draw, (output[None],)).map(lambda t: t[0])._tensors  # type: ignore[no-any-return]

    components = dataclasses.replace(example, **vmap(fields)(draws, outputs))
    return ClassPredictive(components) if isinstance(components, ClassComponents) else RealPredictive(components)


def _are_alike(evaluators: Sequence[Evaluator]) -> bool:
    """Whether networks differ by their tensors only, so that one batched pass computes them all."""
    networks = [evaluate._build() for evaluate in evaluators]
    kinds = {describe_modules(network.net) for network in networks}
    shapes = {tuple((name, t.shape, t.dtype) for name, t in _tensors_of(network).items()) for network in networks}
    plain = all(type(e._posterior).call is Posterior.call for e in evaluators if e._posterior is not None)
    return len(kinds) == 1 and len(shapes) == 1 and plain and len({e.samples for e in evaluators}) == 1


def _tensors_of(network: Replica) -> Draw:
    """The parameters and floating-point buffers of a network."""
    buffers = {name: buffer for name, buffer in network.net.named_buffers() if buffer.is_floating_point()}
    return {name: tensor.detach() for name, tensor in (dict(network.net.named_parameters()) | buffers).items()}


def _cast(draw: Draw, dtype: torch.dtype) -> Draw:
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in draw.items()}


def _clone(draw: Draw) -> Draw:
    return {name: value.detach().clone() for name, value in draw.items()}
