"""The generative adversarial network (Goodfellow et al. 2014)."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from credo._arguments import check_option
from credo.generative.adversarial import AdversarialModel, Objective

OBJECTIVES = ("non_saturating", "minimax")


class GAN(AdversarialModel):
    r"""Two networks in a game whose value, with the best discriminator, is a Jensen–Shannon divergence.

        min_G max_D V(D, G) = E_data log D(x) + E_z log(1 − D(G(z))),    max_D V = −log 4 + 2 JSD(data ‖ G)

    D outputs a logit; D(x) is its sigmoid. With ``objective="minimax"`` the generator minimizes log(1 − D(G(z))),
    whose gradient vanishes while the discriminator is sure; with ``"non_saturating"``, the default, it minimizes
    −log D(G(z)), which has the same fixed point.

    Args:
        generator: ``[B, latent]`` to data ``[B, ...]``.
        discriminator: data to one logit a datum.
        latent: the dimension of the noise.
        objective: the generator's, ``"non_saturating"`` or ``"minimax"``.
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
        objective: str = "non_saturating",
        **options: Any,
    ) -> None:
        check_objective(objective)
        super().__init__(generator, discriminator, latent=latent, **options)
        self.objective = objective

    def _discriminator_objective(self, real: Tensor, fake: Tensor, z: Tensor) -> Objective:
        """−V."""
        return Objective(minus_value(self._judge(real), self._judge(fake)))

    def _generator_objective(self, fake: Tensor, z: Tensor) -> Objective:
        """−E log D(G(z)), or E log(1 − D(G(z)))."""
        return Objective(generator_loss(self._judge(fake), self.objective))

    def _get_config(self) -> dict[str, object]:
        """The arguments that are not networks."""
        return {"latent": self.latent, "objective": self.objective, **super()._get_config()}


def minus_value(real: Tensor, fake: Tensor) -> Tensor:
    """−V = −E log D(x) − E log(1 − D(G(z))) from the logits of data and of samples, ``[B]`` each."""
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def generator_loss(fake: Tensor, objective: str) -> Tensor:
    """−E log D(G(z)), or E log(1 − D(G(z))) for ``"minimax"``, from the logits of samples, ``[B]``."""
    return F.softplus(-fake).mean() if objective == "non_saturating" else -F.softplus(fake).mean()


def check_objective(objective: str) -> str:
    """Return ``objective`` if it is the name of one."""
    return check_option(objective, "objective", OBJECTIVES)
