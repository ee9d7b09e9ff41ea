"""The generative adversarial network (Goodfellow et al. 2014) and its deep convolutional form (Radford et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from credo._arguments import check_integer, check_non_negative, check_option
from credo.architectures import DCGANDiscriminator, DCGANGenerator
from credo.generative.adversarial import AdversarialModel, Objective, generator_and_discriminator
from credo.generative.networks import adversarial_networks

_DCGAN_LR = 2e-4
_R1_PER_PIXEL = 1.0 / 128.0


class GAN(AdversarialModel):
    r"""A two-player game whose value, at the best discriminator, is a Jensen–Shannon divergence.

        min_G max_D V(D, G) = E_data log D(x) + E_z log(1 − D(G(z))),    max_D V = −log 4 + 2 JSD(data ‖ G)

    The discriminator outputs a logit; D(x) is its sigmoid. With ``objective="minimax"`` the generator minimizes
    log(1 − D(G(z))), whose gradient vanishes while the discriminator is certain; with ``"non_saturating"``, the
    default, it minimizes −log D(G(z)), which has the same fixed point. The R1 penalty ½γ·E_data‖∇ logit D(x)‖² on the
    discriminator makes training converge near that point (Mescheder et al. 2018).

    Two presets for images between −1 and 1 have the networks, learning rates and betas of their papers:

    - ``GAN("style", latent=64, shape=(1, 32, 32))``: a style-based generator,
      :class:`~credo.architectures.StyleGenerator`; ``sample(n, truncation=0.7)`` truncates styles;
    - ``"progressive"``: networks that grow during ``fit``, :class:`~credo.architectures.ProgressiveGenerator`; the
      paper trains them as a :class:`WGAN`.

    Args:
        generator: a network from noise ``[B, latent]`` to data ``[B, ...]``, or the name of a preset.
        discriminator: a network from data to one logit per datum; ``None`` for a preset.
        latent: the dimension of the noise.
        shape: of an image, (C, H, W); only for a preset.
        width: channels of a preset at the full resolution; ``None``: its default.
        objective: of the generator, ``"non_saturating"`` or ``"minimax"``.
        r1: γ; ``None``: 0, or for a preset H·W/128, since squared distances grow with the number of pixels: 8 for
            32×32, near the 10 of the papers. With a penalty the discriminator should have no batch norm.
        **options: those of :class:`~credo.generative.adversarial.AdversarialModel`.

    Raises:
        InputError: an argument has a wrong type or value.

    References:
        I. Goodfellow et al. Generative adversarial nets. NeurIPS 2014. arXiv:1406.2661.
        L. Mescheder, A. Geiger, S. Nowozin. Which training methods for GANs do actually converge? ICML 2018.
        arXiv:1801.04406.
        T. Karras et al. Analyzing and improving the image quality of StyleGAN. CVPR 2020. arXiv:1912.04958.

    Example:
        >>> from credo.architectures import MLP
        >>> model = GAN(MLP(3, (16,), 2), MLP(2, (16,), 1), latent=3, generator_lr=1e-3)
        >>> model.fit(torch.randn(64, 2), epochs=2, seed=0).sample(5).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        generator: nn.Module | str,
        discriminator: nn.Module | None = None,
        *,
        latent: int,
        shape: Sequence[int] | None = None,
        width: int | None = None,
        objective: str = "non_saturating",
        r1: float | None = None,
        **options: Any,
    ) -> None:
        check_objective(objective)
        networks = adversarial_networks(generator, discriminator, latent=latent, shape=shape, width=width)
        super().__init__(networks.generator, networks.discriminator, latent=latent, **{**networks.options, **options})
        self._objective = objective
        default_r1 = 0.0 if shape is None else math.prod(shape[1:]) * _R1_PER_PIXEL
        self._r1 = default_r1 if r1 is None else check_non_negative(r1, "r1")

    def _discriminator_objective(self, real: Tensor, fake: Tensor, z: Tensor) -> Objective:
        """−V, plus the R1 penalty."""
        loss = discriminator_loss(self._discriminate(real), self._discriminate(fake))
        if not self._r1:
            return Objective(loss)
        penalty = self._score_gradients(real).square().sum(1).mean()
        return Objective(loss + 0.5 * self._r1 * penalty, {"gradient_penalty": penalty})

    def _generator_objective(self, fake: Tensor, z: Tensor) -> Objective:
        return Objective(generator_loss(self._discriminate(fake), self._objective))

    def _get_config(self) -> dict[str, object]:
        return {"latent": self.latent, "objective": self._objective, "r1": self._r1, **super()._get_config()}


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
