"""Conformance checks of methods."""

from __future__ import annotations

import copy
import pickle
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from credo.io import load
from credo.methods import Method
from credo.nests import count_rows, map_tensors
from credo.predictive import Predictive
from credo.seeding import seeded
from credo.testing._require import (
    STANDARD_ERRORS,
    require,
    require_close,
    require_equal,
    require_input_error,
    require_unchanged,
)

Task: TypeAlias = Literal["regression", "classification"]

_ROWS, _FEATURES, _CLASSES = 21, 3, 3
_DRAWS = 6
# Passes over all data in one batch, and in minibatches, which cost more. The variance of the difference of their means,
# v/60 + v/12 for equal variances v, is that of 20 passes each.
_FULL_PASSES, _MINIBATCH_PASSES = 60, 12
_FIT_OPTIONS = {"epochs": 2, "batch_size": 7, "lr": 1e-2, "progress": False}


@dataclass(frozen=True)
class _Case:
    build: Callable[[nn.Module], Method]
    network: Callable[[], nn.Module]
    x: Any
    y: Tensor
    task: Task
    stochastic: bool
    fit_options: Mapping[str, Any]
    load_options: Mapping[str, Any]

    @property
    def rows(self) -> int:
        return count_rows(self.x)

    def net(self, seed: int) -> nn.Module:
        with seeded(seed, torch.device("cpu")):
            return self.network()

    def model(self, seed: int = 0) -> Method:
        """A new model with a new network, before any training."""
        with seeded(seed, torch.device("cpu")):
            return self.build(self.network())

    def predict(self, model: Method, x: Any = None, **options: Any) -> Predictive:
        return model.predict(self.x if x is None else x, **{"samples": _DRAWS, "seed": 0, **options})


def check_method(
    build: Callable[[nn.Module], Method],
    network: Callable[[], nn.Module] | None = None,
    task: Task = "regression",
    *,
    data: tuple[Any, Tensor] | None = None,
    stochastic: bool = True,
    gradient: bool = True,
    fit_options: Mapping[str, Any] | None = None,
    load_options: Mapping[str, Any] | None = None,
) -> None:
    """Check that a method satisfies the contract of :class:`credo.Method`, by building, fitting and using it.

    It trains; its loss on a minibatch is an unbiased estimate of the loss on all data; predictions depend on the seed,
    not on the order of rows or the batch size, and change nothing else; uncertainty is the sum of its two parts;
    copies, files and float64 work.

    Args:
        build: returns the method for a network: ``lambda net: MyMethod(net, credo.Gaussian(0.1))``.
        network: returns a network for ``data``; ``None``: a small MLP.
        task: ``"regression"``, with targets ``[N, 1]``, or ``"classification"``, with the classes 0, 1 and 2.
        data: inputs and targets; ``None``: 21 rows of 3 standard normal features.
        stochastic: whether predictions are random; ``False`` for a point estimate or an ensemble of them.
        gradient: whether the method has a loss to train by gradient.
        fit_options: options of ``fit``; ``None``: two epochs of minibatches.
        load_options: options of ``credo.load`` that JSON cannot hold, such as ``prior=`` or ``forward=``.

    Raises:
        AssertionError: if a check fails; the message names it.

    Example:
        >>> check_method(lambda net: credo.BayesByBackprop(net, credo.Gaussian(0.1)))
    """
    x, y = _data(task) if data is None else data
    outputs = 1 if task == "regression" else _CLASSES
    case = _Case(
        build=build,
        network=network or (lambda: nn.Sequential(nn.Linear(_FEATURES, 8), nn.Tanh(), nn.Linear(8, outputs))),
        x=x,
        y=y,
        task=task,
        stochastic=stochastic,
        fit_options=_FIT_OPTIONS if fit_options is None else fit_options,
        load_options=load_options or {},
    )
    if gradient:
        _check_loss(case)
        _check_batch_loss(case)
    model = _check_fit(case)
    _check_seeds(case, model)
    _check_nothing_changed(case, model)
    _check_rows(case, model)
    _check_decomposition(case, model)
    _check_copies(case, model, gradient)
    _check_float64(case, gradient)


def _data(task: Task) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(_ROWS, _FEATURES, generator=source)
    signal = x[:, :1].sin() + 0.1 * torch.randn(_ROWS, 1, generator=source)
    if task == "regression":
        return x, signal
    return x, (signal[:, 0] > -0.5).long() + (signal[:, 0] > 0.5).long()


