"""The variational auto-encoder (Kingma & Welling 2014), and its importance-weighted sharpening (Burda et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.utils.data import DataLoader, Dataset

from credo._arguments import check_integer, check_non_negative
from credo.errors import InputError, unknown_name
from credo.generative import bounds, presets
from credo.generative.base import EncoderDecoderModel, call_network, network_of
from credo.generative.bounds import Latent
from credo.generative.decoders import BayesianDecoder, Decoder, PointDecoder, likelihood_for
from credo.generative.observations import check_decoder, check_observable, check_output, observe
from credo.likelihoods import Likelihood
from credo.methods import BayesByBackprop
from credo.model import Model
from credo.seeding import check_seed, seeded
from credo.training.generative import GRID_SIZE, GenerativeTask, evaluation_mode
from credo.training.warmup import Warmup

_KL = ("analytic", "sampled")
_OBJECTIVES = ("elbo", "iwae")
_ROWS_AT_ONCE = 1024
_CODES_AT_ONCE = 4096
_VALIDATION_DRAWS = 10


class VAE(EncoderDecoderModel):
    r"""Latent variables z with prior N(0, I), likelihood p(x | z), and an amortised posterior q(z | x).

        L(x) = E_q[log p(x | z)] − β KL(q(z | x) ‖ p(z)) ≤ log p(x)          (β = 1)

    The encoder outputs the mean and the log variance of q(z | x) = N(z | μ(x), diag σ²(x)), ``[B, 2·latent]``; the
    decoder outputs what the likelihood needs, in the shape of the data. Gradients pass through
    z = μ + σε (the SGVB estimator), with the KL in closed form (``kl="analytic"``, estimator B) or from the same draws
    (``kl="sampled"``, estimator A). With ``objective="iwae"`` the ``samples`` draws of a datum are weighted by their
    importance:

        L_K(x) = E log (1/K) Σ_k p(x, z_k) / q(z_k | x),    L_1 ≤ L_K ≤ log p(x).

    A Bernoulli likelihood reads a gray value as the probability of ink, and a fresh binary image is drawn of it
    for every step of training and every bound: data must lie between 0 and 1, and binary data stay as they are.

    ``history`` holds the means of ``nll`` = −E_q[log p(x | z)], ``kl`` and ``elbo`` over an epoch, per datum at β = 1;
    ``bound``, the importance-weighted one, where that is the objective; ``weight_kl``, each datum's share of the KL of
    the weights, where the decoder has a posterior over them.

    Args:
        encoder: a network, or the name of a preset, ``"dense"`` or ``"convolutional"``, which needs ``shape``.
        decoder: a network; for a posterior over its weights too, a :class:`credo.BayesByBackprop` around one (the full
            variational version of the paper's appendix). Left out where the encoder is a preset.
        latent: the dimension of z.
        shape: of a datum, such as ``(1, 28, 28)``, for a preset.
        hidden: widths of a preset's hidden layers, from data to code; channels of a convolutional one.
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

    _may_be_methods = ("decoder",)

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
        if objective == "iwae" and (beta != 1.0 or warmup or kl != "analytic"):
            raise InputError("beta, warmup and kl are for objective='elbo': an importance-weighted bound has no KL")
        if isinstance(decoder, Model) and not isinstance(decoder, BayesByBackprop):
            raise InputError(f"the decoder must be a network or a BayesByBackprop, not a {type(decoder).__name__}")
        if objective == "iwae" and isinstance(decoder, BayesByBackprop):
            raise InputError("objective='iwae' needs a decoder whose weights are numbers, not one with a posterior")
        likelihood = likelihood_for(decoder, likelihood)
        latent = check_integer(latent, "latent", minimum=1)
        encoder, decoder = presets.resolve(
            encoder,
            decoder,
            shape=shape,
            code=2 * latent,
            latent=latent,
            hidden=hidden,
            likelihood=likelihood,
        )
        check_decoder(network_of(decoder), likelihood)
        super().__init__(encoder=encoder, decoder=decoder)
        if not isinstance(decoder, BayesByBackprop):
            self._likelihood = likelihood.to(self.device)
        self.latent, self.objective, self.kl = latent, objective, kl
        self.samples = check_integer(samples, "samples", minimum=1)
        self.beta = check_non_negative(beta, "beta")
        self._has_warmup = check_integer(warmup, "warmup", minimum=0) > 0
        self._warmup = Warmup(warmup).to(self.device)

    @property
    def likelihood(self) -> Likelihood:
        """p(x | z)."""
        return self._decoder.likelihood

    @property
    def _decoder(self) -> Decoder:
        if isinstance(self.decoder, BayesByBackprop):
            return BayesianDecoder(self.decoder)
        return PointDecoder(self.decoder, self._likelihood)

    def _training_task(self) -> _VariationalTask:
        return _VariationalTask(self)

    def _loss(self, x: Tensor, weight: Tensor, n_data: int | None) -> Tensor:
        """Minus the bound, with the weight that the KL has at this step."""
        x = observe(x, self.likelihood)
        q = self._posterior(x)
        z = q.rsample((self.samples,))
        if self.objective == "iwae":
            return self._importance_weighted_loss(x, q, z, weight)
        cost = self._decoder.cost(x, z, weight, n_data or self.n_data)
        divergence = (weight * self._divergence(q, z)).mean()
        loss = cost.nll + self._kl_factor() * divergence
        self._last_terms = {"nll": cost.nll.detach(), "kl": divergence.detach()}
        if cost.weight_kl is None:
            return loss
        self._last_terms["weight_kl"] = cost.weight_kl.detach()
        return loss + cost.kl_factor * cost.weight_kl

    def _importance_weighted_loss(self, x: Tensor, q: Latent, z: Tensor, weight: Tensor) -> Tensor:
        log_p = self._decoder.log_prob(x, z)
        log_weights = log_p - bounds.sampled_divergence(q, z)
        bound = (weight * (log_weights.logsumexp(0) - math.log(self.samples))).mean()
        with torch.no_grad():
            nll, kl = -(weight * log_p.mean(0)).mean(), (weight * bounds.divergence(q)).mean()
        self._last_terms = {"nll": nll, "kl": kl, "bound": bound.detach()}
        return -bound

    @torch.no_grad()
    def encode(self, x: Any, batch_size: int = 4096) -> Latent:
        """q(z | x), a torch distribution over ``[N, latent]``; of gray values as they are, not of binary draws."""
        with evaluation_mode(self):
            found = [self._posterior(part) for part in self._batches(x, batch_size)]
        mean, std = (torch.cat([getattr(q.base_dist, name) for q in found]) for name in ("loc", "scale"))
        return Independent(Normal(mean, std), 1)

    @torch.no_grad()
    def decode(self, z: Any) -> Tensor:
        """E[x | z], ``[N, ...]``; by the mean weights where the decoder has a posterior."""
        code = self._check_codes(z)
        with evaluation_mode(self):
            return torch.cat([self._decoder.mean(part) for part in code.split(_CODES_AT_ONCE)])

    def reconstruct(self, x: Any) -> Tensor:
        """E[x | z] at the mean of q(z | x), ``[N, ...]``."""
        return self.decode(self.encode(x).mean)

    def sample(self, n: int = 1, seed: int | None = None) -> Tensor:
        """E[x | z] of ``n`` draws of z from the prior, ``[n, ...]``: what papers show as samples."""
        with seeded(seed, self.device):
            z = torch.randn(check_integer(n, "n", minimum=1), self.latent, dtype=self.dtype, device=self.device)
        return self.decode(z)

    def interpolate(self, start: Any, end: Any, steps: int = 10) -> Tensor:
        """Decoded straight lines between the codes of ``start [N, ...]`` and ``end``: ``[N, steps, ...]``."""
        first, last = self.encode(start).mean, self.encode(end).mean
        if first.shape != last.shape:
            raise InputError(f"start and end must be equally many, got {len(first)} and {len(last)}")
        share = torch.linspace(0.0, 1.0, check_integer(steps, "steps", minimum=2), dtype=self.dtype, device=self.device)
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
        levels = (
            torch.arange(check_integer(side, "side", minimum=2), dtype=self.dtype, device=self.device) + 0.5
        ) / side
        ticks = torch.special.ndtri(levels)
        return self.decode(torch.cartesian_prod(-ticks, ticks).flip(1))

    def elbo(self, x: Any, samples: int = 1, seed: int | None = None) -> Tensor:
        """The evidence lower bound of every datum in nats, ``[N]``, at β = 1, from ``samples`` draws of z.

        Where the decoder's weights have a posterior, every datum bears its share of their KL, so that the sum over the
        training data bounds their joint evidence.
        """
        seed = check_seed(seed)
        with seeded(seed, self.device):
            share = self._decoder.kl_share(self.n_data)
        return self._over_data(x, samples, seed, bounds.elbo) - share

    def log_likelihood(self, x: Any, samples: int = 5000, seed: int | None = None) -> Tensor:
        """log (1/K) Σ_k p(x, z_k)/q(z_k | x) of every datum in nats, ``[N]``, from K = ``samples`` draws.

        Below log p(x) on average, and closer to it the more draws there are. Each is a call of the decoder: on a CPU,
        5,000 of a convolutional one take about a second an image, and some hundred serve to compare models. Where the
        decoder's weights have a posterior, p is the mixture over their draws.
        """
        return self._over_data(x, samples, seed, bounds.importance_weighted)

    @torch.no_grad()
    def _over_data(
        self, x: Any, samples: int, seed: int | None, bound: Callable[[Decoder, Tensor, Latent, int], Tensor]
    ) -> Tensor:
        """``bound`` of every datum, with fresh binary images where the likelihood is Bernoulli."""
        draws = check_integer(samples, "samples", minimum=1)
        found = []
        with evaluation_mode(self), seeded(check_seed(seed), self.device):
            for batch in self._batches(x, _ROWS_AT_ONCE):
                for part in batch.split(max(bounds.NUMBERS_AT_ONCE // batch[0].numel(), 1)):
                    observed = observe(part, self.likelihood)
                    found.append(bound(self._decoder, observed, self._posterior(observed), draws))
        return torch.cat(found)

    def _posterior(self, x: Tensor) -> Latent:
        code = self.encoder(x)
        if not isinstance(code, Tensor) or code.shape != (len(x), 2 * self.latent):
            found = list(code.shape) if isinstance(code, Tensor) else type(code).__name__
            raise InputError(
                f"the encoder must output the mean and log variance of {self.latent} latent variables, shape "
                f"[{len(x)}, {2 * self.latent}], got {found}"
            )
        mean, log_variance = code.to(self.dtype).chunk(2, -1)
        return bounds.diagonal(mean, (0.5 * log_variance).exp())

    def _divergence(self, q: Latent, z: Tensor) -> Tensor:
        """KL(q ‖ p) of every datum, ``[B]``, in closed form or from the draws ``z [S, B, latent]``."""
        return bounds.divergence(q) if self.kl == "analytic" else bounds.sampled_divergence(q, z).mean(0)

    def _kl_factor(self) -> float | Tensor:
        """β, rising from 0 during warm-up; counts this training step."""
        return self.beta if not self._has_warmup else self.beta * self._warmup()

    def _example_images(self, x: Tensor) -> Tensor:
        """Samples, from the same random numbers every time."""
        return self.sample(GRID_SIZE, seed=0)

    def _check_values(self, x: Tensor) -> None:
        """Finite numbers; for a Bernoulli likelihood, between 0 and 1."""
        check_observable(x, self.likelihood)

    def _check_shapes(self, x: Tensor) -> None:
        """The encoder's code and the decoder's output must fit the latent size and the data."""
        call_network("encoder", self.encoder, x)
        output = call_network("decoder", self._decoder.output, self._posterior(x).mean)
        check_output(output, x, self.likelihood)

    def _get_config(self) -> dict[str, object]:
        """The arguments that are not networks, and those of a Bayesian decoder."""
        bayesian = self.decoder if isinstance(self.decoder, BayesByBackprop) else None
        return {
            "latent": self.latent,
            "likelihood": self.likelihood.get_config() if bayesian is None else None,
            "bayesian_decoder": None if bayesian is None else bayesian._get_config(),
            "objective": self.objective,
            "kl": self.kl,
            "samples": self.samples,
            "beta": self.beta,
            "warmup": int(self._warmup.length),
        }

    def _describe_networks(self) -> dict[str, object]:
        """As for every generative model, and whether a Bayesian decoder has a custom forward."""
        custom = isinstance(self.decoder, BayesByBackprop) and self.decoder._forward is not None
        return {**super()._describe_networks(), "custom_forward": custom}

    @classmethod
    def _from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        """Build the model again; a Bayesian decoder is given as the network in it, or as a whole."""
        arguments = dict(config)
        bayesian = arguments.pop("bayesian_decoder", None)
        bare = net.get("decoder") if isinstance(net, Mapping) else None
        if isinstance(bayesian, dict) and isinstance(bare, nn.Module) and not isinstance(bare, BayesByBackprop):
            net = {**net, "decoder": BayesByBackprop._from_config(bayesian, bare, **overrides)}
            overrides = {}
        return super()._from_config(arguments, net, **overrides)


class _VariationalTask(GenerativeTask[VAE]):
    """Reports the terms of the bound per datum."""

    def before_step(self, x: Any) -> None:
        """What a Bayesian decoder does on a batch outside compiled code."""
        model = self.model
        if isinstance(model.decoder, BayesByBackprop):
            rows = model.samples * len(x)
            model.decoder._prepare(torch.zeros(rows, model.latent, dtype=model.dtype, device=model.device))

    def epoch_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """The terms and the ELBO per datum, in nats."""
        return {**means, "elbo": -means["nll"] - means["kl"] - means.get("weight_kl", 0.0)}

    def progress_text(self, metrics: Mapping[str, float]) -> str:
        """NLL, KL, and the bound that is maximized, per datum."""
        bound = f"bound {metrics['bound']:.5g}" if "bound" in metrics else f"ELBO {metrics['elbo']:.5g}"
        shown = f"NLL {metrics['nll']:.4g}  KL {metrics['kl']:.4g}  {bound}"
        return f"{shown}  held-out ELBO {metrics['validation_elbo']:.5g}" if "validation_elbo" in metrics else shown

    def validation_step(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        """The ELBO and the importance-weighted bound of ten draws, per held-out datum."""
        return {
            "validation_elbo": float(self.model.elbo(held_out, 1, seed).mean()),
            "validation_log_likelihood": float(self.model.log_likelihood(held_out, _VALIDATION_DRAWS, seed).mean()),
        }
