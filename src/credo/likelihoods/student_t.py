"""The Student-t likelihood."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from credo._arguments import check_positive
from credo.errors import unknown_name
from credo.likelihoods.base import as_outputs, one_draw
from credo.likelihoods.scaled import ScaledLikelihood
from credo.predictive import Predictive
from credo.predictive.real import RealPredictive
from credo.predictive.student_t import StudentTComponents


class StudentT(ScaledLikelihood):
    """Real targets with heavy-tailed noise, for data with outliers: (y − f(x))/σ ~ t_ν.

    The scale σ is not the standard deviation, which is σ√(ν/(ν − 2)), and infinite for ν ≤ 2: then ``variance``,
    ``std`` and ``aleatoric`` of a prediction are infinite, while its quantiles and intervals stay finite.

    Args:
        df: the degrees of freedom ν, a positive number, or ``"learned"``: a parameter ``log_df`` that starts at ν = 4.
        noise, initial, outputs, output_dim: the scale σ, as for :class:`~credo.likelihoods.Gaussian`; a heteroscedastic
            network outputs ``[location, log σ²]``.
    """

    log_df: nn.Parameter | None

    def __init__(
        self,
        df: float | str = 4.0,
        noise: float | Sequence[float] | Tensor | str = "learned",
        *,
        initial: float = 1.0,
        outputs: int = 1,
        output_dim: int = -1,
    ) -> None:
        super().__init__(noise, initial, outputs, output_dim)
        if isinstance(df, str) and df != "learned":
            raise unknown_name("df", df, ["learned"])
        self.df: float | str = df if isinstance(df, str) else check_positive(df, "df")
        self.register_parameter("log_df", nn.Parameter(torch.tensor(math.log(4.0))) if df == "learned" else None)

    def log_prob(self, output: Tensor, y: Tensor) -> Tensor:
        """Σ_i log St(y_i | m_i, σ_i, ν) of every row, ``[B]``."""
        return self._components(one_draw(output)).row_log_prob(y)[0]

    def predictive(self, outputs: Tensor) -> Predictive:
        """The mixture over S draws, from their outputs ``[S, B, ...]``."""
        return RealPredictive(self._components(as_outputs(outputs)))

    def check(self, output: Tensor, y: Tensor) -> None:
        """Raise ``InputError`` for targets that do not fit by shape, dtype or value."""
        self._components(one_draw(output)).check(y)

    def get_config(self) -> dict[str, object]:
        """The constructor's arguments and ``"name"``."""
        return {**super().get_config(), "df": self.df}

    def _components(self, outputs: Tensor) -> StudentTComponents:
        location, log_scale = self.split(outputs)
        df = location.new_full((), float(self.df)) if self.log_df is None else self.log_df.to(location.dtype).exp()
        return StudentTComponents(location, log_scale, df.expand_as(location))
