"""Likelihoods of real targets with a location and a scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from credo._arguments import check_integer, check_option, check_positive
from credo.errors import InputError
from credo.likelihoods.base import REGISTRY, Likelihood, split_in_two, trailing_dim
from credo.predictive.bounded import LogNormalComponents
from credo.predictive.location_scale import GaussianComponents, StudentTComponents


class LocationScaleLikelihood(Likelihood):
    """A location, which the network outputs, and a scale σ; see :class:`Gaussian` for the arguments."""

    log_scale: nn.Parameter | None
    fixed_scale: Tensor | None

    def __init__(
        self, noise: float | Sequence[float] | Tensor | str, initial: float, outputs: int, output_dim: int
    ) -> None:
        super().__init__()
        self.initial = check_positive(initial, "initial")
        self.outputs = check_integer(outputs, "outputs", minimum=1)
        self.output_dim = check_integer(output_dim, "output_dim")
        self.noise: float | str = "per output"
        if isinstance(noise, (Tensor, np.ndarray)) and noise.ndim == 0:
            noise = float(noise)
        self.register_parameter("log_scale", None)
        self.register_buffer("fixed_scale", None)
        if isinstance(noise, str):
            self.noise = check_option(noise, "noise", ("learned", "heteroscedastic"))
            if noise == "learned":
                self.log_scale = nn.Parameter(
                    torch.full([] if self.outputs == 1 else [self.outputs], math.log(self.initial))
                )
        elif isinstance(noise, (Tensor, Sequence, np.ndarray)):
            scale = torch.as_tensor(noise, dtype=torch.get_default_dtype()).detach().clone()
            if scale.ndim > 1 or scale.numel() == 0 or not bool(((scale > 0) & scale.isfinite()).all()):
                raise InputError(f"noise must hold one positive standard deviation per output, got {noise!r}.")
            self.fixed_scale = scale
        else:
            self.noise = check_positive(noise, "noise")

    @property
    def scale(self) -> Tensor:
        """The current σ, ``[]`` or ``[outputs]``; raises ``InputError`` if the network outputs it."""
        if self.log_scale is not None:
            return self.log_scale.detach().exp()
        if self.fixed_scale is not None:
            return self.fixed_scale
        if isinstance(self.noise, str):
            raise InputError("a heteroscedastic likelihood has no scale of its own: read predictive.aleatoric.")
        return torch.tensor(self.noise)

    @override
    def get_config(self) -> dict[str, object]:
        return {
            "name": type(self).__name__,
            "noise": self.noise if self.fixed_scale is None else self.fixed_scale.tolist(),
            "initial": self.initial,
            "outputs": self.outputs,
            "output_dim": self.output_dim,
        }

    def extra_repr(self) -> str:
        """Return the arguments that ``print`` shows.

        Returns:
            The arguments.
        """
        return ", ".join(f"{k}={v!r}" for k, v in self.get_config().items() if k in ("noise", "df"))

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the location and log σ, ``[S, B, ...]`` each, from the network's outputs."""
        if self.noise == "heteroscedastic":
            dim = trailing_dim(self.output_dim, outputs, "output_dim")
            location, log_variance = split_in_two(outputs, dim, "[mean, log variance]")
            return location, 0.5 * log_variance
        if isinstance(self.noise, float):
            return outputs, outputs.new_full((), math.log(self.noise)).expand_as(outputs)
        log_scale = self.log_scale if self.fixed_scale is None else self.fixed_scale.to(outputs.dtype).log()
        assert log_scale is not None
        return outputs, self._along_outputs(log_scale.to(outputs.dtype), outputs).expand_as(outputs)

    def _along_outputs(self, log_scale: Tensor, outputs: Tensor) -> Tensor:
        if log_scale.ndim == 0:
            return log_scale
        dim = trailing_dim(self.output_dim, outputs, "output_dim")
        if outputs.shape[dim] != len(log_scale):
            raise InputError(
                f"the noise has {len(log_scale)} scale(s), one per output, but the network outputs "
                f"{outputs.shape[dim]} along dimension {dim}."
            )
        return log_scale.view(-1, *[1] * (-dim - 1))


