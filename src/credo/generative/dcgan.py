"""The deep convolutional GAN (Radford et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from credo._arguments import check_integer
from credo.architectures import DCGANDiscriminator, DCGANGenerator
from credo.generative.adversarial import AdversarialModel, Objective, networks_for
from credo.generative.gan import check_objective, generator_loss, minus_value

_LEARNING_RATE = 2e-4


class DCGAN(AdversarialModel):
    """A GAN of images between −1 and 1, with the networks and the hyperparameters of the paper.

    Args:
        shape: of an image, (C, H, W), with H and W multiples of 4.
        latent: the dimension of the noise.
        width: channels of the layers next to the image; the paper has 128 for images of 64×64.
        generator_lr: the generator's learning rate; ``None``: that of ``fit``.
        discriminator_lr: the discriminator's.
        generator: in place of the paper's, together with ``discriminator`` and without ``shape``.
        discriminator: in place of the paper's.
        objective: the generator's, ``"non_saturating"`` or ``"minimax"``; see :class:`GAN`.
        **options: those of :class:`~credo.generative.adversarial.AdversarialModel`.

    References:
        A. Radford, L. Metz, S. Chintala. Unsupervised representation learning with deep convolutional generative
        adversarial networks. ICLR 2016. arXiv:1511.06434.
    """

    def __init__(
        self,
        shape: Sequence[int] | None = None,
        *,
        latent: int = 100,
        width: int = 64,
        generator_lr: float | None = _LEARNING_RATE,
        discriminator_lr: float | None = _LEARNING_RATE,
        generator: nn.Module | None = None,
        discriminator: nn.Module | None = None,
        objective: str = "non_saturating",
        **options: Any,
    ) -> None:
        channels = check_integer(width, "width", minimum=1)
        generator, discriminator = networks_for(
            shape,
            generator,
            discriminator,
            lambda shape: (DCGANGenerator(latent, shape, channels), DCGANDiscriminator(shape, channels)),
        )
        super().__init__(
            generator,
            discriminator,
            latent=latent,
            generator_lr=generator_lr,
            discriminator_lr=discriminator_lr,
            **options,
        )
        self.objective = check_objective(objective)

    def _discriminator_objective(self, real: Tensor, fake: Tensor, z: Tensor) -> Objective:
        """−V, as for a GAN."""
        return Objective(minus_value(self._judge(real), self._judge(fake)))

    def _generator_objective(self, fake: Tensor, z: Tensor) -> Objective:
        """The loss of a GAN's generator."""
        return Objective(generator_loss(self._judge(fake), self.objective))

    def _get_config(self) -> dict[str, object]:
        return {"latent": self.latent, "objective": self.objective, **super()._get_config()}
