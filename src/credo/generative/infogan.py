"""InfoGAN: a GAN with codes that can be inferred from its samples (Chen et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from typing_extensions import override

from credo._arguments import check_integer, check_positive
from credo.architectures import InfoGANDiscriminator, InfoGANGenerator
from credo.errors import InputError
from credo.generative.adversarial import (
    BATCH_SIZE,
    AdversarialModel,
    Objective,
    full_precision,
    generator_and_discriminator,
)
from credo.generative.gan import check_objective, discriminator_loss, generator_loss
from credo.seeding import seeded
from credo.training.generative import evaluation_mode


class Codes(NamedTuple):
    """Values of the codes of an :class:`InfoGAN`; ``None``: drawn from their prior.

    Attributes:
        categorical: integers, ``[n, number of categorical codes]``; ``[n]`` or one integer if there is one code.
        continuous: numbers, mostly from −1 to 1, ``[n, continuous]``, or ``[continuous]`` for the same in each row.

    Example:
        >>> Codes(categorical=torch.arange(10)).continuous is None
        True
    """

    categorical: Any = None
    continuous: Any = None


@dataclass(frozen=True, eq=False)
class CodePosterior:
    """Q(c | x), the distribution of the codes of N data that the discriminator outputs.

    Attributes:
        categorical: one torch distribution over ``[N]`` for each categorical code.
        continuous: a torch distribution over ``[N, continuous]``.

    Example:
        >>> posterior = InfoGAN(shape=(1, 8, 8)).infer_codes(torch.rand(3, 1, 8, 8))
        >>> posterior.best.categorical.shape, posterior.continuous.mean.shape
        (torch.Size([3, 1]), torch.Size([3, 2]))
    """

    categorical: tuple[Categorical, ...]
    continuous: Normal

    @property
    def best(self) -> Codes:
        """The most probable categories ``[N, number of categorical codes]`` and the means ``[N, continuous]``."""
        categories = [q.logits.argmax(-1) for q in self.categorical]
        mean = self.continuous.mean
        return Codes(torch.stack(categories, -1) if categories else mean.new_empty(len(mean), 0).long(), mean)


class InfoGAN(AdversarialModel):
    r"""A GAN whose generator takes codes c in addition to noise, and maximizes the information of samples about them.

        min_{G,Q} max_D V(D, G) − λ L_I(G, Q),    L_I = E_{c, x = G(z, c)} log Q(c | x) + H(c) ≤ I(c; G(z, c))

    Categorical codes are uniform over their classes, continuous codes and the noise over [−1, 1]. Q(c | x) is a product
    of categorical and Gaussian distributions; its parameters are further outputs of the discriminator. Both networks
    maximize L_I. ``history`` contains ``categorical_information``, at most H(c) = Σ log K, and
    ``continuous_information``, in nats. As in the authors' program the Gaussians have a standard deviation of 1. If Q
    learns it (``code_std=None``), the bound is tight but has no upper limit, since differential entropies have no lower
    limit; the paper then advises a smaller λ.

    Nothing in the objective says which differences the classes should stand for. ``transform`` says which they should
    not: a random change T of the data, such as a small rotation, that keeps what the classes are to mean. Q then also
    minimizes

        λ_T E_{x ~ data, T} KL(Q(c | x) ‖ Q(c | T x))    of the categorical codes,

    the first argument without gradient, as in virtual adversarial training (Hu et al. 2017; for InfoGAN Ojha et al.
    2020 with a contrastive loss). ``history`` contains its mean as ``category_change``, in nats.

    Args:
        generator: a network from ``[B, latent]`` to data, latent = noise + Σ categorical + continuous: noise, one-hot
            categories, continuous codes; ``None``: that of the paper for ``shape``.
        discriminator: a network from data to ``[B, 1 + Σ categorical + continuous]``: the logit of D, then logits of
            the categories and means of the continuous codes; with ``code_std=None`` their log variances last.
            ``None``: that of the paper for ``shape``.
        shape: of an image, (C, H, W), for the networks of the paper, whose images are between 0 and 1.
        noise: the dimension of the incompressible noise.
        categorical: the number of classes of each categorical code.
        continuous: the number of continuous codes.
        weight: λ of the categorical codes.
        continuous_weight: λ of the continuous codes.
        code_std: the standard deviation of Q around the means of the continuous codes; ``None``: learned.
        transform: T, changes data at random, ``[B, ...]`` to the same shape; ``None``: without this term. It is not
            saved with the model.
        transform_weight: λ_T.
        objective: of the generator, ``"non_saturating"`` or ``"minimax"``; see :class:`GAN`.
        generator_lr: learning rate of the generator; ``None``: that of ``fit``.
        discriminator_lr: learning rate of the discriminator; ``None``: that of ``fit``.
        **options: those of :class:`~credo.generative.adversarial.AdversarialModel`.

    Attributes:
        categorical: the number of classes of each categorical code.
        continuous: the number of continuous codes.

    Raises:
        InputError: an argument has a wrong type or value.

    References:
        X. Chen et al. InfoGAN: interpretable representation learning by information maximizing generative adversarial
        nets. NeurIPS 2016. arXiv:1606.03657.

        W. Hu et al. Learning discrete representations via information maximizing self-augmented training. ICML 2017.
        arXiv:1702.08720.

        U. Ojha, K. K. Singh, C.-J. Hsieh, Y. J. Lee. Elastic-InfoGAN: unsupervised disentangled representation learning
        in class-imbalanced data. NeurIPS 2020. arXiv:1910.01112.

    Example:
        >>> model = InfoGAN(shape=(1, 8, 8)).fit(torch.rand(32, 1, 8, 8), epochs=1, seed=0)
        >>> model.sample(10, codes=Codes(categorical=torch.arange(10))).shape
        torch.Size([10, 1, 8, 8])
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
        transform: Callable[[Tensor], Tensor] | None = None,
        transform_weight: float = 1.0,
        objective: str = "non_saturating",
        generator_lr: float | None = 1e-3,
        discriminator_lr: float | None = 2e-4,
        **options: Any,
    ) -> None:
        check_objective(objective)
        classes = _check_classes(categorical)
        sizes = [check_integer(noise, "noise", minimum=0), *classes, check_integer(continuous, "continuous", minimum=0)]
        if not sum(sizes[1:]):
            raise InputError("there must be at least one categorical or continuous code; without codes use a GAN")
        if transform is not None and not callable(transform):
            raise InputError(f"transform must be a function of data, or None, got {type(transform).__name__}")
        if transform is not None and not classes:
            raise InputError("transform keeps the classes of categorical codes, but there are none")
        weight = check_positive(weight, "weight")
        continuous_weight = check_positive(continuous_weight, "continuous_weight")
        code_std = None if code_std is None else check_positive(code_std, "code_std")
        widths = [1, *classes, sizes[-1]] if code_std is not None else [1, *classes, sizes[-1], sizes[-1]]
        generator, discriminator = generator_and_discriminator(
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
        self.categorical, self.continuous, self._sizes = classes, sizes[-1], sizes
        self._weight, self._continuous_weight, self._code_std = weight, continuous_weight, code_std
        self._transform = transform
        self._transform_weight = check_positive(transform_weight, "transform_weight")
        self._objective, self._widths, self._outputs = objective, widths, sum(widths)

    @override
    def noise(self, n: int) -> Tensor:
        """Draw inputs of the generator: noise from U(−1, 1), one-hot categories, continuous codes from U(−1, 1).

        Args:
            n: number of draws.

        Returns:
            Noise and codes, ``[n, latent]``.
        """
        options: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        one_hots = [F.one_hot(torch.randint(k, (n,), device=self.device), k).to(self.dtype) for k in self.categorical]
        noise, codes = (2.0 * torch.rand(n, size, **options) - 1.0 for size in (self._sizes[0], self.continuous))
        return torch.cat([noise, *one_hots, codes], dim=1)

    @override
    def sample(self, n: int = 1, seed: int | None = None, codes: Codes | None = None, **options: Any) -> Tensor:
        """Samples from the generator, with given or random codes.

        ``model.sample(10, codes=Codes(categorical=torch.arange(10)))`` returns one sample of each category.

        Args:
            n: number of samples.
            seed: makes the draws reproducible; ``None``: torch's random state is used.
            codes: values of the codes; ``None``, or codes that are ``None``: drawn from their prior.
            **options: further arguments of the generator.

        Returns:
            Samples ``[n, ...]``.
        """
        with seeded(seed, self.device):
            z = self.noise(check_integer(n, "n", minimum=1))
        return self.decode(z if codes is None else self.with_codes(z, codes), **options)

    def with_codes(self, z: Tensor, codes: Codes) -> Tensor:
        """Replace codes and keep the noise.

        Args:
            z: noise and codes, ``[n, latent]``.
            codes: the new values; those that are ``None`` are kept.

        Returns:
            Noise and codes, ``[n, latent]``, for :meth:`decode`.

        Raises:
            InputError: ``codes`` have a wrong type, shape or value.
        """
        if not isinstance(codes, Codes):
            raise InputError(f"codes must be Codes(categorical=..., continuous=...), got {type(codes).__name__}")
        noise, *one_hots, continuous = z.split(self._sizes, dim=1)
        if codes.categorical is not None:
            index = _expand(codes.categorical, "categorical", len(z), len(self.categorical)).to(z.device)
            limits = torch.tensor(self.categorical, device=z.device)
            if index.is_floating_point() or bool(((index < 0) | (index >= limits)).any()):
                raise InputError(
                    f"categorical codes must be integers of at least 0 and below {self.categorical}, got numbers from "
                    f"{float(index.min()):g} to {float(index.max()):g}"
                )
            one_hots = [F.one_hot(i.long(), k).to(z) for i, k in zip(index.unbind(1), self.categorical, strict=True)]
        if codes.continuous is not None:
            continuous = _expand(codes.continuous, "continuous", len(z), self.continuous).to(z)
        return torch.cat([noise, *one_hots, continuous], dim=1)

    @torch.no_grad()
    def infer_codes(self, x: Any) -> CodePosterior:
        """Infer the codes of data, as if the generator had output them.

        Args:
            x: data ``[N, ...]``, or a Dataset or DataLoader.

        Returns:
            Q(c | x).
        """
        with evaluation_mode(self):
            outputs = [self.discriminator(part) for part in self._batches(x, BATCH_SIZE)]
        return self._posterior(torch.cat(outputs))

    def _discriminator_objective(self, real: Tensor, fake: Tensor, z: Tensor) -> Objective:
        """−V − λ L_I, and how much a transform changes classes; Q is learned from samples, whose codes are known."""
        on_real, on_fake = self.discriminator(real), self.discriminator(fake)
        terms = self._information(on_fake, z)
        loss = discriminator_loss(self._scores(on_real), self._scores(on_fake)) - self._weighted(terms)
        if self._transform is not None:
            change = self._category_change(on_real, self.discriminator(self._transform(real)))
            loss, terms = loss + self._transform_weight * change, {**terms, "category_change": change}
        return Objective(loss, terms)

    def _category_change(self, before: Tensor, after: Tensor) -> Tensor:
        """The mean of KL(Q(c | x) ‖ Q(c | T x)) from outputs ``[B, outputs]``; only the second is learned."""
        pairs = zip(self._posterior(before.detach()).categorical, self._posterior(after).categorical, strict=True)
        changes = [F.kl_div(q.logits, p.logits, reduction="batchmean", log_target=True) for p, q in pairs]
        return torch.stack(changes).sum()

    def _generator_objective(self, fake: Tensor, z: Tensor) -> Objective:
        """The generator loss of a GAN − λ L_I."""
        output = self.discriminator(fake)
        information = self._weighted(self._information(output, z))
        return Objective(generator_loss(self._scores(output), self._objective) - information)

    def _information(self, output: Tensor, z: Tensor) -> dict[str, Tensor]:
        """L_I of the categorical and of the continuous codes in nats.

        Args:
            output: of the discriminator for G(z), ``[B, outputs]``.
            z: noise and codes, ``[B, latent]``.

        Returns:
            Scalars, by name.
        """
        q = self._posterior(output)
        _, *one_hots, continuous = z.split(self._sizes, dim=1)
        found = {}
        if one_hots:
            log_q = [(q_code.logits * one_hot).sum(1) for q_code, one_hot in zip(q.categorical, one_hots, strict=True)]
            entropy = sum(math.log(k) for k in self.categorical)
            found["categorical_information"] = torch.stack(log_q).sum(0).mean() + entropy
        if self.continuous:
            log_q_continuous = q.continuous.log_prob(continuous).sum(1).mean()
            found["continuous_information"] = log_q_continuous + self.continuous * math.log(2.0)
        return found

    def _weighted(self, information: dict[str, Tensor]) -> Tensor:
        weights = {"categorical_information": self._weight, "continuous_information": self._continuous_weight}
        return torch.stack([weights[name] * value for name, value in information.items()]).sum()

    def _posterior(self, output: Tensor) -> CodePosterior:
        _, *parts = full_precision(output).split(self._widths, dim=1)
        logits, (mean, *log_variance) = parts[: len(self.categorical)], parts[len(self.categorical) :]
        std = (0.5 * log_variance[0]).exp() if self._code_std is None else torch.full_like(mean, self._code_std)
        return CodePosterior(
            tuple(Categorical(logits=part, validate_args=False) for part in logits),
            Normal(mean, std, validate_args=False),
        )

    @override
    def _check_shapes(self, x: Tensor) -> None:
        super()._check_shapes(x)
        changed = x if self._transform is None else self._transform(x)
        if not isinstance(changed, Tensor) or changed.shape != x.shape or changed.dtype != x.dtype:
            found = f"{changed.dtype} {list(changed.shape)}" if isinstance(changed, Tensor) else type(changed).__name__
            raise InputError(f"transform must return data like its input, {x.dtype} {list(x.shape)}, got {found}")

    def _get_config(self) -> dict[str, object]:
        return {
            "noise": self._sizes[0],
            "categorical": list(self.categorical),
            "continuous": self.continuous,
            "weight": self._weight,
            "continuous_weight": self._continuous_weight,
            "code_std": self._code_std,
            "transform_weight": self._transform_weight,
            "objective": self._objective,
            **super()._get_config(),
        }


def _check_classes(categorical: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(categorical, list | tuple):
        raise InputError(f"categorical must list the classes of each code, such as (10,), got {categorical!r}")
    return tuple(check_integer(k, f"categorical[{i}]", minimum=2) for i, k in enumerate(categorical))


def _expand(values: Any, name: str, n: int, width: int) -> Tensor:
    """``values`` as ``[n, width]``: the same row n times, or one number per row if ``width`` is 1."""
    try:
        given = torch.as_tensor(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} codes must be numbers of shape [{n}, {width}], got {values!r}") from error
    rows = given[:, None] if given.ndim == 1 and width == 1 else given
    try:
        return rows.expand(n, width)
    except RuntimeError as error:
        raise InputError(f"{name} codes must have shape [{n}, {width}], got {list(given.shape)}") from error