@REGISTRY.register
class Gaussian(LocationScaleLikelihood):
    """Real targets with Gaussian noise: y ~ N(f(x), σ²).

    The density is evaluated as −½(log 2π + s + (y − m)² e^−s), s = log σ² the log variance.

    Args:
        noise: the *standard deviation* σ of the noise. A positive number; a sequence of one per output; ``"learned"``:
            one parameter ``log_scale`` (``outputs`` of them) trained with the rest; ``"heteroscedastic"``: the network
            outputs ``[mean, log variance]``, concatenated along ``output_dim``, for targets of half that size.
        initial: the initial value of a learned σ.
        outputs: the number of learned σ: 1, shared by all outputs, or one per output.
        output_dim: the dimension of the network's output ``[B, ...]`` along which outputs are counted.

    Raises:
        InputError: if an argument is not valid.

    Example:
        >>> model = credo.BayesByBackprop(net, likelihood=credo.Gaussian(noise="learned"))
        >>> model.fit((x, y), epochs=20).likelihood.scale
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

    @override
    def components(self, outputs: Tensor) -> GaussianComponents:
        mean, log_scale = self._split(outputs)
        return GaussianComponents(mean, 2 * log_scale)


@REGISTRY.register
class StudentT(LocationScaleLikelihood):
    """Real targets with heavy-tailed noise, for data with outliers: (y − f(x))/σ ~ t_ν.

    The scale σ is not the standard deviation, which is σ√(ν/(ν − 2)), and infinite for ν ≤ 2: then ``variance``,
    ``std`` and ``aleatoric`` of a prediction are infinite, while its quantiles and intervals are finite.

    Args:
        df: the degrees of freedom ν, a positive number, or ``"learned"``: a parameter ``log_df`` that starts at ν = 4.
        noise: the scale σ, as for :class:`Gaussian`; a heteroscedastic network outputs ``[location, log σ²]``.
        initial: the initial value of a learned σ.
        outputs: the number of learned σ: 1, shared by all outputs, or one per output.
        output_dim: the dimension of the network's output ``[B, ...]`` along which outputs are counted.

    Raises:
        InputError: if an argument is not valid.

    Example:
        >>> credo.MAP(net, likelihood=credo.StudentT(df="learned")).fit((x, y))
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
        self.df: float | str = check_option(df, "df", ("learned",)) if isinstance(df, str) else check_positive(df, "df")
        self.register_parameter("log_df", nn.Parameter(torch.tensor(math.log(4.0))) if df == "learned" else None)

    @override
    def components(self, outputs: Tensor) -> StudentTComponents:
        location, log_scale = self._split(outputs)
        df = location.new_full((), float(self.df)) if self.log_df is None else self.log_df.to(location.dtype).exp()
        return StudentTComponents(location, log_scale, df.expand_as(location))

    @override
    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "df": self.df}


@REGISTRY.register
class LogNormal(LocationScaleLikelihood):
    """Positive targets whose logarithm has Gaussian noise: log y ~ N(f(x), σ²).

    For quantities whose error grows with their size, such as prices, incomes or durations. The network outputs the mean
    of log y; the median of y is exp(f(x)) and its mean exp(f(x) + σ²/2).

    Args:
        noise: the standard deviation σ of log y, as for :class:`Gaussian`; a heteroscedastic network outputs
            ``[mean of log y, log σ²]``.
        initial: the initial value of a learned σ.
        outputs: the number of learned σ: 1, shared by all outputs, or one per output.
        output_dim: the dimension of the network's output ``[B, ...]`` along which outputs are counted.

    Raises:
        InputError: if an argument is not valid.

    Example:
        >>> credo.MAP(net, likelihood=credo.LogNormal()).fit((x, prices))
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

    @override
    def components(self, outputs: Tensor) -> LogNormalComponents:
        return LogNormalComponents(*self._split(outputs))
