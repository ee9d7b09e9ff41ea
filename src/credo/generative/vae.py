"""The variational auto-encoder (Kingma & Welling 2014), and its importance-weighted sharpening (Burda et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.utils.data import DataLoader, Dataset

from credo.errors import InputError, unknown_name
from credo.generative import presets
from credo.generative.base import GenerativeModel, evaluating
from credo.generative.decoders import BayesianDecoder, Decoder, PointDecoder, likelihood_for
from credo.likelihoods import Bernoulli, Likelihood
from credo.likelihoods.base import whole
from credo.methods import BayesByBackprop
from credo.seeding import check_seed, seeded

Latent: TypeAlias = "Independent[Normal]"

_KL = ("analytic", "sampled")
_OBJECTIVES = ("elbo", "iwae")
_NUMBERS_AT_ONCE = 2**24
"""Numbers of decoded data held at once when many draws are decoded."""
_ROWS_AT_ONCE = 1024
_VALIDATION_DRAWS = 10


class VAE(GenerativeModel):
    r"""Latent variables z with prior N(0, I), likelihood p(x | z), and an amortised posterior q(z | x).

        L(x) = E_q[log p(x | z)] − β KL(q(z | x) ‖ p(z)) ≤ log p(x)          (β = 1)

    The encoder puts out the mean and the log variance of q(z | x) = N(z | μ(x), diag σ²(x)), ``[B, 2·latent]``; the
    decoder puts out what the likelihood needs, in the shape of the data. Gradients pass through
    z = μ + σε (the SGVB estimator), with the KL in closed form (``kl="analytic"``, estimator B) or from the same draws
    (``kl="sampled"``, estimator A). With ``objective="iwae"`` the ``samples`` draws of a datum are weighted by their
    importance:

        L_K(x) = E log (1/K) Σ_k p(x, z_k) / q(z_k | x),    L_1 ≤ L_K ≤ log p(x).

    A Bernoulli likelihood reads a grey value as the probability of ink, and a fresh binary image is drawn of it
    whenever it is looked at: data must lie between 0 and 1, and binary data stay as they are.

    Args:
        encoder: a network, or the name of a preset, ``"dense"`` or ``"convolutional"``, which needs ``shape``.
        decoder: a network; for a posterior over its weights too, a :class:`credo.BayesByBackprop` around one (the full
            variational version of the paper's appendix). Left out where the encoder is a preset.
        latent: the dimension of z.
        shape: of a datum, such as ``(1, 28, 28)``, for a preset.
        hidden: widths of a preset's hidden layers.
        likelihood: p(x | z), such as ``credo.Bernoulli()`` or ``credo.Gaussian(noise="learned")``.
        objective: ``"elbo"`` or ``"iwae"``.
        kl: ``"analytic"`` or ``"sampled"``.
        samples: draws of z for each datum in a training step, L in the one paper, k in the other.
        beta: the weight of the KL.
        warmup: training steps over which the weight of the KL rises from 0 to ``beta``.

    References:
        D. P. Kingma, M. Welling. Auto-encoding variational Bayes. ICLR 2014. arXiv:1312.6114.
        Y. Burda, R. Grosse, R. Salakhutdinov. Importance weighted autoencoders. ICLR 2016. arXiv:1509.00519.
    """

    parts = ("encoder", "decoder")
    encoder: nn.Module
    decoder: nn.Module
    steps: Tensor

    def __init__(
        self,
        encoder: nn.Module | str = "dense",
        decoder: nn.Module | None = None,
        *,
        latent: int,
        shape: Sequence[int] | None = None,
        hidden: Sequence[int] | None = None,
        likelihood: Likelihood | None = None,
        objective: str = "elbo",
        kl: str = "analytic",
        samples: int = 1,
        beta: float = 1.0,
        warmup: int = 0,
    ) -> None:
        if kl not in _KL:
            raise unknown_name("kl", kl, _KL)
        if objective not in _OBJECTIVES:
            raise unknown_name("objective", objective, _OBJECTIVES)
        if not 0.0 <= beta < math.inf:
            raise InputError(f"beta must be a number of 0 or more, got {beta!r}")
        if objective == "iwae" and (beta != 1.0 or isinstance(decoder, BayesByBackprop)):
            raise InputError("objective='iwae' needs beta=1 and a decoder whose weights are numbers, not a posterior")
        likelihood = likelihood_for(decoder, likelihood)
        latent = whole(latent, "latent", least=1)
        encoder, decoder = presets.resolve(
            encoder,
            decoder,
            shape=shape,
            code=2 * latent,
            latent=latent,
            outputs=2 if getattr(likelihood, "noise", None) == "heteroscedastic" else 1,
            hidden=hidden,
        )
        super().__init__(encoder=encoder, decoder=decoder)
        if not isinstance(decoder, BayesByBackprop):
            self.own_likelihood = likelihood
        self.latent, self.objective, self.kl = latent, objective, kl
        self.samples = whole(samples, "samples", least=1)
        self.beta, self.warmup = float(beta), whole(warmup, "warmup", least=0)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @property
    def likelihood(self) -> Likelihood:
        """p(x | z)."""
        return self._decoder.likelihood

    @property
    def _decoder(self) -> Decoder:
        if isinstance(self.decoder, BayesByBackprop):
            return BayesianDecoder(self.decoder)
        return PointDecoder(self.decoder, self.own_likelihood)

    def forward(
        self, x: Tensor, y: Tensor | None = None, n_data: int | None = None, *, sample_weight: Tensor | None = None
    ) -> Tensor:
        """The loss per datum: minus the bound, with the weight that the KL has at this step.

        Args:
            x: data ``[B, ...]``.
            y: not used.
            n_data: the number of training data, which share the KL of a Bayesian decoder's weights.
            sample_weight: ``[B]``, multiplies each datum's share.
        """
        x = self._observed(x)
        q = self._posterior(x)
        z = q.rsample((self.samples,))
        weight = torch.ones_like(x.flatten(1)[:, 0]) if sample_weight is None else sample_weight
        divergence = self._divergence(q, z)
        if self.objective == "iwae":
            log_w = self._decoder.log_prob(x, z) + self._log_prior(z) - q.log_prob(z)
            bound = torch.logsumexp(log_w, 0) - math.log(self.samples)
            self.last_terms = {"nll": -(bound + divergence).mean().detach(), "kl": divergence.mean().detach()}
            return -(weight * bound).mean()
        cost = self._decoder.cost(x, z, weight, n_data or self.n_data)
        self.last_terms = {"nll": cost.nll.detach(), "kl": divergence.mean().detach()}
        return cost.nll + self._kl_factor() * (weight * divergence).mean() + cost.weights

    def loss(self, x: Tensor, n_data: int | None = None) -> Tensor:
        """The same as ``model(x)``, by its name, for your own training loop."""
        return self.forward(x, n_data=n_data)

    @torch.no_grad()
    def encode(self, x: Any, batch_size: int = 4096) -> Latent:
        """q(z | x), a torch distribution over ``[N, latent]``."""
        with evaluating(self):
            found = [self._posterior(part) for part in self.batches(x, batch_size)]
        mean, std = (torch.cat([getattr(q.base_dist, name) for q in found]) for name in ("loc", "scale"))
        return Independent(Normal(mean, std), 1)

    @torch.no_grad()
    def decode(self, z: Any) -> Tensor:
        """E[x | z], ``[N, ...]``; by the mean weights where the decoder has a posterior."""
        code = torch.as_tensor(z, dtype=self.dtype, device=self.device)
        if code.ndim != 2 or code.shape[1] != self.latent:
            raise InputError(f"z must have shape [N, {self.latent}], got {list(code.shape)}")
        with evaluating(self):
            return torch.cat([self._decoder.mean(part) for part in code.split(4096)])

    def reconstruct(self, x: Any) -> Tensor:
        """E[x | z] at the mean of q(z | x), ``[N, ...]``."""
        return self.decode(self.encode(x).mean)

    def sample(self, n: int = 1, seed: int | None = None) -> Tensor:
        """E[x | z] of ``n`` draws of z from the prior, ``[n, ...]``: what papers show as samples."""
        with seeded(seed, self.device):
            z = torch.randn(whole(n, "n", least=1), self.latent, dtype=self.dtype, device=self.device)
        return self.decode(z)

    def interpolate(self, start: Any, end: Any, steps: int = 10) -> Tensor:
        """Decoded straight lines between the codes of ``start [N, ...]`` and ``end``: ``[N, steps, ...]``."""
        first, last = self.encode(start).mean, self.encode(end).mean
        if first.shape != last.shape:
            raise InputError(f"start and end must be equally many, got {len(first)} and {len(last)}")
        share = torch.linspace(0.0, 1.0, whole(steps, "steps", least=2), dtype=self.dtype, device=self.device)
        path = torch.lerp(first[:, None], last[:, None], share[None, :, None])
        images = self.decode(path.flatten(0, 1))
        return images.view(len(first), steps, *images.shape[1:])

    def manifold(self, side: int = 20) -> Tensor:
        """Data decoded on a grid of the plane of a 2-D latent space, ``[side², ...]``, from top left to bottom right.

        The grid is evenly spaced in probability: the inverse Gaussian CDF takes a regular grid on the unit square to
        the plane, so that every picture stands for an equal share of the prior.
        """
        if self.latent != 2:
            raise InputError(f"a manifold is drawn of 2 latent dimensions, this model has {self.latent}")
        levels = (torch.arange(whole(side, "side", least=2), dtype=self.dtype, device=self.device) + 0.5) / side
        ticks = torch.special.ndtri(levels)
        return self.decode(torch.cartesian_prod(-ticks, ticks).flip(1))

    def elbo(self, x: Any, samples: int = 1, seed: int | None = None) -> Tensor:
        """The evidence lower bound of every datum in nats, ``[N]``, at β = 1, from ``samples`` draws of z."""
        return self._over_data(x, samples, seed, self._elbo)

    def log_likelihood(self, x: Any, samples: int = 5000, seed: int | None = None) -> Tensor:
        """log (1/K) Σ_k p(x, z_k)/q(z_k | x) of every datum in nats, ``[N]``, from K = ``samples`` draws.

        Below log p(x) on average, and closer to it the more draws there are.
        """
        return self._over_data(x, samples, seed, self._importance_weighted)

    def _over_data(
        self, x: Any, samples: int, seed: int | None, bound: Callable[[Tensor, Latent, int], Tensor]
    ) -> Tensor:
        """``bound`` of every datum, a batch at a time, with fresh binary images where the likelihood is Bernoulli."""
        draws = whole(samples, "samples", least=1)
        self.check_values(self.batches(x, 2**20).__next__())
        with torch.no_grad(), evaluating(self), seeded(check_seed(seed), self.device):
            parts = []
            for part in self.batches(x, _ROWS_AT_ONCE):
                observed = self._observed(part)
                parts.append(bound(observed, self._posterior(observed), draws))
        return torch.cat(parts)

    def _elbo(self, x: Tensor, q: Latent, samples: int) -> Tensor:
        total = torch.zeros(len(x), dtype=self.dtype, device=self.device)
        for count in self._portions(x, samples):
            total += self._decoder.log_prob(x, q.sample((count,))).sum(0)
        return total / samples - kl_divergence(q, self._prior(q)) - self._decoder.kl_share(self.n_data)

    def _importance_weighted(self, x: Tensor, q: Latent, samples: int) -> Tensor:
        log_sums = []
        for count in self._portions(x, samples):
            z = q.sample((count,))
            log_w = self._decoder.log_prob(x, z) + self._log_prior(z) - q.log_prob(z)
            log_sums.append(torch.logsumexp(log_w.double(), 0))
        bound = torch.logsumexp(torch.stack(log_sums), 0) - math.log(samples)
        return bound.to(self.dtype) - self._decoder.kl_share(self.n_data)

    def _portions(self, x: Tensor, samples: int) -> Iterator[int]:
        """How many draws to decode at once, until there were ``samples``."""
        size = max(_NUMBERS_AT_ONCE // max(x.numel(), 1), 1)
        for start in range(0, samples, size):
            yield min(size, samples - start)

    def _observed(self, x: Tensor) -> Tensor:
        return torch.bernoulli(x) if isinstance(self.likelihood, Bernoulli) else x

    def _posterior(self, x: Tensor) -> Latent:
        code = self.encoder(x)
        if not isinstance(code, Tensor) or code.shape != (len(x), 2 * self.latent):
            found = list(code.shape) if isinstance(code, Tensor) else type(code).__name__
            raise InputError(
                f"the encoder must put out the mean and log variance of {self.latent} latent variables, shape "
                f"[{len(x)}, {2 * self.latent}], got {found}"
            )
        mean, log_variance = code.chunk(2, -1)
        return Independent(Normal(mean, (0.5 * log_variance).exp(), validate_args=False), 1, validate_args=False)

    def _prior(self, q: Latent) -> Latent:
        mean = torch.zeros_like(q.mean)
        return Independent(Normal(mean, torch.ones_like(mean), validate_args=False), 1, validate_args=False)

    def _log_prior(self, z: Tensor) -> Tensor:
        return -0.5 * (z.square().sum(-1) + self.latent * math.log(2.0 * math.pi))

    def _divergence(self, q: Latent, z: Tensor) -> Tensor:
        """KL(q ‖ p) of every datum, ``[B]``, in closed form or from the draws ``z [S, B, latent]``."""
        if self.kl == "analytic":
            closed: Tensor = kl_divergence(q, self._prior(q))
            return closed
        sampled: Tensor = q.log_prob(z) - self._log_prior(z)
        return sampled.mean(0)

    def _kl_factor(self) -> float | Tensor:
        """β, rising from 0 over the first ``warmup`` steps of training."""
        if not self.training or not self.warmup:
            return self.beta
        self.steps += 1
        return self.beta * (self.steps / self.warmup).clamp(max=1.0)

    def check_values(self, x: Tensor) -> None:
        """A Bernoulli likelihood needs values between 0 and 1."""
        if not isinstance(self.likelihood, Bernoulli):
            return
        low, high = float(x.min()), float(x.max())
        if low < 0.0 or high > 1.0:
            raise InputError(
                f"a Bernoulli likelihood needs data between 0 and 1, got values from {low:.4g} to {high:.4g}: divide "
                "8-bit images by 255, or choose likelihood=credo.Gaussian(noise='learned')"
            )

    def check_call(self, x: Tensor) -> None:
        """The encoder's code and the decoder's output must fit the latent size and the data."""
        output = self._decoder.output(self._posterior(x).mean)
        try:
            self.likelihood.log_prob(output, self._observed(x))
        except InputError as error:
            raise InputError(f"the decoder's output does not fit data of shape {list(x.shape)}: {error}") from error

    def entry(self, means: Mapping[str, float]) -> dict[str, float]:
        """NLL, KL and ELBO per datum, in nats."""
        return {**means, "elbo": -means["nll"] - means["kl"]}

    def headline(self, entry: Mapping[str, float]) -> str:
        """NLL, KL and ELBO per datum."""
        shown = f"NLL {entry['nll']:.4g}  KL {entry['kl']:.4g}  ELBO {entry['elbo']:.5g}"
        return f"{shown}  held-out ELBO {entry['validation_elbo']:.5g}" if "validation_elbo" in entry else shown

    def score(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        """The ELBO and the importance-weighted bound of ten draws, per held-out datum."""
        return {
            "validation_elbo": float(self.elbo(held_out, 1, seed).mean()),
            "validation_log_likelihood": float(self.log_likelihood(held_out, _VALIDATION_DRAWS, seed).mean()),
        }

    def own_config(self) -> dict[str, object]:
        """The arguments that are not networks."""
        return {
            "latent": self.latent,
            "likelihood": None if isinstance(self.decoder, BayesByBackprop) else self.likelihood.config(),
            "objective": self.objective,
            "kl": self.kl,
            "samples": self.samples,
            "beta": self.beta,
            "warmup": self.warmup,
        }
