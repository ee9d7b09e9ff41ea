"""The noise scale that the Gaussian and the Student-t likelihood share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from credo._arguments import check_integer, check_positive
from credo.errors import InputError, unknown_name
from credo.likelihoods.base import Likelihood, halves, trailing_dim


class ScaledLikelihood(Likelihood):
    """A location and a scale σ; see :class:`Gaussian` for the arguments."""

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
            if noise not in ("learned", "heteroscedastic"):
                raise unknown_name("noise", noise, ["learned", "heteroscedastic"])
            self.noise = noise
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
        """The current σ, ``[]`` or ``[outputs]``; a heteroscedastic one is the network's to say."""
        if self.log_scale is not None:
            return self.log_scale.detach().exp()
        if self.fixed_scale is not None:
            return self.fixed_scale
        if isinstance(self.noise, str):
            raise InputError("a heteroscedastic likelihood has no scale of its own: read predictive.aleatoric.")
        return torch.tensor(self.noise)

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Location and log σ, ``[S, B, ...]`` both, from the network's outputs."""
        if self.noise == "heteroscedastic":
            dim = trailing_dim(self.output_dim, outputs, "output_dim")
            location, log_variance = halves(outputs, dim, "[mean, log variance]")
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

    def get_config(self) -> dict[str, object]:
        """The constructor's arguments and ``"name"``."""
        noise = self.noise if self.fixed_scale is None else self.fixed_scale.tolist()
        return {
            "name": type(self).__name__,
            "noise": noise,
            "initial": self.initial,
            "outputs": self.outputs,
            "output_dim": self.output_dim,
        }

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return ", ".join(f"{k}={v!r}" for k, v in self.get_config().items() if k in ("noise", "df"))
