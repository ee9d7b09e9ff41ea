"""The generative adversarial network (Goodfellow et al. 2014) and its deep convolutional form (Radford et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from credo._arguments import check_integer, check_option
from credo.architectures import DCGANDiscriminator, DCGANGenerator
from credo.generative.adversarial import AdversarialModel, Objective, generator_and_discriminator

_DCGAN_LR = 2e-4


class GAN(AdversarialModel):
    r"""A two-player game whose value, at the best discriminator, is a Jensen–Shannon divergence.

        min_G max_D V(D, G) = E_data log D(x) + E_z log(1 − D(G(z))),    max_D V = −log 4 + 2 JSD(data ‖ G)

    The discriminator outputs a logit; D(x) is its sigmoid. With ``objective="minimax"`` the generator minimizes
    log(1 − D(G(z))), whose gradient vanishes while the discriminator is certain; with ``"non_saturating"``, the
    default, it minimizes −log D(G(z)), which has the same fixed point.

    Args:
        generator: a network from noise ``[B, latent]`` to data ``[B, ...]``.
        discriminator: a network from data to one logit per datum.
        latent: the dimension of the noise.
        objective: of the generator, ``"non_saturating"`` or ``"minimax"``.
        **options: those of :class:`~credo.generative.adversarial.AdversarialModel`.

    Raises:
        InputError: an argument has a wrong type or value.

    References:
        I. Goodfellow et al. Generative adversarial nets. NeurIPS 2014. arXiv:1406.2661.

    Example:
        >>> from credo.architectures import MLP
        >>> model = GAN(MLP(3, (16,), 2), MLP(2, (16,), 1), latent=3, generator_lr=1e-3)
        >>> model.fit(torch.randn(64, 2), epochs=2, seed=0).sample(5).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        generator: nn.Module,
        discriminator: nn.Module,
        *,
        latent: int,
        objective: str = "non_saturating",
        **options: Any,
    ) -> None:
        check_objective(objective)
        super().__init__(generator, discriminator, latent=latent, **options)
        self._objective = objective

    def _discriminator_objective(self, real: Tensor, fake: Tensor, z: Tensor) -> Objective:
        return Objective(discriminator_loss(self._discriminate(real), self._discriminate(fake)))

    def _generator_objective(self, fake: Tensor, z: Tensor) -> Objective:
        return Objective(generator_loss(self._discriminate(fake), self._objective))

    def _get_config(self) -> dict[str, object]:
        return {"latent": self.latent, "objective": self._objective, **super()._get_config()}


class DCGAN(AdversarialModel):
    """A GAN of images between −1 and 1, with the networks and the hyperparameters of the paper.

    Args:
        shape: of an image, (C, H, W), with H and W multiples of 4.
        latent: the dimension of the noise.
        width: number of channels of the layers next to the image; the paper has 128 for images of 64×64.
        generator_lr: learning rate of the generator; ``None``: that of ``fit``.
        discriminator_lr: learning rate of the discriminator; ``None``: that of ``fit``.
        generator: replaces that of the paper, together with ``discriminator`` and without ``shape``.
        discriminator: replaces that of the paper.
        objective: of the generator, ``"non_saturating"`` or ``"minimax"``; see :class:`GAN`.
        **options: those of :class:`~credo.generative.adversarial.AdversarialModel`.

    Raises:
        InputError: an argument has a wrong type or value.

    References:
        A. Radford, L. Metz, S. Chintala. Unsupervised representation learning with deep convolutional generative
        adversarial networks. ICLR 2016. arXiv:1511.06434.

    Example:
        >>> model = DCGAN((1, 8, 8), latent=4, width=4)
        >>> model.fit(2 * torch.rand(32, 1, 8, 8) - 1, epochs=1, seed=0).sample(5).shape
        torch.Size([5, 1, 8, 8])
    """

    def __init__(
        self,
        shape: Sequence[int] | None = None,
        *,
        latent: int = 100,
        width: int = 64,
        generator_lr: float | None = _DCGAN_LR,
        discriminator_lr: float | None = _DCGAN_LR,
        generator: nn.Module | None = None,
        discriminator: nn.Module | None = None,
        objective: str = "non_saturating",
        **options: Any,
    ) -> None:
        channels = check_integer(width, "width", minimum=1)
        generator, discriminator = generator_and_discriminator(
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
        self._objective = check_objective(objective)

    def _discriminator_objective(self, real: Tensor, fake: Tensor, z: Tensor) -> Objective:
        return Objective(discriminator_loss(self._discriminate(real), self._discriminate(fake)))

    def _generator_objective(self, fake: Tensor, z: Tensor) -> Objective:
        return Objective(generator_loss(self._discriminate(fake), self._objective))

    def _get_config(self) -> dict[str, object]:
        return {"latent": self.latent, "objective": self._objective, **super()._get_config()}


def discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """−V = −E log D(x) − E log(1 − D(G(z))) from the logits of data and of samples, ``[B]`` each."""
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def generator_loss(fake: Tensor, objective: str) -> Tensor:
    """−E log D(G(z)), or E log(1 − D(G(z))) for ``"minimax"``, from the logits of samples, ``[B]``."""
    return F.softplus(-fake).mean() if objective == "non_saturating" else -F.softplus(fake).mean()


def check_objective(objective: str) -> str:
    """Return ``objective`` if it is one of the generator's objectives."""
    return check_option(objective, "objective", ("non_saturating", "minimax"))
