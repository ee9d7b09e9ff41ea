"""The generative adversarial network (Goodfellow et al. 2014)."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from credo.errors import unknown_name
from credo.generative.adversarial import AdversarialModel

_LOSSES = ("non_saturating", "minimax")


class GAN(AdversarialModel):
    r"""Two networks in a game whose value, with the best discriminator, is a Jensen–Shannon divergence.

        min_G max_D V(D, G) = E_data log D(x) + E_z log(1 − D(G(z))),    max_D V = −log 4 + 2 JSD(data ‖ G)

    D puts out a logit; D(x) is its sigmoid. ``loss="minimax"`` lets the generator minimise log(1 − D(G(z))), whose
    gradient vanishes while the discriminator is sure; ``"non_saturating"``, the default, lets it minimise
    −log D(G(z)), which has the same fixed point.

    Args:
        generator: ``[B, latent]`` to data ``[B, ...]``.
        discriminator: data to one logit a datum.
        latent: the dimension of the noise.
        loss: ``"non_saturating"`` or ``"minimax"``.
        options: those of :class:`~credo.generative.adversarial.AdversarialModel`.

    References:
        I. Goodfellow et al. Generative adversarial nets. NeurIPS 2014. arXiv:1406.2661.
    """

    def __init__(
        self,
        generator: nn.Module,
        discriminator: nn.Module,
        *,
        latent: int,
        loss: str = "non_saturating",
        **options: Any,
    ) -> None:
        if loss not in _LOSSES:
            raise unknown_name("loss", loss, _LOSSES)
        super().__init__(generator, discriminator, latent=latent, **options)
        self.loss = loss

    def discriminator_loss(self, real: Tensor, fake: Tensor) -> Tensor:
        """−V: −E log D(x) − E log(1 − D(G(z)))."""
        return F.softplus(-self.judge(real)).mean() + F.softplus(self.judge(fake)).mean()

    def generator_loss(self, count: int) -> Tensor:
        """−E log D(G(z)), or E log(1 − D(G(z)))."""
        logits = self.judge(self.generator(self.noise(count)))
        return F.softplus(-logits).mean() if self.loss == "non_saturating" else -F.softplus(logits).mean()

    def own_config(self) -> dict[str, object]:
        """The arguments that are not networks."""
        return {**super().own_config(), "loss": self.loss}
