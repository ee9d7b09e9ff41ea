"""Likelihoods of counts and of targets between two ends: a mean, and a parameter of the spread about it."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from credo._arguments import check_integer, check_number, check_option, check_positive
from credo.errors import InputError
from credo.likelihoods.base import REGISTRY, Likelihood, split_in_two, trailing_dim
from credo.predictive.bounded import BetaComponents
from credo.predictive.counts import NegativeBinomialComponents, PoissonComponents


@REGISTRY.register
class Poisson(Likelihood):
    """Counts 0, 1, 2, …: y ~ Poisson(λ), log p(y) = y log λ − λ − log y!.

    The network outputs log λ; targets have the output's shape, in a floating-point or integer dtype.

    Args:
        offset: is added to the output, such as the log of the mean count: a network that outputs 0 predicts it.

    Raises:
        InputError: if ``offset`` is not a finite number.

    Example:
        >>> credo.BayesByBackprop(net, likelihood=credo.Poisson()).fit((x, counts), epochs=20)
    """

    def __init__(self, offset: float = 0.0) -> None:
        super().__init__()
        self.offset = check_number(offset, "offset")

    @override
    def components(self, outputs: Tensor) -> PoissonComponents:
        return PoissonComponents(outputs + self.offset)

    @override
    def get_config(self) -> dict[str, object]:
        return {"name": "Poisson", "offset": self.offset}


class MeanDispersionLikelihood(Likelihood):
    """A mean, which the network outputs, and a positive parameter of the spread: fixed, learned, or output as well."""

    parameter: ClassVar[str]
    log_spread: nn.Parameter | None

    def __init__(self, spread: float | str, initial: float, outputs: int, output_dim: int, offset: float) -> None:
        super().__init__()
        self.offset = check_number(offset, "offset")
        self.initial = check_positive(initial, "initial")
        self.outputs = check_integer(outputs, "outputs", minimum=1)
        self.output_dim = check_integer(output_dim, "output_dim")
        self.register_parameter("log_spread", None)
        if isinstance(spread, str):
            self.spread: float | str = check_option(spread, self.parameter, ("learned", "heteroscedastic"))
            if spread == "learned":
                size = [] if self.outputs == 1 else [self.outputs]
                self.log_spread = nn.Parameter(torch.full(size, math.log(self.initial)))
        else:
            self.spread = check_positive(spread, self.parameter)

    @override
    def get_config(self) -> dict[str, object]:
        return {
            "name": type(self).__name__,
            self.parameter: self.spread,
            "initial": self.initial,
            "outputs": self.outputs,
            "output_dim": self.output_dim,
            "offset": self.offset,
        }

    def extra_repr(self) -> str:
        """Return the arguments that ``print`` shows.

        Returns:
            The arguments.
        """
        return f"{self.parameter}={self.spread!r}"

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean on its own scale and the log of the spread, ``[S, B, ...]`` each."""
        if self.spread == "heteroscedastic":
            dim = trailing_dim(self.output_dim, outputs, "output_dim")
            mean, log_spread = split_in_two(outputs, dim, f"[mean, log {self.parameter}]")
            return mean + self.offset, log_spread + math.log(self.initial)
        outputs = outputs + self.offset
        if self.log_spread is None:
            return outputs, outputs.new_full((), math.log(float(self.spread))).expand_as(outputs)
        log_spread = self.log_spread.to(outputs.dtype)
        if log_spread.ndim:
            dim = trailing_dim(self.output_dim, outputs, "output_dim")
            if outputs.shape[dim] != len(log_spread):
                raise InputError(
                    f"there are {len(log_spread)} learned values of {self.parameter}, one per output, but the network "
                    f"outputs {outputs.shape[dim]} along dimension {dim}."
                )
            log_spread = log_spread.view(-1, *[1] * (-dim - 1))
        return outputs, log_spread.expand_as(outputs)


