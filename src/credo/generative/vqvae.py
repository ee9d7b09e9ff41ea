"""The vector-quantized variational auto-encoder (van den Oord, Vinyals & Kavukcuoglu 2017)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from typing_extensions import Unpack

from credo import data as data_
from credo import io
from credo._arguments import check_integer, check_non_negative, check_positive
from credo._tensors import TENSORS
from credo.errors import InputError, LoadError, unknown_name
from credo.generative import presets
from credo.generative.base import EncoderDecoderModel, call_network, require_plain_networks
from credo.generative.codebook import AveragedCodebook, Codebook, TrainedCodebook, perplexity, squared_distance
from credo.generative.decoders import likelihood_for
from credo.generative.observations import check_decoder, check_observable, check_output, observe
from credo.likelihoods import Likelihood
from credo.seeding import check_seed, seeded
from credo.training.generative import GenerativeTask, evaluation_mode
from credo.training.options import FitKeywords, with_fit_options

_UPDATES = ("ema", "loss")
_ROWS_AT_ONCE = 1024


class VQVAE(EncoderDecoderModel):
    r"""Discrete latent variables: each vector that the encoder outputs is replaced by the nearest of K codes.

        z = f(x),    k = argmin_k ‖z − e_k‖,    −log p(x | e_k) + ‖sg[z] − e_k‖² + β ‖z − sg[e_k]‖²

    sg stops gradients. Past the choice of a code, which has none, the gradient of the decoder's input is handed to the
    encoder's output as it is (*straight through*). The second term moves the codes to the vectors they stand for; with
    ``update="ema"`` moving averages do that instead. The third, the commitment, keeps the encoder near its codes. Both
    sum over the places of a grid, as the log likelihood does over a datum's numbers; the paper takes the mean over
    places, which leaves the encoder of large images free to run away from its codes. Codes that are no longer used are
    revived, see :class:`~credo.generative.codebook.Codebook`.

    The encoder outputs ``[B, latent, ...]``: a grid of vectors for images, or one vector, ``[B, latent]``; codes have
    the shape of that grid. With a prior p(k) over codes, log p(x | e_k) + log p(k) ≤ log p(x) is the bound. The prior
    is uniform during training, and then a categorical distribution for every place, from the counts of codes in the
    training data with one added to each. It knows nothing of how places hang together, so samples are much weaker than
    reconstructions; the paper fits an autoregressive network to the codes instead, which :meth:`encode` gives. A
    checkpoint, written before codes are counted, has no prior: call :meth:`fit_prior` on a model loaded from one.

    A Bernoulli likelihood reads gray values as :class:`VAE` does. Grids show data, each beside its reconstruction.
    ``history`` holds the means of ``nll`` = −log p(x | e_k), ``commitment`` = ‖z − e_k‖² and ``elbo`` over an epoch,
    and the ``perplexity`` of the use of codes in it: K where all are used evenly, 1 where one is used alone.

    Args:
        encoder: a network, or the name of a preset, which needs ``shape``: ``"residual"``, the paper's, to a grid of a
            quarter of the image's height and width; ``"dense"`` or ``"convolutional"``, to one vector.
        decoder: a network from ``[B, latent, ...]`` to what the likelihood needs. Left out where the encoder is a
            preset.
        latent: the dimension of a code's vector.
        codes: K.
        shape: of a datum, such as ``(1, 28, 28)``, for a preset.
        hidden: widths of a preset's hidden layers, from data to code; channels of a convolutional one.
        likelihood: p(x | e), such as ``credo.Bernoulli()``, the default, or ``credo.Gaussian(noise=0.1)``.
        commitment: β.
        update: how the codes learn, ``"ema"`` or ``"loss"``.
        decay: of the moving averages.
        revive_after: a code restarts at a random encoder output when it had none of the last ``revive_after``·K of
            them; ``None``: never.

    References:
        A. van den Oord, O. Vinyals, K. Kavukcuoglu. Neural discrete representation learning. NeurIPS 2017.
        arXiv:1711.00937.
    """

    prior: Tensor | None
    """The probabilities of codes, ``[..., K]``, in front of them the shape of the grid; ``None`` until counted."""
    grid: tuple[int, ...] | None = None
    """The shape of the encoder's grid, known once there are data."""

    def __init__(
        self,
        encoder: nn.Module | str = "residual",
        decoder: nn.Module | None = None,
        *,
        latent: int = 64,
        codes: int = 512,
        shape: Sequence[int] | None = None,
        hidden: Sequence[int] | None = None,
        likelihood: Likelihood | None = None,
        commitment: float = 0.25,
        update: str = "ema",
        decay: float = 0.99,
        revive_after: float | None = 5.0,
    ) -> None:
        if update not in _UPDATES:
            raise unknown_name("update", update, _UPDATES)
        commitment, decay = check_non_negative(commitment, "commitment"), check_non_negative(decay, "decay")
        if decay >= 1.0:
            raise InputError(f"decay must be a number from 0 to below 1, got {decay!r}")
        require_plain_networks(encoder=encoder, decoder=decoder)
        likelihood = likelihood_for(decoder, likelihood)
        latent, codes = check_integer(latent, "latent", minimum=1), check_integer(codes, "codes", minimum=2)
        revive_after = None if revive_after is None else check_positive(revive_after, "revive_after")
        encoder, decoder = presets.resolve(
            encoder,
            decoder,
            shape=shape,
            code=latent,
            latent=latent,
            hidden=hidden,
            likelihood=likelihood,
            presets=presets.GRID_PRESETS,
        )
        check_decoder(decoder, likelihood)
        super().__init__(encoder=encoder, decoder=decoder)
        self.likelihood = likelihood
        self.latent, self.codes, self.commitment = latent, codes, commitment
        self.update, self.decay, self.revive_after = update, decay, revive_after
        self.codebook: Codebook = (
            AveragedCodebook(codes, latent, revive_after, self.decay)
            if update == "ema"
            else TrainedCodebook(codes, latent, revive_after)
        )
        self.likelihood.to(self.device)
        self.codebook.to(self.device, self.dtype)
        self.register_buffer("prior", None)

    def _training_task(self) -> _QuantizationTask:
        return _QuantizationTask(self)

    def _loss(self, x: Tensor, weight: Tensor, n_data: int | None) -> Tensor:
        """In training mode the codebook is updated by the batch, as the running statistics of batch norm are."""
        x = observe(x, self.likelihood)
        z = self._vectors(x)
        codes = self.codebook.nearest(z)
        vectors = self.codebook.look_up(codes)
        nll = -(weight * self._log_likelihood(x, straight_through(z, vectors))).mean()
        commitment = (weight * squared_distance(z, vectors.detach())).mean()
        codebook_loss = (weight * self.codebook.loss(z, vectors)).mean()
        if self.training and torch.is_grad_enabled():
            self.codebook.learn(z, codes, weight)
        self._last_terms = {"nll": nll.detach(), "commitment": commitment.detach()}
        return nll + codebook_loss + self.commitment * commitment

    @with_fit_options
    def fit(
        self,
        data: Any,
        labels: Any = None,
        *,
        grids: str | Path | None = None,
        grid_every: int = 1,
        **options: Unpack[FitKeywords],
    ) -> Self:
        """Train on data, and then count codes for the prior over them.

        Args:
            data: as for every generative model.
            labels: not used.
            grids: a folder for grids of images during training.
            grid_every: epochs between two grids.
            **options: see :class:`credo.training.FitOptions`.

        Returns:
            The model itself.
        """
        super().fit(data, labels, grids=grids, grid_every=grid_every, **options)
        order = data_.EpochOrder(data) if isinstance(data, DataLoader) else None
        try:
            return self.fit_prior(data)
        finally:
            if order is not None:
                order.restore()

    def fit_prior(self, data: Any) -> Self:
        """Count how often each place of the grid has each code in ``data``, rows by weight; done by :meth:`fit` too."""
        counts, total = torch.zeros(()), 0.0
        with torch.no_grad(), evaluation_mode(self):
            for batch in self._weighted_batches(data, _ROWS_AT_ONCE):
                codes, weight = self.codebook.nearest(self._vectors(batch.x)), batch.sample_weight
                counts = counts.to(self.device) + _counts(codes, self.codes, weight)
                total += len(codes) if weight is None else float(weight.sum())
        self.prior = ((counts + 1.0) / (total + self.codes)).to(self.dtype)
        self.grid = tuple(self.prior.shape[:-1])
        return self

    @torch.no_grad()
    def encode(self, x: Any) -> Tensor:
        """The codes of data, integers from 0 to K − 1, ``[N, ...]`` with the shape of the encoder's grid."""
        with evaluation_mode(self):
            return torch.cat([self.codebook.nearest(self._vectors(part)) for part in self._batches(x, _ROWS_AT_ONCE)])

    @torch.no_grad()
    def decode(self, codes: Any) -> Tensor:
        """E[x | e] for ``codes [N, ...]``, ``[N, ...]``."""
        checked = self._checked_codes(codes)
        with evaluation_mode(self):
            outputs = [self.decoder(self.codebook.look_up(part)) for part in checked.split(_ROWS_AT_ONCE)]
            return self.likelihood.predictive(torch.cat(outputs)[None]).mean

    def reconstruct(self, x: Any) -> Tensor:
        """E[x | e] at the codes of data, ``[N, ...]``."""
        return self.decode(self.encode(x))

    def sample(self, n: int = 1, seed: int | None = None) -> Tensor:
        """E[x | e] of ``n`` draws of codes from the prior, every place by itself, ``[n, ...]``."""
        if self.prior is None:
            raise InputError("there is no prior over codes to sample from yet: call fit(x), or fit_prior(x)")
        n, grid = check_integer(n, "n", minimum=1), self.prior.shape[:-1]
        with seeded(seed, self.device):
            codes = torch.multinomial(self.prior.view(-1, self.codes), n, replacement=True)
        return self.decode(codes.T.reshape(n, *grid))

    @torch.no_grad()
    def elbo(self, x: Any, *, seed: int | None = None) -> Tensor:
        """log p(x | e_k) + log p(k) of every datum in nats, ``[N]``, with a uniform p(k) before there is a prior."""
        found = []
        with evaluation_mode(self), seeded(check_seed(seed), self.device):
            for part in self._batches(x, _ROWS_AT_ONCE):
                observed = observe(part, self.likelihood)
                codes = self.codebook.nearest(self._vectors(observed))
                log_likelihood = self._log_likelihood(observed, self.codebook.look_up(codes))
                found.append(log_likelihood + self._log_prior(codes))
        return torch.cat(found)

    def perplexity(self, x: Any) -> float:
        """The perplexity of the codes of data, from 1 to K."""
        return perplexity(_counts(self.encode(x).flatten(), self.codes))

    def _vectors(self, x: Tensor) -> Tensor:
        """What the encoder outputs, ``[B, latent, ...]``."""
        z = self.encoder(x)
        if not isinstance(z, Tensor) or z.ndim < 2 or z.shape[:2] != (len(x), self.latent):
            found = list(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise InputError(
                f"the encoder must output a vector of size {self.latent}, or a grid of them, shape "
                f"[{len(x)}, {self.latent}, ...], got {found}"
            )
        return z.to(self.dtype)

    def _log_likelihood(self, x: Tensor, vectors: Tensor) -> Tensor:
        """log p(x | e) of every datum, ``[B]``."""
        return self.likelihood.log_prob(self.decoder(vectors), x)

    def _log_prior(self, codes: Tensor) -> Tensor:
        """log p(k) of codes ``[B, ...]``, summed over places, ``[B]``."""
        prior = self._uniform(codes.shape[1:]) if self.prior is None else self.prior
        places = prior.log().expand(len(codes), *prior.shape)
        return places.gather(-1, codes[..., None]).flatten(1).sum(1)

    def _uniform(self, grid: Sequence[int]) -> Tensor:
        """The uniform prior."""
        return torch.full((*grid, self.codes), 1.0 / self.codes, dtype=self.dtype, device=self.device)

    def _checked_codes(self, codes: Any) -> Tensor:
        found = torch.as_tensor(codes, device=self.device)
        if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
            raise InputError(f"codes must be integers as encode gives them, got {found.dtype}")
        if found.ndim == 0 or len(found) == 0 or (self.grid is not None and found.shape[1:] != self.grid):
            expected = ", ".join(["N", *map(str, ("...",) if self.grid is None else self.grid)])
            raise InputError(f"codes must have shape [{expected}] with N of 1 or more, got {list(found.shape)}")
        if not 0 <= int(found.min()) <= int(found.max()) < self.codes:
            raise InputError(f"codes must lie from 0 to {self.codes - 1}, got {int(found.min())} to {int(found.max())}")
        return found.long()

    def _check_values(self, x: Tensor) -> None:
        """Finite numbers; for a Bernoulli likelihood, between 0 and 1."""
        check_observable(x, self.likelihood)

    def _check_shapes(self, x: Tensor) -> None:
        """Vectors of the latent size, in one grid for all data, and an output that fits the data."""
        z = call_network("encoder", self._vectors, x)
        if self.grid is not None and z.shape[2:] != self.grid:
            raise InputError(f"all data must have the same grid of codes, {list(self.grid)}, got {list(z.shape[2:])}")
        output = call_network("decoder", self.decoder, self.codebook.look_up(self.codebook.nearest(z)))
        check_output(output, x, self.likelihood)

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The prior over codes must be as large as the tensor that fills it; the codes, no more than their vectors."""
        super()._check_sizes(config, tensors)
        io.check_sizes(config.get("codes"), tensors)
        if config.get("grid") is None:
            return
        sizes: list[Any] = [*config["grid"], config.get("codes")] if isinstance(config["grid"], list) else [None]
        if not all(isinstance(size, int) for size in sizes):
            raise LoadError("does not describe a grid of codes")
        io.check_sizes(sizes, tensors)
        filled = io.count_numbers(value for name, value in tensors.items() if name == "prior")
        if config.get("has_prior", True) and math.prod(sizes) != filled:
            raise LoadError(f"has a grid of another size than the prior in {TENSORS}")

    def _get_config(self) -> dict[str, object]:
        """The arguments that are not networks, and the shape of the grid of codes."""
        return {
            "latent": self.latent,
            "codes": self.codes,
            "likelihood": self.likelihood.get_config(),
            "commitment": self.commitment,
            "update": self.update,
            "decay": self.decay,
            "revive_after": self.revive_after,
            "grid": None if self.grid is None else list(self.grid),
            "has_prior": self.prior is not None,
        }

    @classmethod
    def _from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        """Build the model again, with room for a prior where it had one."""
        arguments = dict(config)
        grid, has_prior = arguments.pop("grid", None), arguments.pop("has_prior", True)
        model = super()._from_config(arguments, net, **overrides)
        if grid is not None:
            model.grid = tuple(check_integer(size, "grid", minimum=1) for size in grid)
            model.prior = model._uniform(model.grid) if has_prior else None
        return model

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """As for every module, and the prior of a model that has one into one that has not, or the other way round."""
        prior = state_dict.get(f"{prefix}prior")
        if prior is not None:
            self.prior = torch.empty_like(prior, device=self.device, dtype=self.dtype)
            self.grid = tuple(prior.shape[:-1])
        elif any(name.startswith(prefix) for name in state_dict):
            self.prior = None
        super()._load_from_state_dict(state_dict, prefix, *rest)


class _QuantizationTask(GenerativeTask[VQVAE]):
    """Reports the terms of the bound and the perplexity of the codes."""

    monitors = MappingProxyType({"elbo": 1})

    def __init__(self, model: VQVAE) -> None:
        super().__init__(model)
        self._before = (model.prior, model.grid)

    def setup(self, batch: data_.Batch) -> None:
        """Find the shape of the encoder's grid; a prior over earlier codes is dropped."""
        with torch.no_grad(), evaluation_mode(self.model):
            z = call_network("encoder", self.model._vectors, batch.x[:1])
        self.model.prior, self.model.grid = None, tuple(z.shape[2:])

    def undo_setup(self) -> None:
        """Restore the prior too."""
        super().undo_setup()
        self.model.prior, self.model.grid = self._before

    def check_device_count(self, devices: int) -> None:
        """Any number; the codebook has to know it, since a process group may exist that this training does not use."""
        super().check_device_count(devices)
        self.model.codebook.processes = devices

    def epoch_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """The terms, the bound with a uniform prior, and the perplexity of the codes of the epoch."""
        model = self.model
        assert model.grid is not None
        found = perplexity(model.codebook.used)
        model.codebook.used.zero_()
        elbo = -means["nll"] - math.prod(model.grid) * math.log(model.codes)
        return {**means, "elbo": elbo, "perplexity": found}

    def progress_text(self, metrics: Mapping[str, float]) -> str:
        """NLL, commitment, perplexity, and the held-out bound."""
        shown = (
            f"NLL {metrics['nll']:.4g}  commitment {metrics['commitment']:.3g}  perplexity {metrics['perplexity']:.1f}"
        )
        return f"{shown}  held-out ELBO {metrics['validation_elbo']:.5g}" if "validation_elbo" in metrics else shown

    def validation_step(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        """The bound per held-out datum."""
        return {"validation_elbo": float(self.model.elbo(held_out, seed=seed).mean())}


def straight_through(z: Tensor, vectors: Tensor) -> Tensor:
    """``vectors``, to the bit, with the gradient going to ``z`` as if they were it."""
    return vectors.detach() + (z - z.detach())


def _counts(codes: Tensor, size: int, weight: Tensor | None = None) -> Tensor:
    """How often each of ``size`` codes comes in ``codes [N, ...]``, place by place, ``[..., size]``.

    With ``weight [N]`` every datum counts that often.
    """
    places = codes.reshape(len(codes), -1)
    offsets = size * torch.arange(places.shape[1], device=codes.device)
    weights = None if weight is None else weight.repeat_interleave(places.shape[1]).double()
    counts = torch.bincount((places + offsets).flatten(), weights, minlength=places.shape[1] * size)
    return counts.view(*codes.shape[1:], size)
