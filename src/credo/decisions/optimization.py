"""Bayesian optimization of a black-box function by Thompson sampling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from credo._arguments import check_bool, check_integer
from credo.decisions._models import ModelSource, as_numbers, child_seed, draw_functions, target_shape
from credo.errors import InputError
from credo.methods.base import Method
from credo.seeding import check_seed, generator

_MODEL, _FIT, _DRAWS, _CANDIDATES, _INITIAL = range(5)
"""The random streams of an optimizer."""
_SMALLEST_STEP, _LARGEST_STEP = -3.0, -0.5  # powers of 10, in units of the side of the box


class Evaluation(NamedTuple):
    """A point of the box and the value of the function there.

    Attributes:
        x: the point, ``[D]``, float64.
        y: the value.

    Example:
        >>> optimizer.best.x, optimizer.best.y
    """

    x: Tensor
    y: float


class ThompsonOptimizer:
    r"""Minimizes an expensive function over a box: evaluate where a draw from the posterior has its minimum.

    Given evaluations (x_i, y_i), a model is fitted to them, functions f_1, …, f_n are drawn from its posterior, and the
    next n points are

        x_j = argmin_x f_j(x),

    over candidates: half are Sobol points of the box, half are the best point so far with Gaussian steps of all sizes
    from 10⁻³ to 0.3 sides of the box. Because every point of a batch has its own draw, batches are diverse (Hernández-
    Lobato et al. 2017; Kandasamy et al. 2018). The first points, ``initial``, are Sobol points. The model gets inputs
    scaled to [−1, 1] and values with mean 0 and standard deviation 1.

    Args:
        model: a regression model: ``credo.gaussian_process.GaussianProcessRegressor()`` for few evaluations in few
            dimensions, or any method with a network from D inputs to one output; or a callable without arguments that
            returns one. It is copied and fitted from scratch after new evaluations.
        bounds: the lower and upper bound of each input, ``[D, 2]``.
        maximize: whether to look for the maximum.
        initial: number of points before the first fit; ``None``: 2(D + 1).
        candidates: number of candidates.
        fit_options: the options of a method's ``fit``.
        seed: makes all suggestions reproducible; ``None``: from torch's random state.

    Attributes:
        x: the evaluated points in the order of :meth:`observe`, ``[N, D]``, float64.
        y: their values, ``[N]``, float64.

    Raises:
        InputError: if an argument is not valid.

    Example:
        >>> model = credo.gaussian_process.GaussianProcessRegressor()
        >>> optimizer = credo.decisions.ThompsonOptimizer(model, bounds=[(-5, 10), (0, 15)], seed=0)
        >>> x = optimizer.suggest(4)
        >>> optimizer.observe(x, [experiment(point) for point in x])
        >>> optimizer.best

    References:
        J. M. Hernández-Lobato, J. Requeima, E. O. Pyzer-Knapp, A. Aspuru-Guzik. Parallel and distributed Thompson
        sampling for large-scale accelerated exploration of chemical space. ICML 2017.
        K. Kandasamy, A. Krishnamurthy, J. Schneider, B. Póczos. Parallelised Bayesian optimisation via Thompson
        sampling. AISTATS 2018.
    """

    def __init__(
        self,
        model: Any,
        bounds: Sequence[Sequence[float]] | Tensor,
        *,
        maximize: bool = False,
        initial: int | None = None,
        candidates: int = 1000,
        fit_options: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        box = as_numbers(bounds, "bounds").double().cpu()
        if box.ndim != 2 or box.shape[1] != 2 or not len(box) or not bool((box[:, 0] < box[:, 1]).all()):
            raise InputError(f"bounds must be pairs (lower, upper) with lower < upper, one per input, got {bounds!r}")
        if not bool(box.isfinite().all()):
            raise InputError(f"bounds must be finite, got {bounds!r}")
        self.bounds = box
        self.maximize = check_bool(maximize, "maximize")
        self.initial = 2 * (len(box) + 1) if initial is None else check_integer(initial, "initial", minimum=1)
        self.candidates = check_integer(candidates, "candidates", minimum=2)
        self.seed = check_seed(seed)
        self.x, self.y = box.new_zeros(0, len(box)), box.new_zeros(0)
        self._source = ModelSource(model, fit_options)
        self._model: Any = None
        self._n_suggestions = 0
        self._n_initial = 0

    @property
    def best(self) -> Evaluation:
        """The best evaluation so far."""
        if not len(self.y):
            raise InputError("nothing has been evaluated yet: call observe(x, y) first")
        i = int(self.y.argmax() if self.maximize else self.y.argmin())
        return Evaluation(self.x[i], float(self.y[i]))

    def suggest(self, n: int = 1) -> Tensor:
        """Choose the points to evaluate next.

        Args:
            n: number of points, to be evaluated in any order or at the same time.

        Returns:
            The points, ``[n, D]``, float64.

        Raises:
            InputError: if ``n`` is not a positive integer, or the model has several outputs.
        """
        check_integer(n, "n", minimum=1)
        if not len(self.y) or max(self._n_initial, len(self.y)) < self.initial:
            sobol = SobolEngine(len(self.bounds), scramble=True, seed=child_seed(self.seed, _INITIAL))
            points = sobol.fast_forward(self._n_initial).draw(n, dtype=torch.float64)
            self._n_initial += n
            return self._to_box(points)
        model = self._fitted()
        self._n_suggestions += 1
        candidates = self._candidates()
        seed = child_seed(self.seed, _DRAWS, self._n_suggestions)
        values = draw_functions(model, self._inputs(candidates, model), n, seed).reshape(n, -1)
        if values.shape[1] != len(candidates):
            raise InputError(f"the model must output one number per row, got {values.shape[1] // len(candidates)}")
        chosen = values.argmax(1) if self.maximize else values.argmin(1)
        return self._to_box(candidates[chosen.cpu()])

    def observe(self, x: Any, y: Any) -> Self:
        """Add evaluations of the function, at suggested points or others.

        Args:
            x: points in the box, ``[D]`` or ``[N, D]``.
            y: the values of the function, a number or ``[N]``; they may be noisy.

        Returns:
            The optimizer itself.

        Raises:
            InputError: if the shapes do not match, a value is not finite or a point is outside the box.
        """
        points = as_numbers(x, "x").detach().double().cpu()
        values = as_numbers(y, "y").detach().double().cpu().reshape(-1)
        points = points.reshape(-1, 1) if len(self.bounds) == 1 and points.ndim < 2 else points
        if points.ndim not in (1, 2) or points.shape[-1] != len(self.bounds):
            raise InputError(
                f"x must have shape [D] or [N, D] with D = {len(self.bounds)}, one number per pair of bounds, got "
                f"{list(points.shape)}"
            )
        points = points.reshape(-1, len(self.bounds))
        if len(points) != len(values):
            raise InputError(f"y must hold one value per point, {len(points)}, got {len(values)}")
        if not bool(values.isfinite().all()):
            raise InputError("y holds NaN or infinite values; leave those evaluations out, or give them a large value")
        if bool(((points < self.bounds[:, 0]) | (points > self.bounds[:, 1])).any()) or bool(points.isnan().any()):
            raise InputError(f"x must be inside the bounds {self.bounds.tolist()}")
        self.x, self.y = torch.cat([self.x, points]), torch.cat([self.y, values])
        self._model = None
        return self

    def run(self, function: Callable[[Tensor], float], evaluations: int, batch_size: int = 1) -> Evaluation:
        """Suggest, evaluate and observe in a loop.

        Args:
            function: maps a point ``[D]`` to its value.
            evaluations: number of evaluations.
            batch_size: number of points suggested at a time.

        Returns:
            The best evaluation.

        Raises:
            InputError: if ``function`` does not return a finite number.
        """
        check_integer(evaluations, "evaluations", minimum=1)
        check_integer(batch_size, "batch_size", minimum=1)
        end = len(self.y) + evaluations
        while len(self.y) < end:
            points = self.suggest(min(batch_size, end - len(self.y)))
            self.observe(points, [_as_number(function(point)) for point in points])
        return self.best

    def _fitted(self) -> Any:
        """The model of all evaluations so far."""
        if self._model is None:
            model = self._source.new(child_seed(self.seed, _MODEL, len(self.y)))
            deviation = float(self.y.std(correction=0))
            values = (self.y - self.y.mean()) / (deviation or 1.0)
            inputs = self._inputs(self._to_unit(self.x), model)
            shape = target_shape(model, inputs) if isinstance(model, Method) else ()
            targets = values.to(inputs.dtype).reshape(-1, *shape)
            self._model = self._source.fit(model, inputs, targets, child_seed(self.seed, _FIT, len(self.y)))
        return self._model

    def _candidates(self) -> Tensor:
        """Sobol points, and steps from the best point, in the unit cube, ``[candidates, D]``."""
        count, d = self.candidates // 2, len(self.bounds)
        seed = child_seed(self.seed, _CANDIDATES, self._n_suggestions)
        everywhere = SobolEngine(d, scramble=True, seed=seed).draw(self.candidates - count, dtype=torch.float64)
        stream = generator(torch.device("cpu"), seed, 1)
        power = torch.rand(count, 1, generator=stream, dtype=torch.float64)
        size = 10.0 ** (_SMALLEST_STEP + (_LARGEST_STEP - _SMALLEST_STEP) * power)
        steps = size * torch.randn(count, d, generator=stream, dtype=torch.float64)
        return torch.cat([everywhere, (self._to_unit(self.best.x) + steps).clamp(0.0, 1.0)])

    def _inputs(self, unit: Tensor, model: Any) -> Tensor:
        """Points of the unit cube as the model gets them, in [−1, 1]."""
        return (2.0 * unit - 1.0).to(model.dtype if isinstance(model, Method) else torch.float64)

    def _to_unit(self, x: Tensor) -> Tensor:
        return (x - self.bounds[:, 0]) / (self.bounds[:, 1] - self.bounds[:, 0])

    def _to_box(self, unit: Tensor) -> Tensor:
        lower, upper = self.bounds.T
        return torch.minimum(lower + unit * (upper - lower), upper)


def _as_number(value: Any) -> float:
    """The value of the function at one point."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"function must return one number for a point, got {value!r:.100}") from error
