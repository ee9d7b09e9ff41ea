"""What every method has in common: a loss, a posterior, and predictions from draws of it."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from credo import data as data_
from credo._arguments import check_integer, check_option
from credo.errors import CredoError, InputError
from credo.evaluation.evaluator import WAYS
from credo.functional import outside_inference_mode
from credo.model import Model
from credo.nests import describe_tensors
from credo.predictive import Predictive


class Method(Model):
    """A method of approximate inference: ``fit`` finds a posterior, ``predict`` returns the predictive distribution."""

    @abstractmethod
    def forward(self, x: Any, y: Tensor, n_data: int | None = None, **options: Any) -> Tensor:
        """The loss per row, differentiable; :meth:`loss` is the same by its name.

        Args:
            x: inputs, rows along dim 0.
            y: targets.
            n_data: the number of training data.
            **options: those of :meth:`loss`.

        Returns:
            The loss in nats, a scalar.
        """

    @abstractmethod
    def elbo(self, data: Any, samples: int = 10, seed: int | None = None) -> float:
        """The evidence lower bound E_q[log p(D | w)] − KL(q ‖ p), at temperature 1.

        Args:
            data: as for :meth:`fit`.
            samples: number of weight draws.
            seed: for the draws; ``None``: from torch's random state.

        Returns:
            The bound in nats, over all of ``data``.
        """

    @abstractmethod
    def parameter_groups(self, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer of your own.

        Args:
            weight_decay: for the network's weights; the scales of a posterior get none.

        Returns:
            Groups as ``torch.optim`` accepts them.
        """

    @abstractmethod
    def summary(self) -> str:
        """A table of the parameters: shape, and whether and how each is Bayesian.

        Returns:
            One line per parameter.
        """

    @abstractmethod
    def _predictor(self, samples: int | str, seed: int | None) -> Predictor:
        """Predicts with ``samples`` fixed draws, for any number of batches."""

    def loss(self, x: Any, y: Tensor, n_data: int | None = None, **options: Any) -> Tensor:
        """The loss of a minibatch, for a training loop of your own; the same as ``model(x, y, n_data)``.

        Args:
            x: inputs, rows along dim 0.
            y: targets.
            n_data: the number of training data, which share the KL; known after :meth:`fit`.
            **options: ``sample_weight``, ``[B]``; ``batch``, (i, M) for a KL weighting by minibatch.

        Returns:
            The loss per row in nats, differentiable.
        """
        return self.forward(x, y, n_data, **options)

    def predict(
        self,
        x: Any,
        samples: int | str = 100,
        seed: int | None = None,
        batch_size: int | None = None,
        vectorize: str = "auto",
    ) -> Predictive:
        """The predictive distribution for the rows of ``x``.

        Draw ``s`` is one function for all rows, whatever the batch size and the order of rows. The network is left as
        it was; with a seed, so is torch's random state.

        Args:
            x: a tensor or array with rows along dim 0; a tuple or mapping of them; or a DataLoader, whose predictions
                are collected on the CPU.
            samples: number of posterior draws; 0: the deterministic prediction of the mean weights; ``"moments"``:
                no draws, but means and variances propagated through the network in one pass, see
                :mod:`credo.moments`. The prediction then has 128 deterministic draws of a Gaussian output, each row by
                itself: they are no functions of all rows.
            seed: the same seed gives the same draws.
            batch_size: rows per call of the network; ``None``: as memory allows.
            vectorize: how draws are evaluated. ``"vmap"``: at once, over stacked weights; ``"fold"``: dropout only, at
                once, as rows of one batch; ``"loop"``: one after the other; ``"auto"``: on a CPU by a fixed rule, on a
                GPU whichever is measured to be faster for this network and batch size. On a GPU a prediction that is
                repeated is captured as a CUDA graph and replayed if that is faster, except for ``"loop"``. All give the
                same up to rounding; on a CPU the same way gives the same to the last bit.

        Returns:
            The mixture over the draws.

        Raises:
            UnsupportedError: ``samples="moments"``, and the network has a layer that moments cannot pass.
        """
        check_option(vectorize, "vectorize", WAYS)  # also for predictions in closed form, which do not need it
        if isinstance(x, DataLoader):
            return Predictive.concatenate([p.cpu() for p in self.stream(x, samples, seed)])
        with outside_inference_mode():
            return self._predictor(samples, seed)(x, batch_size, vectorize)

    def stream(self, batches: Iterable[Any], samples: int | str = 100, seed: int | None = None) -> Iterator[Predictive]:
        """Predict batch by batch, in memory for one batch, with the same draws for all.

        Args:
            batches: inputs, or tuples (input, target, ...) as a DataLoader yields them.
            samples: number of posterior draws, or ``"moments"``, as for :meth:`predict`.
            seed: the same seed gives the same draws.

        Yields:
            The predictive distribution for each batch.
        """
        with outside_inference_mode():
            predictor = self._predictor(samples, seed)
        for batch in data_.without_rng_side_effects(batches):
            with outside_inference_mode():
                prediction = predictor(data_.inputs_of(batch))
            yield prediction

    def export(
        self,
        path: str | Path,
        x: Any,
        *,
        samples: int | str = 100,
        seed: int | None = 0,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        level: float | None = 0.95,
    ) -> None:
        """Write the prediction as an ONNX graph, which runs without Python; needs the extra ``onnx``.

        The draws are constants of the graph, evaluated as one batch. Outputs for classes are ``probabilities``,
        ``entropy`` and ``mutual_information`` in nats; for real and count-valued targets ``mean``, ``std``,
        ``epistemic`` and ``aleatoric``, all standard deviations, ``quantiles [B, ..., K]``, ``lower`` and ``upper``.
        Numbers are those of ``predict(x, samples, seed)`` up to rounding.

        Args:
            path: the file, such as ``"model.onnx"``.
            x: a few rows of inputs, at least two, as for :meth:`predict`. The graph takes any number of rows; inputs
                are called ``x``, or by the keys of a mapping.
            samples: number of posterior draws; 0: the mean weights alone; ``"moments"`` for methods that have them in
                closed form.
            seed: of the draws.
            quantiles: the levels of the output ``quantiles``; empty: without it.
            level: the probability of the interval from ``lower`` to ``upper``; ``None``: without it.

        Raises:
            InputError: the extra ``onnx`` is not installed, or an argument is not valid.
            UnsupportedError: the prediction needs operations that ONNX does not have.
        """
        options: dict[str, Any] = {"samples": samples, "seed": seed, "quantiles": quantiles, "level": level}
        importlib.import_module("credo.export").export_network(self, path, x, **options)  # it imports this package


def check_samples(samples: object) -> int | str:
    """Return ``samples`` if it is a number of draws or ``"moments"``."""
    if isinstance(samples, str):
        if samples != "moments":
            raise InputError(f"samples must be an integer of at least 0, or 'moments', got {samples!r}")
        return samples
    return check_integer(samples, "samples", minimum=0)


@contextmanager
def describing_input(x: Any) -> Iterator[None]:
    """Add to an error of the user's network what it was called on."""
    try:
        yield
    except CredoError:
        raise
    except Exception as error:
        error.add_note(f"The network was called on {describe_tensors(x)}.")
        raise


class Predictor(ABC):
    """Predicts with draws that stay the same from batch to batch."""

    @abstractmethod
    def __call__(self, x: Any, batch_size: int | None = None, vectorize: str = "auto") -> Predictive:
        """The predictive distribution for the rows of ``x``."""
