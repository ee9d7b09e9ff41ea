"""The Wasserstein GAN, with clipped weights (Arjovsky et al. 2017) or a gradient penalty (Gulrajani et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from credo._arguments import check_option, check_positive
from credo.errors import InputError
from credo.generative.adversarial import AdversarialModel, Objective
from credo.generative.networks import adversarial_networks
from credo.training.adversarial import DISCRIMINATOR, AdversarialTask

_DEFAULTS: dict[str, Any] = {"discriminator_steps": 5, "betas": (0.0, 0.9)}
_BATCH_NORMS = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


class WGAN(AdversarialModel):
    r"""A generator that minimizes the Wasserstein distance to the data, estimated by a critic f.

        W(data, G) = max_{‖f‖_L ≤ 1} E_data f(x) − E_z f(G(z))

    The critic is the discriminator; it outputs an unbounded score. It is kept 1-Lipschitz by

    - ``penalty="gradient"``: λ·E(‖∇f(x̂)‖ − 1)² is added to its loss, x̂ = εx + (1 − ε)G(z) with ε ~ U(0, 1) for each
      datum. The gradient must be that of one datum alone, so the critic must not contain batch norm. The paper trains
      with Adam, betas (0, 0.9), which are the default here, and ``lr=1e-4``.
    - ``penalty="clip"``: after each of its steps all weights are clipped to [−c, c], which makes it K-Lipschitz for
      some K. The paper advises against momentum: ``fit(..., optimizer=torch.optim.RMSprop, lr=5e-5)``.

    ``history`` contains ``wasserstein``, the critic's estimate E f(x) − E f(G(z)), which shows convergence.

    ``WGAN("progressive", latent=64, shape=(1, 32, 32))`` has the networks, learning rates and betas of Karras et al.
    (2018) for images between −1 and 1: they grow during ``fit`` from 4×4 pixels to the full size, see
    :class:`~credo.architectures.ProgressiveGenerator`. Distances are those of images of the full size in all phases.
    ``"style"`` is the other preset, see :class:`~credo.generative.GAN`.

    Args:
        generator: a network from noise ``[B, latent]`` to data ``[B, ...]``, or the name of a preset.
        discriminator: the critic, a network from data to one score per datum; ``None`` for a preset.
        latent: the dimension of the noise.
        shape: of an image, (C, H, W); only for a preset.
        width: channels of a preset at the full resolution; ``None``: its default.
        penalty: ``"gradient"`` or ``"clip"``.
        penalty_weight: λ.
        clip: c.
        discriminator_steps: number of critic steps per generator step; ``None``: 5, or 1 for a preset.
        betas: of Adam, for both optimizers; ``None``: (0, 0.9), or (0, 0.99) for a preset.
        **options: those of :class:`~credo.generative.adversarial.AdversarialModel`.

    Raises:
        InputError: an argument has a wrong type or value, or the critic contains batch norm with
            ``penalty="gradient"``.

    References:
        M. Arjovsky, S. Chintala, L. Bottou. Wasserstein generative adversarial networks. ICML 2017. arXiv:1701.07875.
        I. Gulrajani et al. Improved training of Wasserstein GANs. NeurIPS 2017. arXiv:1704.00028.
        T. Karras et al. Progressive growing of GANs for improved quality, stability, and variation. ICLR 2018.
        arXiv:1710.10196.

    Example:
        >>> from credo.architectures import MLP
        >>> model = WGAN(MLP(3, (16,), 2), MLP(2, (16,), 1), latent=3)
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
        penalty: str = "gradient",
        penalty_weight: float = 10.0,
        clip: float = 0.01,
        discriminator_steps: int | None = None,
        betas: Sequence[float] | None = None,
        **options: Any,
    ) -> None:
        check_option(penalty, "penalty", ("gradient", "clip"))
        penalty_weight, clip = check_positive(penalty_weight, "penalty_weight"), check_positive(clip, "clip")
        networks = adversarial_networks(generator, discriminator, latent=latent, shape=shape, width=width)
        critic = networks.discriminator
        is_network = isinstance(critic, nn.Module)
        if penalty == "gradient" and is_network and any(isinstance(m, _BATCH_NORMS) for m in critic.modules()):
            raise InputError(
                "the discriminator must not contain batch norm for penalty='gradient', which needs the gradient of one "
                "datum alone: leave it out, as DCGANDiscriminator(shape, batch_norm=False) does, use nn.LayerNorm, or "
                "choose penalty='clip'"
            )
        if penalty == "clip" and options.get("spectral_normalization"):
            raise InputError("penalty='clip' and spectral_normalization=True both bound the weights: choose one")
        given = {"discriminator_steps": discriminator_steps, "betas": betas}
        options |= {name: value for name, value in given.items() if value is not None}
        super().__init__(networks.generator, critic, latent=latent, **{**_DEFAULTS, **networks.options, **options})
        self._penalty, self._penalty_weight, self._clip = penalty, penalty_weight, clip

    def _discriminator_objective(self, real: Tensor, fake: Tensor, z: Tensor) -> Objective:
        """E f(G(z)) − E f(x), plus the penalty on the gradient."""
        distance = self._discriminate(real).mean() - self._discriminate(fake).mean()
        if self._penalty == "clip":
            return Objective(-distance, {"wasserstein": distance})
        penalty = self._gradient_penalty(real, fake)
        return Objective(
            self._penalty_weight * penalty - distance, {"wasserstein": distance, "gradient_penalty": penalty}
        )

    def _generator_objective(self, fake: Tensor, z: Tensor) -> Objective:
        """−E f(G(z))."""
        return Objective(-self._discriminate(fake).mean())

    def _gradient_penalty(self, real: Tensor, fake: Tensor) -> Tensor:
        """E(‖∇f(x̂)‖ − 1)² at random points between data and samples, ``[B, ...]`` each; differentiable."""
        share = torch.rand(len(real), *[1] * (real.ndim - 1), dtype=real.dtype, device=real.device)
        gradients = self._score_gradients(torch.lerp(fake, real, share))
        norms: Tensor = torch.linalg.vector_norm(gradients, dim=1)
        return (norms - 1.0).square().mean()

    def _training_task(self) -> _WassersteinTask:
        return _WassersteinTask(self)

    def _get_config(self) -> dict[str, object]:
        return {
            "latent": self.latent,
            "penalty": self._penalty,
            "penalty_weight": self._penalty_weight,
            "clip": self._clip,
            **super()._get_config(),
        }


class _WassersteinTask(AdversarialTask[WGAN]):
    """Clips the critic's weights after its steps, and reports the distance."""

    @torch.no_grad()
    def on_step_end(self, optimizer: str) -> None:
        """Count the critic's steps, and clip its weights for ``penalty="clip"``."""
        super().on_step_end(optimizer)
        if optimizer == DISCRIMINATOR and self.model._penalty == "clip":
            for parameter in self.model.discriminator.parameters():
                if parameter.requires_grad:
                    parameter.clamp_(-self.model._clip, self.model._clip)

    def progress_text(self, metrics: Mapping[str, float]) -> str:
        return f"Wasserstein distance {metrics['wasserstein']:.4g}  diversity {metrics['diversity']:.2f}"
