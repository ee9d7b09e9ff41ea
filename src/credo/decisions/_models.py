"""Networks and estimators behind one interface: fit, predict, and values of drawn functions."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from credo.data import prepare_input
from credo.errors import InputError
from credo.methods._linearized import LinearizedPredictor
from credo.methods.base import Method
from credo.methods.deep_ensemble import DeepEnsemble, shares_of
from credo.methods.laplace import Laplace
from credo.methods.network import NetworkMethod
from credo.methods.sampler import Sampler
from credo.methods.sngp import SNGP
from credo.methods.swag import SWAG
from credo.nests import count_rows, map_tensors
from credo.predictive import Predictive
from credo.seeding import derive, generator, seeded

_CPU = torch.device("cpu")
_MAX_RANDOM_STATE = 2**32

FitOptionsSource: TypeAlias = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]
"""The options of ``fit``, the same for all calls or by the number of rows."""


class ModelSource:
    """Where the models of a loop come from: copies of one model, or the calls of a factory.

    Args:
        model: a method, an estimator with ``predict_dist``, or a callable without arguments that returns one. A model
            is copied as it is: a network keeps its weights, an estimator its arguments.
        fit_options: the options of ``fit`` of a method, or a callable that returns them for a number of rows; an
            estimator has them as arguments of its constructor.

    Raises:
        InputError: if ``model`` is none of these, or an estimator is given ``fit_options``.
    """

    def __init__(self, model: Any, fit_options: FitOptionsSource | None = None) -> None:
        self._options: FitOptionsSource = fit_options if callable(fit_options) else dict(fit_options or {})
        self._factory = model if _is_factory(model) else None
        self._model = None if self._factory else _unfitted_copy(self._check(model))

    def new(self, seed: int) -> Any:
        """A new model; ``seed`` determines the initial weights that a factory draws."""
        if self._factory is None:
            return _unfitted_copy(self._model)
        with seeded(seed, _CPU):
            return self._check(self._factory())

    def fit(self, model: Any, x: Any, y: Any, seed: int) -> Any:
        """Fit ``model`` to rows ``x`` and targets ``y``; a method continues from its weights."""
        if isinstance(model, Method):
            options = self._options(len(y)) if callable(self._options) else self._options
            return model.fit((x, y), **{"seed": seed, "progress": False, **options})
        if "random_state" in model.get_params(deep=False) and model.random_state is None:
            model.set_params(random_state=seed % _MAX_RANDOM_STATE)
        return model.fit(as_array(x), as_array(y))

    def _check(self, model: Any) -> Any:
        check_model(model)
        if self._options and not isinstance(model, Method):
            raise InputError(
                f"fit_options are those of a network's fit, got a {type(model).__name__}: pass them to its constructor"
            )
        return model


def check_model(model: Any) -> Any:
    """Return ``model`` if it is a method or an estimator with ``predict_dist``; raise ``InputError`` otherwise."""
    if isinstance(model, type) or not (
        isinstance(model, Method) or (hasattr(model, "predict_dist") and hasattr(model, "get_params"))
    ):
        raise InputError(
            "model must be an object such as credo.BayesByBackprop(net) or credo.Classifier(), with predict or "
            f"predict_dist, got {model!r}"
        )
    return model


def predict(model: Any, x: Any, samples: int, seed: int) -> Predictive:
    """The predictive distribution of any model; ``samples`` draws where the model draws."""
    if isinstance(model, Method):
        return model.predict(x, samples=samples, seed=seed)
    p: Predictive = model.predict_dist(as_array(x))
    return p


def predict_jointly(model: Any, x: Any, samples: int, seed: int) -> Predictive:
    """:func:`predict` by draws that are functions of all rows; those of a linearized Laplace are not by themselves.

    Its predictions integrate over the outputs of every row: exactly, or by points that are the same for all rows, under
    which rows would be correlated that are not.
    """
    if not isinstance(model, Method):
        return predict(model, x, samples, seed)
    shares = shares_of(model, samples, seed)
    parts = [_predict_by_functions(share.model, x, share.samples, share.seed) for share in shares]
    weights = model.weights if isinstance(model, DeepEnsemble) else None
    return Predictive.mixture(parts, None if weights is None else torch.tensor(weights, dtype=torch.float64))


def _predict_by_functions(model: NetworkMethod, x: Any, samples: int, seed: int) -> Predictive:
    if isinstance(model, Laplace):
        predictor = model._predictor(samples, seed)
        if isinstance(predictor, LinearizedPredictor):
            with torch.no_grad():
                return model.likelihood.predictive(predictor.outputs(x))
    return model.predict(x, samples=samples, seed=seed)


def draw_functions(model: Any, x: Any, count: int, seed: int) -> Tensor:
    """The means E[y | f_s(x)] under ``count`` random draws of the function f, ``[count, B, ...]``.

    Args:
        model: a fitted model.
        x: rows.
        count: number of draws. An ensemble of point estimates has one per member; more are drawn with repetition, and
            so are any of members with unequal weights.
        seed: determines the draws.
    """
    if not isinstance(model, Method) and hasattr(model, "sample_y"):
        state = {"random_state": seed % _MAX_RANDOM_STATE}
        if "random_state" not in inspect.signature(model.sample_y).parameters:
            model, state = copy.copy(model).set_params(**state), {}
        return torch.from_numpy(model.sample_y(as_array(x), count, **state).T.copy())
    p = predict_jointly(model, x, count, seed)
    if p.n_draws == 1 and not isinstance(model, Method):
        raise InputError(
            f"{type(model).__name__} returns a distribution without draws of the function, which Thompson sampling "
            "needs: use a model with sample_y, or a method such as credo.BayesByBackprop"
        )
    weights = torch.ones(p.n_draws, dtype=torch.float64) if p.weights is None else p.weights.double().cpu()
    # Without replacement a draw has its weight as the probability of the first place only, unless weights are equal.
    repeated = count > p.n_draws or p.weights is not None
    chosen = torch.multinomial(weights, count, replacement=repeated, generator=generator(_CPU, seed, 1))
    return p.draws[chosen.to(p.draws.device)]


def target_shape(model: Method, x: Tensor) -> torch.Size:
    """The shape of one target of a network with a single output, ``[]`` or ``[1]``; ``x`` is at least one row.

    Raises:
        InputError: the network has several outputs.
    """
    first = model.members[0] if isinstance(model, DeepEnsemble) else model
    if isinstance(first, NetworkMethod) and first._likelihood_is_open:
        return torch.Size([1])
    shape = model.predict(x[:1], samples=0).mean.shape[1:]
    if shape.numel() != 1:
        raise InputError(f"the model must output one number per row, got shape {list(shape)}")
    return shape


def take_rows(x: Any, rows: Tensor) -> Any:
    """The rows of a tensor, an array, a data frame, or a tuple or mapping of tensors."""
    if hasattr(x, "iloc"):
        return x.iloc[rows.numpy()]
    if isinstance(x, np.ndarray):
        return x[rows.numpy()]
    return map_tensors(lambda t: t[rows.to(t.device)], x)


def row_count(x: Any) -> int:
    """The number of rows of what :func:`take_rows` takes."""
    return len(x) if isinstance(x, np.ndarray) or hasattr(x, "iloc") else count_rows(x)


def as_array(values: Any) -> Any:
    """Tensors as arrays, as estimators take them; anything else unchanged."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def as_rows(values: Any, model: Any, name: str) -> Tensor:
    """Numbers as finite floats ``[B, D]`` or ``[D]`` for ``model``, on its device."""
    device, dtype = (model.device, model.dtype) if isinstance(model, Method) else (_CPU, torch.float64)
    array = as_numbers(values, name)
    if array.ndim not in (1, 2):
        raise InputError(f"{name} must have shape [D] or [B, D], got {list(array.shape)}")
    rows: Tensor = prepare_input(array.to(dtype), device, dtype)
    return rows


def as_numbers(values: Any, name: str) -> Tensor:
    """Numbers as a tensor, float64 unless they are one; raise ``InputError`` if they are no numbers."""
    if isinstance(values, Tensor):
        return values
    try:
        return torch.from_numpy(np.array(values, np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must hold numbers, got {values!r:.100}") from error


def is_trained_by_its_loss(model: Method) -> bool:
    """Whether gradient steps on the loss train the posterior, which some methods find in ``fit`` only."""
    members = model.members if isinstance(model, DeepEnsemble) else [model]
    return not any(isinstance(member, Laplace | Sampler | SNGP | SWAG) for member in members)


def child_seed(seed: int, *stream: int) -> int:
    """A seed for one use of a loop's seed that scikit-learn accepts too."""
    return derive(seed, *stream) % _MAX_RANDOM_STATE


def _is_factory(model: Any) -> bool:
    return callable(model) and not isinstance(model, nn.Module | type) and not hasattr(model, "fit")


def _unfitted_copy(model: Any) -> Any:
    if isinstance(model, Method):
        return copy.deepcopy(model)
    from sklearn.base import clone

    return clone(model)
