"""The deterministic auto-encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from credo._arguments import check_integer
from credo.errors import InputError, unknown_name
from credo.generative import presets
from credo.generative.base import EncoderDecoderModel, call_network
from credo.generative.observations import check_logits
from credo.generative.rows import check_finite, check_shares
from credo.training.generative import GenerativeTask, evaluation_mode

_LOSSES = ("l2", "bce")
_ROWS_AT_ONCE = 4096


class AutoEncoder(EncoderDecoderModel):
    r"""A code z = f(x) for every datum, and a way back x̂ = g(z), both networks.

        min_{f, g} Σ_n ℓ(x_n, g(f(x_n)))

    with ``loss="l2"``, ℓ = ‖x − x̂‖², or ``loss="bce"``, the binary cross-entropy Σ_i −x_i log x̂_i − (1 − x_i)
    log(1 − x̂_i) of data between 0 and 1, for which the decoder outputs logits. A datum's loss sums over its numbers.
    Linear networks with ``"l2"`` find the principal subspace (Baldi & Hornik 1989).

    There is no distribution over codes and so no ``sample``: for that take a :class:`VAE`. Grids show data, each beside
    its reconstruction. ``history`` holds the mean ``error`` ℓ of a datum over an epoch.

    Args:
        encoder: a network that outputs ``[B, latent]``, or the name of a preset, ``"dense"`` or ``"convolutional"``,
            which needs ``shape``.
        decoder: a network from codes to data. Left out where the encoder is a preset.
        latent: the dimension of a code.
        shape: of a datum, such as ``(1, 28, 28)``, for a preset.
        hidden: widths of a preset's hidden layers, from data to code; channels of a convolutional one.
        loss: ``"l2"`` or ``"bce"``.

    References:
        P. Baldi, K. Hornik. Neural networks and principal component analysis. Neural Networks, 1989.
        G. E. Hinton, R. R. Salakhutdinov. Reducing the dimensionality of data with neural networks. Science, 2006.
    """

    def __init__(
        self,
        encoder: nn.Module | str = "dense",
        decoder: nn.Module | None = None,
        *,
        latent: int,
        shape: Sequence[int] | None = None,
        hidden: Sequence[int] | None = None,
        loss: str = "l2",
    ) -> None:
        if loss not in _LOSSES:
            raise unknown_name("loss", loss, _LOSSES)
        latent = check_integer(latent, "latent", minimum=1)
        encoder, decoder = presets.resolve(encoder, decoder, shape=shape, code=latent, latent=latent, hidden=hidden)
        if loss == "bce":
            check_logits("decoder", decoder, "loss='bce' takes logits")
        super().__init__(encoder=encoder, decoder=decoder)
        self.latent, self.is_bce = latent, loss == "bce"

    def _training_task(self) -> _ReconstructionTask:
        return _ReconstructionTask(self)

    def _loss(self, x: Tensor, weight: Tensor, n_data: int | None) -> Tensor:
        loss = (weight * self._errors(x)).mean()
        self._last_terms = {"error": loss.detach()}
        return loss

    @torch.no_grad()
    def encode(self, x: Any) -> Tensor:
        """The codes of data, ``[N, latent]``."""
        with evaluation_mode(self):
            return torch.cat([self._codes(part) for part in self._batches(x, _ROWS_AT_ONCE)])

    @torch.no_grad()
    def decode(self, z: Any) -> Tensor:
        """Data from codes ``[N, latent]``, ``[N, ...]``; between 0 and 1 with ``loss="bce"``."""
        codes = self._check_codes(z)
        with evaluation_mode(self):
            output = torch.cat([self.decoder(part) for part in codes.split(_ROWS_AT_ONCE)])
        return output.sigmoid() if self.is_bce else output

    def reconstruct(self, x: Any) -> Tensor:
        """Data through their codes, ``[N, ...]``."""
        return self.decode(self.encode(x))

    @torch.no_grad()
    def error(self, x: Any) -> Tensor:
        """The loss of every datum, ``[N]``: data unlike those of training tend to have a large one."""
        with evaluation_mode(self):
            return torch.cat([self._errors(part) for part in self._batches(x, _ROWS_AT_ONCE)])

    def _codes(self, x: Tensor) -> Tensor:
        codes = self.encoder(x)
        if not isinstance(codes, Tensor) or codes.shape != (len(x), self.latent):
            found = list(codes.shape) if isinstance(codes, Tensor) else type(codes).__name__
            raise InputError(f"the encoder must output codes of shape [{len(x)}, {self.latent}], got {found}")
        return codes

    def _errors(self, x: Tensor) -> Tensor:
        """ℓ of every datum, ``[B]``."""
        output = self.decoder(self._codes(x))
        self._check_output(output, x)
        each = F.binary_cross_entropy_with_logits if self.is_bce else F.mse_loss
        return each(output.to(x.dtype), x, reduction="none").flatten(1).sum(1)

    def _check_values(self, x: Tensor) -> None:
        """Finite numbers; for the binary cross-entropy, between 0 and 1."""
        check_finite(x)
        if self.is_bce:
            check_shares(x, "loss='bce'", "loss='l2'")

    def _check_shapes(self, x: Tensor) -> None:
        """Codes of the latent size, and an output in the shape of the data."""
        self._check_output(call_network("decoder", self.decoder, call_network("encoder", self._codes, x)), x)

    def _check_output(self, output: object, x: Tensor) -> None:
        if not isinstance(output, Tensor) or output.shape != x.shape:
            found = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise InputError(f"the decoder must output data of shape {list(x.shape)}, got {found}")

    def _get_config(self) -> dict[str, object]:
        """The arguments that are not networks."""
        return {"latent": self.latent, "loss": "bce" if self.is_bce else "l2"}


class _ReconstructionTask(GenerativeTask[AutoEncoder]):
    """Reports the reconstruction error."""

    monitors = MappingProxyType({"error": -1})

    def progress_text(self, metrics: Mapping[str, float]) -> str:
        """The error, and that of held-out data."""
        shown = f"error {metrics['error']:.4g}"
        return f"{shown}  held-out {metrics['validation_error']:.4g}" if "validation_error" in metrics else shown

    def validation_step(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        """The mean error of held-out data."""
        return {"validation_error": float(self.model.error(held_out).mean())}
