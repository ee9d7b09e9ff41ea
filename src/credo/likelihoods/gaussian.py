"""The Gaussian likelihood."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from credo.likelihoods.base import as_outputs, one_draw
from credo.likelihoods.scaled import ScaledLikelihood
from credo.predictive import Predictive
from credo.predictive.gaussian import GaussianComponents
from credo.predictive.real import RealPredictive


class Gaussian(ScaledLikelihood):
    """Real targets with Gaussian noise: y ~ N(f(x), σ²).

    The density is evaluated as −½(log 2π + s + (y − m)² e^−s), s = log σ² the log variance.

    Args:
        noise: the noise's *standard deviation* σ. A positive number; a sequence of one per output; ``"learned"``:
            one parameter ``log_scale`` (``outputs`` of them) trained with the rest; ``"heteroscedastic"``: the network
            outputs ``[mean, log variance]``, one behind the other along ``output_dim``, for targets half as wide.
        initial: where a learned σ starts.
        outputs: how many learned σ there are: 1, shared by all outputs, or one per output.
        output_dim: the dimension of the network's output ``[B, ...]`` along which outputs are counted.
    """

    def __init__(
        self,
        noise: float | Sequence[float] | Tensor | str = "learned",
        *,
        initial: float = 1.0,
        outputs: int = 1,
        output_dim: int = -1,
    ) -> None:
        super().__init__(noise, initial, outputs, output_dim)

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """Σ_i log N(y_i | m_i, σ_i²) of every row, ``[B]``."""
        return self._components(one_draw(output)).row_log_prob(y)[0]

    def predictive(self, outputs: Tensor) -> Predictive:
        """The mixture over S draws, from their outputs ``[S, B, ...]``."""
        return RealPredictive(self._components(as_outputs(outputs)))

    def check(self, output: Tensor, y: Tensor) -> None:
        """Raise ``InputError`` for targets that do not fit by shape, dtype or value."""
        self._components(one_draw(output)).check(y)

    def _components(self, outputs: Tensor) -> GaussianComponents:
        mean, log_scale = self.split(outputs)
        return GaussianComponents(mean, 2 * log_scale)
