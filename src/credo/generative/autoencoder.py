"""The deterministic auto-encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from credo._arguments import check_integer, check_option
from credo.errors import InputError
from credo.generative.base import EncoderDecoderModel, check_finite, check_unit_interval
from credo.generative.networks import call_network, check_logits, encoder_and_decoder
from credo.training.generative import GenerativeTask, evaluation_mode

_BATCH_SIZE = 4096


class AutoEncoder(EncoderDecoderModel):
    r"""A code z = f(x) for each datum and a reconstruction x̂ = g(z), with networks f and g.

        min_{f, g} Σ_n ℓ(x_n, g(f(x_n)))

    With ``loss="l2"``, ℓ = ‖x − x̂‖². With ``loss="bce"``, ℓ is the binary cross-entropy
    Σ_i −x_i log x̂_i − (1 − x_i) log(1 − x̂_i) of data between 0 and 1, and the decoder outputs logits. The loss of a
    datum is a sum over its numbers. Linear networks with ``"l2"`` find the principal subspace (Baldi & Hornik 1989).

    There is no distribution over codes and so no ``sample``: use a :class:`VAE` for that. Grids show each datum next to
    its reconstruction. ``history`` contains the mean ``error`` ℓ per datum of each epoch.

    Args:
        encoder: a network that outputs ``[B, latent]``, or the name of a preset, ``"dense"`` or ``"convolutional"``,
            which needs ``shape``.
        decoder: a network from codes to data; ``None``: that of the preset.
        latent: the dimension of a code.
        shape: of a datum, such as ``(1, 28, 28)``; only for a preset.
        hidden: widths of a preset's hidden layers, from data to code, or the channels of a convolutional one;
            ``None``: those of the preset.
        loss: ``"l2"`` or ``"bce"``.

    Attributes:
        latent: the dimension of a code.

    Raises:
        InputError: an argument has a wrong type or value.

    References:
        P. Baldi, K. Hornik. Neural networks and principal component analysis. Neural Networks, 1989.
        G. E. Hinton, R. R. Salakhutdinov. Reducing the dimensionality of data with neural networks. Science, 2006.

    Example:
        >>> x = torch.rand(40, 1, 8, 8)
        >>> model = AutoEncoder("dense", latent=3, shape=(1, 8, 8), loss="bce").fit(x, epochs=2)
        >>> model.encode(x).shape, model.reconstruct(x).shape
        (torch.Size([40, 3]), torch.Size([40, 1, 8, 8]))
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
        check_option(loss, "loss", ("l2", "bce"))
        latent = check_integer(latent, "latent", minimum=1)
        encoder, decoder = encoder_and_decoder(encoder, decoder, shape=shape, code=latent, latent=latent, hidden=hidden)
        if loss == "bce":
            check_logits("decoder", decoder, "loss='bce' takes logits")
        super().__init__(encoder=encoder, decoder=decoder)
        self.latent, self._is_bce = latent, loss == "bce"

    @torch.no_grad()
    def encode(self, x: Any) -> Tensor:
        """The codes of data.

        Args:
            x: data ``[N, ...]``, or a Dataset or DataLoader.

        Returns:
            Codes, ``[N, latent]``.
        """
        with evaluation_mode(self):
            return torch.cat([self._codes(part) for part in self._batches(x, _BATCH_SIZE)])

    @torch.no_grad()
    def decode(self, z: Any) -> Tensor:
        """Data from codes.

        Args:
            z: codes ``[N, latent]``.

        Returns:
            Data ``[N, ...]``; between 0 and 1 with ``loss="bce"``.
        """
        codes = self._check_codes(z)
        with evaluation_mode(self):
            output = torch.cat([self.decoder(part) for part in codes.split(_BATCH_SIZE)])
        return output.sigmoid() if self._is_bce else output

    @override
    def reconstruct(self, x: Any) -> Tensor:
        return self.decode(self.encode(x))

    @torch.no_grad()
    def error(self, x: Any) -> Tensor:
        """The loss of each datum, which tends to be large for data unlike the training data.

        Args:
            x: data ``[N, ...]``, or a Dataset or DataLoader.

        Returns:
            ℓ, ``[N]``.
        """
        with evaluation_mode(self):
            return torch.cat([self._errors(part) for part in self._batches(x, _BATCH_SIZE)])

    def _training_task(self) -> _ReconstructionTask:
        return _ReconstructionTask(self)

    def _loss(self, x: Tensor, weight: Tensor, n_data: int | None) -> Tensor:
        loss = (weight * self._errors(x)).mean()
        self._last_terms = {"error": loss.detach()}
        return loss

    def _codes(self, x: Tensor) -> Tensor:
        codes = self.encoder(x)
        if not isinstance(codes, Tensor) or codes.shape != (len(x), self.latent):
            found = list(codes.shape) if isinstance(codes, Tensor) else type(codes).__name__
            raise InputError(f"the encoder must output codes of shape [{len(x)}, {self.latent}], got {found}")
        return codes

    def _errors(self, x: Tensor) -> Tensor:
        """ℓ of each datum, ``[B]``."""
        output = self.decoder(self._codes(x))
        self._check_output(output, x)
        each = F.binary_cross_entropy_with_logits if self._is_bce else F.mse_loss
        return each(output.to(x.dtype), x, reduction="none").flatten(1).sum(1)

    def _check_values(self, x: Tensor) -> None:
        check_finite(x)
        if self._is_bce:
            check_unit_interval(x, "loss='bce'", "loss='l2'")

    def _check_shapes(self, x: Tensor) -> None:
        self._check_output(call_network("decoder", self.decoder, call_network("encoder", self._codes, x)), x)

    def _check_output(self, output: object, x: Tensor) -> None:
        if not isinstance(output, Tensor) or output.shape != x.shape:
            found = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise InputError(f"the decoder must output data of shape {list(x.shape)}, got {found}")

    def _get_config(self) -> dict[str, object]:
        return {"latent": self.latent, "loss": "bce" if self._is_bce else "l2"}


class _ReconstructionTask(GenerativeTask[AutoEncoder]):
    """Reports the reconstruction error."""

    monitors = MappingProxyType({"error": -1})

    def progress_text(self, metrics: Mapping[str, float]) -> str:
        shown = f"error {metrics['error']:.4g}"
        return f"{shown}  held-out {metrics['validation_error']:.4g}" if "validation_error" in metrics else shown

    def validation_step(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        return {"validation_error": float(self.model.error(held_out).mean())}
