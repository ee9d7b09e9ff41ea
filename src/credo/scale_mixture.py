"""Priors that mix a wide and a narrow Gaussian: for every weight, or for groups of weights."""

from __future__ import annotations

import math
import typing
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, constraints

from credo._arguments import check_fraction, check_positive
from credo.errors import InputError
from credo.priors import register_prior


class Mixture(typing.NamedTuple):
    """The constants of log p = wide + softplus(odds − fall·S) − precision·S, see :class:`ScaleMixture`."""

    wide: float
    odds: float
    fall: float
    precision: float


@register_prior
class ScaleMixture(Distribution):
    r"""Two zero-mean Gaussians, π·N(w; 0, σ₁²) + (1 − π)·N(w; 0, σ₂²), with σ₁ > σ₂ (Blundell et al. 2015, eq. 7).

    The wide component gives a heavy tail, the narrow one pulls many weights to zero. The log
    density, log N₁ + softplus(log N₂/N₁) up to the weights, is a logsumexp: its gradient is right far into the tail.

    With ``dim`` the n weights of a group are wide or narrow together,

    .. math:: p(w_1, \dots, w_n) = \pi \prod_k N(w_k; 0, \sigma_1^2) + (1 - \pi) \prod_k N(w_k; 0, \sigma_2^2),

    as in the language models of Fortunato et al. (2017). A wide group pays −log π once, not for every weight, so that
    the prior removes whole inputs instead of holding all weights near zero.

    Args:
        pi: the weight of the wide component, strictly between 0 and 1.
        sigma1: standard deviation of the wide component.
        sigma2: standard deviation of the narrow component.
        dim: ``None``: every weight has a component of its own. A negative dimension: weights along it share one. For
            the weight ``[outputs, inputs]`` of a linear or recurrent layer, -2 makes a group of each input; for an
            embedding ``[tokens, width]``, -1 a group of each token.

    Raises:
        InputError: if ``pi`` is not between 0 and 1, a standard deviation is not positive, or ``dim`` is not negative.

    Example:
        >>> prior = {"*embedding*": ScaleMixture(dim=-1), "*": ScaleMixture(dim=-2)}

    References: C. Blundell, J. Cornebise, K. Kavukcuoglu, D. Wierstra, "Weight uncertainty in neural networks",
    ICML 2015. M. Fortunato, C. Blundell, O. Vinyals, "Bayesian recurrent neural networks", arXiv:1704.02798, 2017.
    """

    arg_constraints: typing.ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.real

    def __init__(
        self, pi: float = 0.5, sigma1: float = 1.0, sigma2: float = math.exp(-6.0), dim: int | None = None
    ) -> None:
        self.pi = check_fraction(pi, "pi")
        self.sigma1, self.sigma2 = check_positive(sigma1, "sigma1"), check_positive(sigma2, "sigma2")
        if dim is not None and (not isinstance(dim, int) or dim >= 0):
            raise InputError(f"dim must be None or a negative dimension, -2 for the inputs of a layer, got {dim!r}")
        self.dim = dim
        super().__init__(validate_args=False)

    @property
    def min_dims(self) -> int:
        """How many dimensions a parameter must have."""
        return 0 if self.dim is None else -self.dim

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density, elementwise; of a group, in equal shares for its weights.

        Args:
            value: weights; leading dimensions may count draws.

        Returns:
            A tensor of the shape of ``value``, in nats, whose sum is the log density of all weights.
        """
        square = value.square()
        if self.dim is None:
            return _log_density(square, self.constants)
        size = value.shape[self.dim]
        group = _log_density(square.sum(self.dim, keepdim=True), self._constants(size))
        return (group / size).expand_as(value)

    @property
    def constants(self) -> Mixture:
        """The numbers in the formula of the log density of one weight."""
        return self._constants(1)

    def _constants(self, size: int) -> Mixture:
        """Those of a group of ``size`` weights with the sum of squares S."""
        return Mixture(
            wide=math.log(self.pi) - size * (math.log(self.sigma1) + 0.5 * math.log(2.0 * math.pi)),
            odds=math.log((1.0 - self.pi) / self.pi) + size * math.log(self.sigma1 / self.sigma2),
            fall=0.5 / self.sigma2**2 - 0.5 / self.sigma1**2,
            precision=0.5 / self.sigma1**2,
        )

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw from the prior.

        Args:
            sample_shape: the shape of the result.

        Returns:
            A tensor of that shape.
        """
        shape = list(sample_shape)
        if self.dim is not None:
            shape[self.dim] = 1
        wide = torch.rand(shape) < self.pi
        return torch.randn(tuple(sample_shape)) * torch.where(wide, self.sigma1, self.sigma2)

    @property
    def mean(self) -> Tensor:
        """Zero."""
        return torch.zeros(())

    @property
    def variance(self) -> Tensor:
        """π·σ₁² + (1 − π)·σ₂²."""
        return torch.tensor(self.pi * self.sigma1**2 + (1.0 - self.pi) * self.sigma2**2)

    def get_config(self) -> dict[str, object]:
        """The constructor's arguments.

        Returns:
            Numbers by name.
        """
        return {"pi": self.pi, "sigma1": self.sigma1, "sigma2": self.sigma2, "dim": self.dim}

    def __repr__(self) -> str:
        group = "" if self.dim is None else f", dim={self.dim}"
        return f"ScaleMixture(pi={self.pi:g}, sigma1={self.sigma1:g}, sigma2={self.sigma2:g}{group})"


def _log_density(square: Tensor, c: Mixture) -> Tensor:
    return F.softplus(c.odds - square * c.fall, threshold=37.0).sub(square, alpha=c.precision).add(c.wide)
