"""The variational auto-encoder (Kingma & Welling 2014) with the importance-weighted bound of Burda et al. (2016)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from credo._arguments import check_integer, check_non_negative, check_option
from credo.errors import InputError
from credo.generative import decoders
from credo.generative.base import EncoderDecoderModel
from credo.generative.decoders import BayesianDecoder, Decoder, DiagonalGaussian, PointDecoder
from credo.generative.networks import call_network, encoder_and_decoder, network_of
from credo.likelihoods import Likelihood
from credo.methods import BayesByBackprop
from credo.model import Model
from credo.seeding import check_seed, seeded
from credo.training.generative import GRID_SIZE, GenerativeTask, evaluation_mode
from credo.training.warmup import Warmup

_DATA_BATCH_SIZE = 1024
_CODE_BATCH_SIZE = 4096
_VALIDATION_SAMPLES = 10


class VAE(EncoderDecoderModel):
    r"""Latent variables z with prior N(0, I), a likelihood p(x | z), and an amortized posterior q(z | x).

        L(x) = E_q[log p(x | z)] − β KL(q(z | x) ‖ p(z)) ≤ log p(x)          (β = 1)

    The encoder outputs the mean and the log variance of q(z | x) = N(z | μ(x), diag σ²(x)), ``[B, 2·latent]``; the
    decoder outputs the parameters of the likelihood, in the shape of the data. Gradients pass through
    z = μ + σε (the SGVB estimator), with the KL in closed form (``kl="analytic"``, estimator B) or from the same draws
    (``kl="sampled"``, estimator A). With ``objective="iwae"`` the ``samples`` draws per datum have importance weights:

        L_K(x) = E log (1/K) Σ_k p(x, z_k) / q(z_k | x),    L_1 ≤ L_K ≤ log p(x).

    With a Bernoulli likelihood, a gray value is the probability of a 1: binary data are drawn from the gray values at
    each training step and for each bound. Data must lie between 0 and 1; binary data are unchanged.

    ``history`` contains the means of ``nll`` = −E_q[log p(x | z)], ``kl`` and ``elbo`` of each epoch, per datum at
    β = 1; for ``objective="iwae"`` also ``bound``; and if the decoder has a posterior over its weights, ``weight_kl``,
    their KL divided by the number of data.

    Args:
        encoder: a network, or the name of a preset, ``"dense"`` or ``"convolutional"``, which needs ``shape``.
        decoder: a network, or a :class:`credo.BayesByBackprop` around one for a posterior over its weights too (the
            full variational version of the paper's appendix); ``None``: that of the preset.
        latent: the dimension of z.
        shape: of a datum, such as ``(1, 28, 28)``; only for a preset.
        hidden: widths of a preset's hidden layers, from data to code, or the channels of a convolutional one;
            ``None``: those of the preset.
        likelihood: p(x | z), such as ``credo.Gaussian(noise="learned")``; ``None``: ``credo.Bernoulli()``, or that of
            a Bayesian decoder.
        objective: ``"elbo"`` or ``"iwae"``.
        kl: ``"analytic"`` or ``"sampled"``.
        samples: draws of z per datum in a training step.
        beta: the weight of the KL.
        warmup: number of training steps over which the weight of the KL rises from 0 to ``beta``.

    Attributes:
        latent: the dimension of z.

    Raises:
        InputError: an argument has a wrong type or value, or two arguments exclude each other.

    References:
        D. P. Kingma, M. Welling. Auto-encoding variational Bayes. ICLR 2014. arXiv:1312.6114.
        Y. Burda, R. Grosse, R. Salakhutdinov. Importance weighted autoencoders. ICLR 2016. arXiv:1509.00519.

    Example:
        >>> x = torch.rand(40, 1, 8, 8)
        >>> model = VAE("dense", latent=2, shape=(1, 8, 8)).fit(x, epochs=2)
        >>> model.elbo(x).shape, model.sample(5).shape
        (torch.Size([40]), torch.Size([5, 1, 8, 8]))
    """

    _bayesian_networks = ("decoder",)

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
        check_option(kl, "kl", ("analytic", "sampled"))
        check_option(objective, "objective", ("elbo", "iwae"))
        if objective == "iwae" and (beta != 1.0 or warmup or kl != "analytic"):
            raise InputError("beta, warmup and kl are for objective='elbo': an importance-weighted bound has no KL")
        if isinstance(decoder, Model) and not isinstance(decoder, BayesByBackprop):
            raise InputError(f"the decoder must be a network or a BayesByBackprop, not a {type(decoder).__name__}")
        if objective == "iwae" and isinstance(decoder, BayesByBackprop):
            raise InputError("objective='iwae' needs a decoder without a posterior over its weights")
        likelihood = decoders.choose_likelihood(decoder, likelihood)
        latent = check_integer(latent, "latent", minimum=1)
        encoder, decoder = encoder_and_decoder(
            encoder, decoder, shape=shape, code=2 * latent, latent=latent, hidden=hidden, likelihood=likelihood
        )
        decoders.check_decoder(network_of(decoder), likelihood)
        super().__init__(encoder=encoder, decoder=decoder)
        if not isinstance(decoder, BayesByBackprop):
            self._likelihood = likelihood.to(self.device)
        self.latent, self._objective, self._kl = latent, objective, kl
        self._samples = check_integer(samples, "samples", minimum=1)
        self._beta = check_non_negative(beta, "beta")
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

    @torch.no_grad()
    def encode(self, x: Any, batch_size: int = 4096) -> DiagonalGaussian:
        """q(z | x), given gray values themselves and not binary draws of them.

        Args:
            x: data ``[N, ...]``, or a Dataset or DataLoader.
            batch_size: rows per call of the encoder.

        Returns:
            A torch distribution over ``[N, latent]``.
        """
        with evaluation_mode(self):
            found = [self._posterior(part) for part in self._batches(x, batch_size)]
        mean, std = (torch.cat([getattr(q.base_dist, name) for q in found]) for name in ("loc", "scale"))
        return Independent(Normal(mean, std), 1)

    @torch.no_grad()
    def decode(self, z: Any) -> Tensor:
        """E[x | z], with the mean weights if the decoder has a posterior over them.

        Args:
            z: codes ``[N, latent]``.

        Returns:
            Means ``[N, ...]``.
        """
        codes = self._check_codes(z)
        with evaluation_mode(self):
            return torch.cat([self._decoder.mean(part) for part in codes.split(_CODE_BATCH_SIZE)])

    @override
    def reconstruct(self, x: Any) -> Tensor:
        return self.decode(self.encode(x).mean)

    def sample(self, n: int = 1, seed: int | None = None) -> Tensor:
        """E[x | z] of draws of z from the prior, which papers show as samples.

        Args:
            n: number of samples.
            seed: makes the draws reproducible; ``None``: torch's random state is used.

        Returns:
            Samples ``[n, ...]``.
        """
        with seeded(seed, self.device):
            z = torch.randn(check_integer(n, "n", minimum=1), self.latent, dtype=self.dtype, device=self.device)
        return self.decode(z)

    def interpolate(self, start: Any, end: Any, steps: int = 10) -> Tensor:
        """Decode straight lines between codes.

        Args:
            start: data ``[N, ...]`` at whose codes the lines start.
            end: data ``[N, ...]`` at whose codes they end.
            steps: number of points on each line, both ends included.

        Returns:
            Decoded points ``[N, steps, ...]``.
        """
        first, last = self.encode(start).mean, self.encode(end).mean
        if first.shape != last.shape:
            raise InputError(f"start and end must have the same number of rows, got {len(first)} and {len(last)}")
        steps = check_integer(steps, "steps", minimum=2)
        share = torch.linspace(0.0, 1.0, steps, dtype=self.dtype, device=self.device)
        points = torch.lerp(first[:, None], last[:, None], share[None, :, None])
        images = self.decode(points.flatten(0, 1))
        return images.view(len(first), steps, *images.shape[1:])

    def manifold(self, side: int = 20) -> Tensor:
        """Decode a grid of a 2-D latent space, evenly spaced in probability.

        The inverse Gaussian CDF maps a regular grid on the unit square to the plane, so that each point represents an
        equal share of the prior.

        Args:
            side: number of points along each axis.

        Returns:
            Decoded points ``[side², ...]``, from top left to bottom right.
        """
        if self.latent != 2:
            raise InputError(f"manifold needs latent=2, this model has latent={self.latent}")
        levels = torch.arange(check_integer(side, "side", minimum=2), dtype=self.dtype, device=self.device)
        ticks = torch.special.ndtri((levels + 0.5) / side)
        return self.decode(torch.cartesian_prod(-ticks, ticks).flip(1))

    def elbo(self, x: Any, samples: int = 1, seed: int | None = None) -> Tensor:
        """The evidence lower bound of each datum at β = 1.

        If the decoder has a posterior over its weights, their KL divided by the number of training data is subtracted,
        so that the sum over the training data bounds their joint evidence.

        Args:
            x: data ``[N, ...]``, or a Dataset or DataLoader.
            samples: draws of z per datum.
            seed: makes the draws reproducible; ``None``: a random seed.

        Returns:
            Bounds in nats, ``[N]``.
        """
        seed = check_seed(seed)
        with seeded(seed, self.device):
            weight_kl = self._decoder.weight_kl(self.n_data)
        return self._bounds(x, samples, seed, decoders.elbo) - weight_kl

    def log_likelihood(self, x: Any, samples: int = 5000, seed: int | None = None) -> Tensor:
        """The importance-weighted estimate log (1/K) Σ_k p(x, z_k)/q(z_k | x) of each datum.

        It is below log p(x) on average, and closer to it with more draws. Each draw is a call of the decoder: on a CPU,
        5,000 draws of a convolutional one take about a second per image; some hundred suffice to compare models. If the
        decoder has a posterior over its weights, p is the mixture over their draws.

        Args:
            x: data ``[N, ...]``, or a Dataset or DataLoader.
            samples: K.
            seed: makes the draws reproducible; ``None``: a random seed.

        Returns:
            Estimates in nats, ``[N]``.
        """
        return self._bounds(x, samples, seed, decoders.importance_weighted_bound)

    @torch.no_grad()
    def _bounds(
        self, x: Any, samples: int, seed: int | None, bound: Callable[[Decoder, Tensor, DiagonalGaussian, int], Tensor]
    ) -> Tensor:
        """``bound`` of each datum, ``[N]``."""
        draws = check_integer(samples, "samples", minimum=1)
        found = []
        with evaluation_mode(self), seeded(check_seed(seed), self.device):
            for batch in self._batches(x, _DATA_BATCH_SIZE):
                for part in batch.split(max(decoders.MAX_ELEMENTS // batch[0].numel(), 1)):
                    observed = decoders.binarize(part, self.likelihood)
                    found.append(bound(self._decoder, observed, self._posterior(observed), draws))
        return torch.cat(found)

    def _loss(self, x: Tensor, weight: Tensor, n_data: int | None) -> Tensor:
        """Minus the bound, with the current weight of the KL."""
        x = decoders.binarize(x, self.likelihood)
        q = self._posterior(x)
        z = q.rsample((self._samples,))
        if self._objective == "iwae":
            return self._importance_weighted_loss(x, q, z, weight)
        terms = self._decoder.training_terms(x, z, weight, n_data or self.n_data)
        per_datum = decoders.kl_to_prior(q) if self._kl == "analytic" else decoders.sampled_kl_to_prior(q, z).mean(0)
        kl = (weight * per_datum).mean()
        loss = terms.nll + (self._beta * self._warmup() if self._has_warmup else self._beta) * kl
        self._last_terms = {"nll": terms.nll.detach(), "kl": kl.detach()}
        if terms.weight_kl is None:
            return loss
        self._last_terms["weight_kl"] = terms.weight_kl.detach()
        return loss + terms.kl_factor * terms.weight_kl

    def _importance_weighted_loss(self, x: Tensor, q: DiagonalGaussian, z: Tensor, weight: Tensor) -> Tensor:
        log_p = self._decoder.log_prob(x, z)
        log_weights = log_p - decoders.sampled_kl_to_prior(q, z)
        bound = (weight * (log_weights.logsumexp(0) - math.log(self._samples))).mean()
        with torch.no_grad():
            nll, kl = -(weight * log_p.mean(0)).mean(), (weight * decoders.kl_to_prior(q)).mean()
        self._last_terms = {"nll": nll, "kl": kl, "bound": bound.detach()}
        return -bound

    def _posterior(self, x: Tensor) -> DiagonalGaussian:
        code = self.encoder(x)
        if not isinstance(code, Tensor) or code.shape != (len(x), 2 * self.latent):
            found = list(code.shape) if isinstance(code, Tensor) else type(code).__name__
            raise InputError(
                f"the encoder must output the mean and log variance of {self.latent} latent variables, shape "
                f"[{len(x)}, {2 * self.latent}], got {found}"
            )
        mean, log_variance = code.to(self.dtype).chunk(2, -1)
        return decoders.diagonal_gaussian(mean, (0.5 * log_variance).exp())

    def _training_task(self) -> _VariationalTask:
        return _VariationalTask(self)

    def _example_images(self, x: Tensor) -> Tensor:
        """Samples, from the same random numbers every time."""
        return self.sample(GRID_SIZE, seed=0)

    def _check_values(self, x: Tensor) -> None:
        decoders.check_values(x, self.likelihood)

    def _check_shapes(self, x: Tensor) -> None:
        call_network("encoder", self.encoder, x)
        output = call_network("decoder", self._decoder.output, self._posterior(x).mean)
        decoders.check_output(output, x, self.likelihood)

    def _get_config(self) -> dict[str, object]:
        bayesian = self.decoder if isinstance(self.decoder, BayesByBackprop) else None
        return {
            "latent": self.latent,
            "likelihood": self.likelihood.get_config() if bayesian is None else None,
            "bayesian_decoder": None if bayesian is None else bayesian._get_config(),
            "objective": self._objective,
            "kl": self._kl,
            "samples": self._samples,
            "beta": self._beta,
            "warmup": int(self._warmup.length),
        }

    def _describe_networks(self) -> dict[str, object]:
        custom = isinstance(self.decoder, BayesByBackprop) and self.decoder._forward is not None
        return {**super()._describe_networks(), "custom_forward": custom}

    @classmethod
    def _from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        """Build the model; a Bayesian decoder is given as a whole, or as the network in it."""
        arguments = dict(config)
        bayesian = arguments.pop("bayesian_decoder", None)
        plain = net.get("decoder") if isinstance(net, Mapping) else None
        if isinstance(bayesian, dict) and isinstance(plain, nn.Module) and not isinstance(plain, BayesByBackprop):
            net = {**net, "decoder": BayesByBackprop._from_config(bayesian, plain, **overrides)}
            overrides = {}
        return super()._from_config(arguments, net, **overrides)


class _VariationalTask(GenerativeTask[VAE]):
    """Reports the terms of the bound per datum."""

    def before_step(self, x: Any) -> None:
        """Prepare a Bayesian decoder outside of compiled code."""
        model = self.model
        if isinstance(model.decoder, BayesByBackprop):
            rows = model._samples * len(x)
            model.decoder._prepare(torch.zeros(rows, model.latent, dtype=model.dtype, device=model.device))

    def epoch_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        return {**means, "elbo": -means["nll"] - means["kl"] - means.get("weight_kl", 0.0)}

    def progress_text(self, metrics: Mapping[str, float]) -> str:
        bound = f"bound {metrics['bound']:.5g}" if "bound" in metrics else f"ELBO {metrics['elbo']:.5g}"
        shown = f"NLL {metrics['nll']:.4g}  KL {metrics['kl']:.4g}  {bound}"
        return f"{shown}  held-out ELBO {metrics['validation_elbo']:.5g}" if "validation_elbo" in metrics else shown

    def validation_step(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        log_likelihood = self.model.log_likelihood(held_out, _VALIDATION_SAMPLES, seed)
        return {
            "validation_elbo": float(self.model.elbo(held_out, 1, seed).mean()),
            "validation_log_likelihood": float(log_likelihood.mean()),
        }
