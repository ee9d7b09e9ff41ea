"""The Bernoulli likelihood."""

from __future__ import annotations

from torch import Tensor

from credo.likelihoods.base import Likelihood, as_outputs, one_draw
from credo.predictive import Predictive
from credo.predictive.bernoulli import BernoulliComponents
from credo.predictive.classes import ClassPredictive


class Bernoulli(Likelihood):
    """Two classes, or several labels that do not exclude each other: y ~ Bernoulli(sigmoid(f(x))).

    The network outputs logits; targets have the output's shape and hold 0 and 1, as bool, float or integer.
    """

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """Σ_i y_i log p_i + (1 − y_i) log(1 − p_i) of every row, ``[B]``."""
        return BernoulliComponents(one_draw(output)).row_log_prob(y)[0]

    def predictive(self, outputs: Tensor) -> Predictive:
        """The mixture over S draws, from their outputs ``[S, B, ...]``."""
        return ClassPredictive(BernoulliComponents(as_outputs(outputs)))

    def check(self, output: Tensor, y: Tensor) -> None:
        """Raise ``InputError`` for targets that do not fit by shape, dtype or value."""
        BernoulliComponents(one_draw(output)).check(y)

    def get_config(self) -> dict[str, object]:
        """The constructor's arguments and ``"name"``."""
        return {"name": "Bernoulli"}