@REGISTRY.register
class NegativeBinomial(MeanDispersionLikelihood):
    """Counts that vary more than Poisson's: y ~ NB(μ, α), with mean μ and variance μ + αμ².

    A Poisson distribution whose rate is Gamma distributed with mean μ and shape 1/α; α → 0 is Poisson(μ):

        p(y) = Γ(y + 1/α) / (Γ(1/α) y!) · (1 + αμ)^(−1/α) · (αμ / (1 + αμ))^y.

    The network outputs log μ; targets have the output's shape, in a floating-point or integer dtype.

    Args:
        dispersion: α. A positive number; ``"learned"``: one parameter (``outputs`` of them) trained with the rest;
            ``"heteroscedastic"``: the network outputs ``[log μ, log α/initial]``, concatenated along ``output_dim``.
        initial: the initial value of a learned α, and the α of a heteroscedastic output of 0.
        outputs: the number of learned α: 1, shared by all outputs, or one per output.
        output_dim: the dimension of the network's output ``[B, ...]`` along which outputs are counted.
        offset: is added to the mean's output: a network that outputs 0 predicts it.

    Raises:
        InputError: if an argument is not valid.

    Example:
        >>> credo.BayesByBackprop(net, likelihood=credo.NegativeBinomial()).fit((x, counts), epochs=20)

    Reference: J. M. Hilbe. Negative binomial regression. Cambridge University Press, 2nd edition 2011 ("NB2").
    """

    parameter = "dispersion"

    def __init__(
        self,
        dispersion: float | str = "learned",
        *,
        initial: float = 1.0,
        outputs: int = 1,
        output_dim: int = -1,
        offset: float = 0.0,
    ) -> None:
        super().__init__(dispersion, initial, outputs, output_dim, offset)

    @override
    def components(self, outputs: Tensor) -> NegativeBinomialComponents:
        return NegativeBinomialComponents(*self._split(outputs))


@REGISTRY.register
class Beta(MeanDispersionLikelihood):
    """Shares, rates and other targets between two ends: (y − lower)/(upper − lower) ~ Beta(μφ, (1 − μ)φ).

    The mean is μ = sigmoid(f(x)), in units of the distance between the ends, and the variance μ(1 − μ)/(1 + φ).

    The density at the ends is 0 or infinite, so that targets must lie between them: targets equal to an end raise
    ``InputError``. For n targets that reach 0 or 1, ends of −ε and 1 + ε with ε = 1/(2(n − 1)) are the treatment of
    Smithson and Verkuilen (2006), y ↦ (y(n − 1) + ½)/n.

    Args:
        concentration: φ. A positive number; ``"learned"``: one parameter (``outputs`` of them) trained with the rest;
            ``"heteroscedastic"``: the network outputs ``[logit μ, log φ/initial]``, concatenated along ``output_dim``.
        lower: the lower end, which targets do not reach.
        upper: the upper end, which targets do not reach.
        initial: the initial value of a learned φ, and the φ of a heteroscedastic output of 0.
        outputs: the number of learned φ: 1, shared by all outputs, or one per output.
        output_dim: the dimension of the network's output ``[B, ...]`` along which outputs are counted.
        offset: is added to the mean's output: a network that outputs 0 predicts it.

    Raises:
        InputError: if an argument is not valid.

    Example:
        >>> credo.BayesByBackprop(net, likelihood=credo.Beta()).fit((x, shares), epochs=20)

    References:
        S. Ferrari, F. Cribari-Neto. Beta regression for modelling rates and proportions. J. Appl. Stat. 31(7), 2004.
        M. Smithson, J. Verkuilen. A better lemon squeezer? Psychological Methods 11(1), 2006.
    """

    parameter = "concentration"

    def __init__(
        self,
        concentration: float | str = "learned",
        *,
        lower: float = 0.0,
        upper: float = 1.0,
        initial: float = 10.0,
        outputs: int = 1,
        output_dim: int = -1,
        offset: float = 0.0,
    ) -> None:
        super().__init__(concentration, initial, outputs, output_dim, offset)
        self.lower, self.upper = check_number(lower, "lower"), check_number(upper, "upper")
        if not self.lower < self.upper:
            raise InputError(f"lower must be less than upper, got {lower:g} and {upper:g}.")

    @override
    def components(self, outputs: Tensor) -> BetaComponents:
        return BetaComponents(*self._split(outputs), self.lower, self.upper)

    @override
    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "lower": self.lower, "upper": self.upper}