def _check_fit(case: _Case) -> Method:
    model = case.model()
    before = {name: value.detach().clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    result = model.fit((case.x, case.y), seed=0, **case.fit_options)
    require(result is model, "fit must return the model itself")
    require(torch.equal(state, torch.get_rng_state()), "fit with a seed must not change torch's random state")
    after = model.state_dict()
    changed = [name for name, value in after.items() if name not in before or not torch.equal(value, before[name])]
    require(len(changed) > 0, "fit must change the model, but its state_dict is the same")
    for name, value in after.items():
        require(bool(value.isfinite().all()), f"fit must end with finite values, but {name!r} has others")
    return model


def _check_loss(case: _Case) -> None:
    model = case.model()
    require_input_error(
        lambda: model.loss(case.x, case.y),
        "loss(x, y) must raise an InputError if the number of data is unknown: the KL is divided by it",
    )
    loss = _loss(model, case.x, case.y, case.rows, seed=0)
    require(isinstance(loss, Tensor) and loss.dim() == 0, "loss(x, y, n_data) must be a tensor without dimensions")
    require(bool(loss.isfinite()), f"loss(x, y, n_data) must be finite, got {float(loss.detach())}")
    require(loss.requires_grad, "loss(x, y, n_data) must be differentiable")
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    require(any(bool(g.ne(0).any()) for g in gradients), "the gradient of the loss must not be zero everywhere")
    require(all(bool(g.isfinite().all()) for g in gradients), "the gradient of the loss must be finite")
    with seeded(0, torch.device("cpu")):
        called = model(case.x, case.y, case.rows)
    require_equal(called, loss, "model(x, y, n_data) must be model.loss(x, y, n_data)")


def _check_batch_loss(case: _Case) -> None:
    """Mean over minibatches == full batch: exactly for a fixed complexity term, in expectation for the loss."""
    model = case.model().eval()
    n = case.rows
    complexities = [_complexity(model, case, slice(0, size), seed) for size in (1, 7, n) for seed in (0, 1)]
    if torch.equal(complexities[0], complexities[1]):
        for value in complexities[2:]:
            require_close(
                value,
                complexities[0],
                "the complexity must not depend on the batch: divide it by n_data",
            )
    model.train()
    for part in model.modules():
        if isinstance(part, _NormBase):
            part.eval()
    means, variances = [], []
    for size in (n, 7, 1):
        passes = _passes(model, case, size)
        means.append(passes.mean())
        variances.append(passes.var() / len(passes))
        rounding = 1e3 * torch.finfo(torch.float32).eps * (1.0 + means[0].abs())
        error = (variances[0] + variances[-1]).sqrt()
        require(
            bool((means[-1] - means[0]).abs() <= STANDARD_ERRORS * error + rounding),
            f"the loss over minibatches of {size} is {float(means[-1]):.6g} per datum, over all data "
            f"{float(means[0]):.6g}, standard error {float(error):.2g}: it must be an unbiased estimate for any "
            "batch size; is the complexity divided by n_data, and the log likelihood a mean over rows?",
        )


def _passes(model: Method, case: _Case, size: int) -> Tensor:
    """Return the losses of passes in minibatches of ``size`` rows, each with its own seed; two if it has no effect."""
    losses = [_pass(model, case, size, seed) for seed in (0, 1)]
    if _draws_random_numbers(model, case) or not torch.equal(*losses):
        repeats = _FULL_PASSES if size == case.rows else _MINIBATCH_PASSES
        losses += [_pass(model, case, size, seed) for seed in range(2, repeats)]
    return torch.stack(losses).double()


def _draws_random_numbers(model: Method, case: _Case) -> bool:
    with seeded(0, torch.device("cpu")):
        before = torch.get_rng_state()
        model.loss(case.x, case.y, n_data=case.rows)
        return not torch.equal(before, torch.get_rng_state())


def _pass(model: Method, case: _Case, size: int, seed: int) -> Tensor:
    """Return the mean over rows of the losses of all minibatches of ``size`` rows."""
    n, total = case.rows, torch.zeros(())
    with seeded(seed, torch.device("cpu")):
        for start in range(0, n, size):
            rows = slice(start, start + size)
            fraction = case.y[rows].shape[0] / n
            total = total + fraction * model.loss(_rows(case.x, rows), case.y[rows], n_data=n).detach()
    return total


def _complexity(model: Method, case: _Case, rows: slice, seed: int) -> Tensor:
    """Return C in loss = nll + C/n_data, from two values of n_data and one set of random numbers."""
    x, y = _rows(case.x, rows), case.y[rows]
    return 2.0 * (_loss(model, x, y, 1, seed) - _loss(model, x, y, 2, seed)).detach()


def _check_seeds(case: _Case, model: Method) -> None:
    first, again = case.predict(model), case.predict(model)
    require_equal(again.draws, first.draws, "the same seed must give the same prediction")
    if case.stochastic:
        other = case.predict(model, seed=1)
        require(not torch.equal(other.draws, first.draws), "different seeds must give different predictions")
        fresh = [case.predict(model, seed=None).draws for _ in range(3)]  # of N stored draws, one in N times the same
        require(not all(torch.equal(draws, first.draws) for draws in fresh), "without a seed the draws must differ")
        require(bool(first.epistemic.gt(0).any()), "draws must differ somewhere, but the epistemic part is zero")
    mean = case.predict(model, samples=0)
    require(bool(mean.epistemic.eq(0).all()), "samples=0 predicts with the mean weights: epistemic must be exactly 0")
    require_equal(mean.draws, case.predict(model, samples=0, seed=1).draws, "samples=0 must not depend on the seed")
    require_input_error(lambda: case.predict(model, samples=-1), "samples=-1 must raise an InputError")
    require_input_error(lambda: case.predict(model, batch_size=0), "batch_size=0 must raise an InputError")


def _check_nothing_changed(case: _Case, model: Method) -> None:
    for training in (True, False):
        model.train(training)
        with require_unchanged("predict", model):
            case.predict(model)
            case.predict(model, samples=0)
    in_training = case.predict(model.train())
    require_equal(
        in_training.draws, case.predict(model.eval()).draws, "predict must not depend on the model's train/eval flag"
    )


def _check_rows(case: _Case, model: Method) -> None:
    whole = case.predict(model)
    n = case.rows
    require(len(whole) == n, f"a prediction for {n} rows must have {n} rows, got {len(whole)}")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    permuted = case.predict(model, _rows(case.x, order))
    require_close(permuted.draws, whole.draws[:, order], "the order of rows must not matter: a draw is a function")
    for size in (1, 4):
        parts = case.predict(model, batch_size=size)
        require_close(parts.draws, whole.draws, f"batch_size={size} must not change the prediction")
    one = case.predict(model, _rows(case.x, slice(2, 3)))
    require_close(one.draws, whole.draws[:, 2:3], "the prediction of a row must not depend on other rows")
    empty = case.predict(model, _rows(case.x, slice(0, 0)))
    require(
        len(empty) == 0 and empty.mean.shape[1:] == whole.mean.shape[1:],
        "no rows must give an empty prediction",
    )


def _check_decomposition(case: _Case, model: Method) -> None:
    for samples in (0, _DRAWS):
        p = case.predict(model, samples=samples)
        parts = p.aleatoric + p.epistemic
        if case.task == "regression":
            require_equal(p.variance, parts, "variance must be aleatoric + epistemic")
            require(p.mean.shape == case.y.shape, f"mean must have the shape of y, got {list(p.mean.shape)}")
        else:
            require_close(p.entropy, parts, "entropy must be aleatoric + epistemic")
            require(bool(p.mean.sum(-1).sub(1).abs().lt(1e-5).all()), "the mean of classes must be their probabilities")
        require(bool(p.aleatoric.ge(0).all() and p.epistemic.ge(0).all()), "neither part may be negative")
        require(bool(p.mutual_information.ge(0).all()), "mutual information must not be negative")
        require(bool(p.log_prob(case.y).isfinite().all()), "log_prob of the targets must be finite")


def _check_copies(case: _Case, model: Method, gradient: bool) -> None:
    expected = case.predict(model).draws
    if gradient:
        _loss(model.eval(), case.x, case.y, case.rows, seed=0)
    twin = copy.deepcopy(model)
    require_equal(case.predict(twin).draws, expected, "a deepcopy after a forward must predict the same")
    if gradient:
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(0.5)
        _loss(twin, case.x, case.y, case.rows, seed=0)
        require_equal(case.predict(model).draws, expected, "a deepcopy must share nothing with the original")
    unpickled = pickle.loads(pickle.dumps(model))
    require_equal(case.predict(unpickled).draws, expected, "a pickled model must predict the same")
    fresh = case.model(seed=1)
    if gradient:
        _loss(fresh.eval(), case.x, case.y, case.rows, seed=0)
    fresh.load_state_dict(model.state_dict())
    require_equal(case.predict(fresh).draws, expected, "a new model with the state_dict must predict the same")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/run"
        model.save(path)
        loaded = load(path, net=case.net(seed=2), **case.load_options)
    require(type(loaded) is type(model), f"load must return a {type(model).__name__}, got {type(loaded).__name__}")
    require_equal(case.predict(loaded).draws, expected, "a saved and loaded model must predict the same")
    require(loaded.summary() == model.summary(), "a saved and loaded model must have the same summary")
    require_equal(case.predict(model).draws, expected, "copying and saving must not change the model")


def _check_float64(case: _Case, gradient: bool) -> None:
    x, y = map_tensors(_double, (case.x, case.y))
    with seeded(0, torch.device("cpu")):
        model = case.build(case.network().double())
    if gradient:
        loss = _loss(model, x, y, case.rows, seed=0)
        require(loss.dtype == torch.float64, f"the loss of a float64 network must be float64, got {loss.dtype}")
    model.fit((x, y), seed=0, **case.fit_options)
    p = case.predict(model, x)
    require(p.draws.dtype == torch.float64, f"a float64 network must predict in float64, got {p.draws.dtype}")
    require(bool(p.draws.isfinite().all()), "the predictions of a float64 network must be finite")


def _loss(model: Method, x: Any, y: Tensor, n_data: int, seed: int) -> Tensor:
    with seeded(seed, torch.device("cpu")):
        return model.loss(x, y, n_data=n_data)


def _rows(x: Any, index: Any) -> Any:
    return map_tensors(lambda t: t[index], x)


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
