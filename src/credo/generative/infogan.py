"""InfoGAN: codes that the images tell (Chen et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from credo._arguments import check_integer, check_positive
from credo.architectures import InfoGANDiscriminator, InfoGANGenerator
from credo.errors import InputError
from credo.generative.adversarial import AdversarialModel, Objective, full_precision, networks_for
from credo.generative.gan import check_objective, generator_loss, minus_value
from credo.seeding import seeded
from credo.training.generative import evaluation_mode

_ROWS_AT_ONCE = 1024


class Codes(NamedTuple):
    """Values of the codes; ``None`` where they are to be drawn from their prior.

    Attributes:
        categorical: integers, ``[n, number of categorical codes]``; ``[n]`` or one number where there is one code.
        continuous: numbers, mostly from −1 to 1, ``[n, continuous]``, or ``[continuous]`` for the same in every row.
    """

    categorical: Any = None
    continuous: Any = None


@dataclass(frozen=True, eq=False)
class CodePosterior:
    """Q(c | x), what the recognition network believes of the codes of N data.

    Attributes:
        categorical: one torch distribution over ``[N]`` for each categorical code.
        continuous: a torch distribution over ``[N, continuous]``.
    """

    categorical: tuple[Categorical, ...]
    continuous: Normal

    @property
    def best(self) -> Codes:
        """The likeliest categories ``[N, number of categorical codes]`` and the means ``[N, continuous]``."""
        likeliest = [q.logits.argmax(-1) for q in self.categorical]
        mean = self.continuous.mean
        return Codes(torch.stack(likeliest, -1) if likeliest else mean.new_empty(len(mean), 0).long(), mean)


class InfoGAN(AdversarialModel):
    r"""A GAN whose generator takes codes c beside the noise, and is paid for what its images tell about them.

        min_{G,Q} max_D V(D, G) − λ L_I(G, Q),    L_I = E_{c, x = G(z, c)} log Q(c | x) + H(c) ≤ I(c; G(z, c))

    Categorical codes are uniform over their classes, continuous ones and the noise over [−1, 1]. Q(c | x) is a product
    of categorical and Gaussian distributions, read off by the network that also discriminates; the two players maximize
    L_I both. ``history`` holds ``categorical_information``, at most H(c) = Σ log K, and ``continuous_information``, in
    nats. As in the authors' program the Gaussians have a standard deviation of 1. Where Q learns it
    (``code_std=None``), the bound is tight but has no upper limit, as differential entropies have no lower one: the
    paper advises a smaller λ then.

    Args:
        generator: ``[B, latent]`` to data, latent = noise + Σ categorical + continuous: noise, one-hot categories,
            continuous codes. Left out where ``shape`` is given.
        discriminator: data to ``[B, 1 + Σ categorical + continuous]``: D's logit, then logits of the categories and
            means of the continuous codes; with ``code_std=None`` their log variances last. Left out where ``shape`` is
            given.
        shape: of an image, (C, H, W), for the networks of the paper, whose images lie between 0 and 1.
        noise: the dimension of the incompressible noise.
        categorical: the number of classes of each categorical code.
        continuous: the number of continuous codes.
        weight: λ of the categorical codes.
        continuous_weight: λ of the continuous codes.
        code_std: the standard deviation of Q about the means of the continuous codes; ``None``: learned.
        objective: the generator's, ``"non_saturating"`` or ``"minimax"``.
        generator_lr: the generator's learning rate, by default that of the paper; ``None``: that of ``fit``.
        discriminator_lr: the discriminator's.
        options: those of :class:`~credo.generative.adversarial.AdversarialModel`.

    References:
        X. Chen et al. InfoGAN: interpretable representation learning by information maximizing generative adversarial
        nets. NeurIPS 2016. arXiv:1606.03657.
    """

    def __init__(
        self,
        generator: nn.Module | None = None,
        discriminator: nn.Module | None = None,
        *,
        shape: Sequence[int] | None = None,
        noise: int = 62,
        categorical: Sequence[int] = (10,),
        continuous: int = 2,
        weight: float = 1.0,
        continuous_weight: float = 1.0,
        code_std: float | None = 1.0,
        objective: str = "non_saturating",
        generator_lr: float | None = 1e-3,
        discriminator_lr: float | None = 2e-4,
        **options: Any,
    ) -> None:
        check_objective(objective)
        classes = _checked_classes(categorical)
        sizes = [check_integer(noise, "noise", minimum=0), *classes, check_integer(continuous, "continuous", minimum=0)]
        if not sum(sizes[1:]):
            raise InputError("categorical and continuous must name at least one code between them, or use a GAN")
        weight = check_positive(weight, "weight")
        continuous_weight = check_positive(continuous_weight, "continuous_weight")
        code_std = None if code_std is None else check_positive(code_std, "code_std")
        widths = [1, *classes, sizes[-1]] if code_std is not None else [1, *classes, sizes[-1], sizes[-1]]
        generator, discriminator = networks_for(
            shape,
            generator,
            discriminator,
            lambda shape: (InfoGANGenerator(sum(sizes), shape), InfoGANDiscriminator(sum(widths) - 1, shape)),
        )
        super().__init__(
            generator,
            discriminator,
            latent=sum(sizes),
            generator_lr=generator_lr,
            discriminator_lr=discriminator_lr,
            **options,
        )
        self.categorical, self.continuous, self.sizes = classes, sizes[-1], sizes
        self.weight, self.continuous_weight, self.code_std = weight, continuous_weight, code_std
        self.objective, self._widths, self._outputs = objective, widths, sum(widths)

    def _discriminator_objective(self, real: Tensor, fake: Tensor, z: Tensor) -> Objective:
        """−V − λ L_I; Q learns from the samples, whose codes are known."""
        output = self.discriminator(fake)
        information = self._information(output, z)
        loss = minus_value(self._judge(real), self._scores(output)) - self._weighted(information)
        return Objective(loss, information)

    def _generator_objective(self, fake: Tensor, z: Tensor) -> Objective:
        """The generator's loss in a GAN − λ L_I."""
        output = self.discriminator(fake)
        information = self._weighted(self._information(output, z))
        return Objective(generator_loss(self._scores(output), self.objective) - information)

    def _information(self, output: Tensor, z: Tensor) -> dict[str, Tensor]:
        """L_I of the categorical and of the continuous codes in nats, from the discriminator's output for G(z).

        Args:
            output: ``[B, outputs]``.
            z: noise and codes, ``[B, latent]``.
        """
        q = self._posterior(output)
        _, *one_hots, continuous = z.split(self.sizes, dim=1)
        found = {}
        if one_hots:
            log_q = [(q_code.logits * one_hot).sum(1) for q_code, one_hot in zip(q.categorical, one_hots, strict=True)]
            entropy = sum(math.log(k) for k in self.categorical)
            found["categorical_information"] = torch.stack(log_q).sum(0).mean() + entropy
        if self.continuous:
            log_q_continuous = q.continuous.log_prob(continuous).sum(1).mean()
            found["continuous_information"] = log_q_continuous + self.continuous * math.log(2.0)
        return found

    def noise(self, n: int) -> Tensor:
        """What the generator takes, ``[n, latent]``: noise from U(−1, 1), one-hot categories, codes from U(−1, 1).

        Noise of no more than the codes' size leaves it to them to tell the most.
        """
        options: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        one_hots = [F.one_hot(torch.randint(k, (n,), device=self.device), k).to(self.dtype) for k in self.categorical]
        noise, codes = (2.0 * torch.rand(n, size, **options) - 1.0 for size in (self.sizes[0], self.continuous))
        return torch.cat([noise, *one_hots, codes], dim=1)

    def sample(self, n: int = 1, seed: int | None = None, codes: Codes | None = None) -> Tensor:
        """``n`` data from the generator, ``[n, ...]``, with the codes that are given, the rest at random.

        ``model.sample(10, codes=Codes(categorical=torch.arange(10)))`` has one datum of each category.
        """
        with seeded(seed, self.device):
            z = self.noise(check_integer(n, "n", minimum=1))
        return self.decode(z if codes is None else self.with_codes(z, codes))

    def with_codes(self, z: Tensor, codes: Codes) -> Tensor:
        """Noise and codes ``z [n, latent]`` with the given codes in place of its own; the noise is kept."""
        if not isinstance(codes, Codes):
            raise InputError(f"codes must be Codes(categorical=..., continuous=...), got {type(codes).__name__}")
        noise, *one_hots, continuous = z.split(self.sizes, dim=1)
        if codes.categorical is not None:
            index = _rows(codes.categorical, "categorical", len(z), len(self.categorical)).to(z.device)
            limits = torch.tensor(self.categorical, device=z.device)
            if index.is_floating_point() or bool(((index < 0) | (index >= limits)).any()):
                raise InputError(
                    f"categorical codes must be integers from 0 to below {self.categorical}, got numbers from "
                    f"{float(index.min()):g} to {float(index.max()):g}"
                )
            one_hots = [F.one_hot(i.long(), k).to(z) for i, k in zip(index.unbind(1), self.categorical, strict=True)]
        if codes.continuous is not None:
            continuous = _rows(codes.continuous, "continuous", len(z), self.continuous).to(z)
        return torch.cat([noise, *one_hots, continuous], dim=1)

    @torch.no_grad()
    def infer_codes(self, x: Any) -> CodePosterior:
        """Q(c | x) for data ``[N, ...]``: which code each would have, had the generator made it."""
        with evaluation_mode(self):
            outputs = [self.discriminator(part) for part in self._batches(x, _ROWS_AT_ONCE)]
        return self._posterior(torch.cat(outputs))

    def _posterior(self, output: Tensor) -> CodePosterior:
        _, *parts = full_precision(output).split(self._widths, dim=1)
        logits, (mean, *spread) = parts[: len(self.categorical)], parts[len(self.categorical) :]
        std = (0.5 * spread[0]).exp() if self.code_std is None else torch.full_like(mean, self.code_std)
        return CodePosterior(
            tuple(Categorical(logits=part, validate_args=False) for part in logits),
            Normal(mean, std, validate_args=False),
        )

    def _weighted(self, information: dict[str, Tensor]) -> Tensor:
        weights = {"categorical_information": self.weight, "continuous_information": self.continuous_weight}
        return torch.stack([weights[name] * value for name, value in information.items()]).sum()

    def _get_config(self) -> dict[str, object]:
        """The arguments that are not networks."""
        return {
            "noise": self.sizes[0],
            "categorical": list(self.categorical),
            "continuous": self.continuous,
            "weight": self.weight,
            "continuous_weight": self.continuous_weight,
            "code_std": self.code_std,
            "objective": self.objective,
            **super()._get_config(),
        }


def _checked_classes(categorical: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(categorical, list | tuple):
        raise InputError(f"categorical must list the classes of each code, such as (10,), got {categorical!r}")
    return tuple(check_integer(k, f"categorical[{i}]", minimum=2) for i, k in enumerate(categorical))


def _rows(values: Any, name: str, n: int, width: int) -> Tensor:
    """``values`` as ``[n, width]``: the same row n times, or one number a row where ``width`` is 1."""
    try:
        given = torch.as_tensor(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} codes must be numbers of shape [{n}, {width}], got {values!r}") from error
    rows = given[:, None] if given.ndim == 1 and width == 1 else given
    try:
        return rows.expand(n, width)
    except RuntimeError as error:
        raise InputError(f"{name} codes must have shape [{n}, {width}], got {list(given.shape)}") from error
