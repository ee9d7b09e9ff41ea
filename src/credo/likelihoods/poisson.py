"""The Poisson likelihood."""

from __future__ import annotations

from torch import Tensor

from credo.likelihoods.base import Likelihood, as_outputs, one_draw
from credo.predictive import Predictive
from credo.predictive.poisson import PoissonComponents
from credo.predictive.real import RealPredictive


class Poisson(Likelihood):
    """Counts 0, 1, 2, …: y ~ Poisson(λ), the network outputs log λ. Targets have the output's shape, float or integer.

    log p(y) = y log λ − λ − log y!
    """

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """Σ_i y_i log λ_i − λ_i − log y_i! of every row, ``[B]``."""
        return PoissonComponents(one_draw(output)).row_log_prob(y)[0]

    def predictive(self, outputs: Tensor) -> Predictive:
        """The mixture over S draws, from their outputs ``[S, B, ...]``."""
        return RealPredictive(PoissonComponents(as_outputs(outputs)))

    def check(self, output: Tensor, y: Tensor) -> None:
        """Raise ``InputError`` for targets that do not fit by shape, dtype or value."""
        PoissonComponents(one_draw(output)).check(y)

    def get_config(self) -> dict[str, object]:
        """The constructor's arguments and ``"name"``."""
        return {"name": "Poisson"}
