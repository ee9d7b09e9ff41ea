"""The vector-quantized variational auto-encoder (van den Oord, Vinyals & Kavukcuoglu 2017)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from credo import data as data_
from credo import io
from credo._arguments import check_integer, check_non_negative, check_option, check_positive
from credo._tensors import TENSORS
from credo.errors import InputError, LoadError
from credo.generative import decoders
from credo.generative.base import EncoderDecoderModel
from credo.generative.codebook import (
    Codebook,
    GradientCodebook,
    MovingAverageCodebook,
    count_codes,
    perplexity,
    squared_distance,
    straight_through,
)
from credo.generative.networks import GRID_PRESETS, call_network, encoder_and_decoder, require_plain_networks
from credo.likelihoods import Likelihood
from credo.seeding import check_seed, seeded
from credo.training.generative import GenerativeTask, evaluation_mode

_BATCH_SIZE = 1024


class VQVAE(EncoderDecoderModel):
    r"""Discrete latent variables: each vector that the encoder outputs is replaced by the nearest of K codes.

        z = f(x),    k = argmin_k ‖z − e_k‖,    −log p(x | e_k) + ‖sg[z] − e_k‖² + β ‖z − sg[e_k]‖²

    sg stops gradients. The choice of a code has no gradient; that of the decoder's input is passed to the encoder's
    output unchanged (*straight through*). The second term moves codes to the vectors nearest to them; with
    ``update="ema"`` moving averages do that instead. The third, the commitment, keeps the encoder near its codes. Both
    are sums over the positions of a grid, as the log likelihood is over the numbers of a datum; the paper uses means
    over positions, with which the encoder of large images drifts away from its codes. Codes that are no longer used
    restart, see :class:`~credo.generative.codebook.Codebook`.

    The encoder outputs ``[B, latent, ...]``: a grid of vectors for images, or one vector, ``[B, latent]``; codes have
    the shape of that grid. With a prior p(k) over codes, log p(x | e_k) + log p(k) ≤ log p(x) is the bound. The prior
    is uniform during training. Then it is a categorical distribution for each position, from the counts of codes in the
    training data plus one. Positions are independent under it, so samples are much worse than reconstructions; the
    paper fits an autoregressive network to the codes instead, which :meth:`encode` returns. A checkpoint is written
    before codes are counted and has no prior: call :meth:`fit_prior` on a model loaded from one.

    A Bernoulli likelihood takes gray values as :class:`VAE` does. Grids show each datum next to its reconstruction.
    ``history`` contains the means of ``nll`` = −log p(x | e_k), ``commitment`` = ‖z − e_k‖² and ``elbo`` of each epoch,
    and the ``perplexity`` of the codes used in it: K if all are used evenly, 1 if only one is used.

    Args:
        encoder: a network, or the name of a preset, which needs ``shape``: ``"residual"``, that of the paper, with a
            grid of a quarter of the image's height and width; ``"dense"`` or ``"convolutional"``, with one vector.
        decoder: a network from ``[B, latent, ...]`` to the parameters of the likelihood; ``None``: that of the preset.
        latent: the dimension of a code's vector.
        codes: K.
        shape: of a datum, such as ``(1, 28, 28)``; only for a preset.
        hidden: widths of a preset's hidden layers, from data to code, or the channels of a convolutional one;
            ``None``: those of the preset.
        likelihood: p(x | e), such as ``credo.Gaussian(noise=0.1)``; ``None``: ``credo.Bernoulli()``.
        commitment: β.
        update: how the codes are learned, ``"ema"`` or ``"loss"``.
        decay: of the moving averages.
        revive_after: a code restarts at a random encoder output after ``revive_after``·K outputs for which it was not
            used; ``None``: never.

    Attributes:
        latent: the dimension of a code's vector.
        codebook: the codes; ``codebook.vectors`` has shape ``[K, latent]``.
        likelihood: p(x | e).
        prior: the probabilities of codes, ``[..., K]`` with the shape of the grid first; ``None`` until counted.

    Raises:
        InputError: an argument has a wrong type or value.

    References:
        A. van den Oord, O. Vinyals, K. Kavukcuoglu. Neural discrete representation learning. NeurIPS 2017.
        arXiv:1711.00937.

    Example:
        >>> x = torch.rand(40, 1, 8, 8)
        >>> model = VQVAE("residual", latent=4, codes=16, shape=(1, 8, 8), hidden=(4, 8)).fit(x, epochs=2)
        >>> model.encode(x).shape, model.sample(5).shape
        (torch.Size([40, 2, 2]), torch.Size([5, 1, 8, 8]))
    """

    prior: Tensor | None
    _grid: tuple[int, ...] | None = None
    """The shape of the encoder's grid, once there are data."""

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
        check_option(update, "update", ("ema", "loss"))
        commitment, decay = check_non_negative(commitment, "commitment"), check_non_negative(decay, "decay")
        if decay >= 1.0:
            raise InputError(f"decay must be a number of at least 0 and below 1, got {decay!r}")
        require_plain_networks(encoder=encoder, decoder=decoder)
        likelihood = decoders.choose_likelihood(decoder, likelihood)
        latent, codes = check_integer(latent, "latent", minimum=1), check_integer(codes, "codes", minimum=2)
        revive_after = None if revive_after is None else check_positive(revive_after, "revive_after")
        encoder, decoder = encoder_and_decoder(
            encoder,
            decoder,
            shape=shape,
            code=latent,
            latent=latent,
            hidden=hidden,
            likelihood=likelihood,
            presets=GRID_PRESETS,
        )
        decoders.check_decoder(decoder, likelihood)
        super().__init__(encoder=encoder, decoder=decoder)
        self.likelihood = likelihood
        self.latent, self._n_codes, self._commitment = latent, codes, commitment
        self._update, self._decay, self._revive_after = update, decay, revive_after
        self.codebook: Codebook = (
            MovingAverageCodebook(codes, latent, revive_after, decay)
            if update == "ema"
            else GradientCodebook(codes, latent, revive_after)
        )
        self.likelihood.to(self.device)
        self.codebook.to(self.device, self.dtype)
        self.register_buffer("prior", None)

    def fit_prior(self, data: Any) -> Self:
        """Estimate the prior from counts of codes per position, with rows weighted; :meth:`fit` does this at its end.

        Args:
            data: as for :meth:`fit`.

        Returns:
            The model itself.
        """
        counts, total = torch.zeros(()), 0.0
        with torch.no_grad(), evaluation_mode(self):
            for batch in self._weighted_batches(data, _BATCH_SIZE):
                codes, weight = self.codebook.nearest(self._vectors(batch.x)), batch.sample_weight
                counts = counts.to(self.device) + count_codes(codes, self._n_codes, weight)
                total += len(codes) if weight is None else float(weight.sum())
        self.prior = ((counts + 1.0) / (total + self._n_codes)).to(self.dtype)
        self._grid = tuple(self.prior.shape[:-1])
        return self

    @torch.no_grad()
    def encode(self, x: Any) -> Tensor:
        """The codes of data.

        Args:
            x: data ``[N, ...]``, or a Dataset or DataLoader.

        Returns:
            Integers from 0 to K − 1, ``[N, ...]`` with the shape of the encoder's grid.
        """
        with evaluation_mode(self):
            return torch.cat([self.codebook.nearest(self._vectors(part)) for part in self._batches(x, _BATCH_SIZE)])

    @torch.no_grad()
    def decode(self, codes: Any) -> Tensor:
        """E[x | e].

        Args:
            codes: integers from 0 to K − 1, ``[N, ...]`` with the shape of the encoder's grid.

        Returns:
            Means ``[N, ...]``.
        """
        checked = self.codebook.check_codes(codes, self._grid)
        with evaluation_mode(self):
            outputs = [self.decoder(self.codebook.look_up(part)) for part in checked.split(_BATCH_SIZE)]
            return self.likelihood.predictive(torch.cat(outputs)[None]).mean

    @override
    def reconstruct(self, x: Any) -> Tensor:
        return self.decode(self.encode(x))

    def sample(self, n: int = 1, seed: int | None = None) -> Tensor:
        """E[x | e] of draws of codes from the prior, independent at each position.

        Args:
            n: number of samples.
            seed: makes the draws reproducible; ``None``: torch's random state is used.

        Returns:
            Samples ``[n, ...]``.
        """
        if self.prior is None:
            raise InputError("there is no prior over codes to sample from yet: call fit(x), or fit_prior(x)")
        n, grid = check_integer(n, "n", minimum=1), self.prior.shape[:-1]
        with seeded(seed, self.device):
            codes = torch.multinomial(self.prior.view(-1, self._n_codes), n, replacement=True)
        return self.decode(codes.T.reshape(n, *grid))

    @torch.no_grad()
    def elbo(self, x: Any, *, seed: int | None = None) -> Tensor:
        """The bound log p(x | e_k) + log p(k) of each datum, with a uniform p(k) if there is no prior yet.

        Args:
            x: data ``[N, ...]``, or a Dataset or DataLoader.
            seed: makes binary draws of gray values reproducible; ``None``: a random seed.

        Returns:
            Bounds in nats, ``[N]``.
        """
        found = []
        with evaluation_mode(self), seeded(check_seed(seed), self.device):
            for part in self._batches(x, _BATCH_SIZE):
                observed = decoders.binarize(part, self.likelihood)
                codes = self.codebook.nearest(self._vectors(observed))
                log_likelihood = self._log_likelihood(observed, self.codebook.look_up(codes))
                found.append(log_likelihood + self._log_prior(codes))
        return torch.cat(found)

    def perplexity(self, x: Any) -> float:
        """The perplexity of the codes of data.

        Args:
            x: data ``[N, ...]``, or a Dataset or DataLoader.

        Returns:
            A number from 1, for a single code, to K, for even use of all codes.
        """
        return perplexity(count_codes(self.encode(x).flatten(), self._n_codes))

    def _training_task(self) -> _QuantizationTask:
        return _QuantizationTask(self)

    def _after_fit(self, data: Any) -> None:
        order = data_.EpochOrder(data) if isinstance(data, DataLoader) else None
        try:
            self.fit_prior(data)
        finally:
            if order is not None:
                order.restore()

    def _loss(self, x: Tensor, weight: Tensor, n_data: int | None) -> Tensor:
        """In training mode the batch updates the codebook, like the running statistics of batch norm."""
        x = decoders.binarize(x, self.likelihood)
        z = self._vectors(x)
        codes = self.codebook.nearest(z)
        vectors = self.codebook.look_up(codes)
        nll = -(weight * self._log_likelihood(x, straight_through(z, vectors))).mean()
        commitment = (weight * squared_distance(z, vectors.detach())).mean()
        codebook_loss = (weight * self.codebook.loss(z, vectors)).mean()
        if self.training and torch.is_grad_enabled():
            self.codebook.update(z, codes, weight)
        self._last_terms = {"nll": nll.detach(), "commitment": commitment.detach()}
        return nll + codebook_loss + self._commitment * commitment

    def _vectors(self, x: Tensor) -> Tensor:
        """The output of the encoder, ``[B, latent, ...]``."""
        z = self.encoder(x)
        if not isinstance(z, Tensor) or z.ndim < 2 or z.shape[:2] != (len(x), self.latent):
            found = list(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise InputError(
                f"the encoder must output a vector of size {self.latent}, or a grid of them, shape "
                f"[{len(x)}, {self.latent}, ...], got {found}"
            )
        return z.to(self.dtype)

    def _log_likelihood(self, x: Tensor, vectors: Tensor) -> Tensor:
        """log p(x | e) of each datum, ``[B]``."""
        return self.likelihood.log_prob(self.decoder(vectors), x)

    def _log_prior(self, codes: Tensor) -> Tensor:
        """log p(k) of codes ``[B, ...]``, summed over positions, ``[B]``."""
        prior = self._uniform_prior(codes.shape[1:]) if self.prior is None else self.prior
        log_prior = prior.log().expand(len(codes), *prior.shape)
        return log_prior.gather(-1, codes[..., None]).flatten(1).sum(1)

    def _uniform_prior(self, grid: Sequence[int]) -> Tensor:
        return torch.full((*grid, self._n_codes), 1.0 / self._n_codes, dtype=self.dtype, device=self.device)

    def _check_values(self, x: Tensor) -> None:
        decoders.check_values(x, self.likelihood)

    def _check_shapes(self, x: Tensor) -> None:
        z = call_network("encoder", self._vectors, x)
        if self._grid is not None and z.shape[2:] != self._grid:
            raise InputError(f"all data must have the same grid of codes, {list(self._grid)}, got {list(z.shape[2:])}")
        output = call_network("decoder", self.decoder, self.codebook.look_up(self.codebook.nearest(z)))
        decoders.check_output(output, x, self.likelihood)

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The sizes of the codebook and of the prior must match the tensors."""
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
        return {
            "latent": self.latent,
            "codes": self._n_codes,
            "likelihood": self.likelihood.get_config(),
            "commitment": self._commitment,
            "update": self._update,
            "decay": self._decay,
            "revive_after": self._revive_after,
            "grid": None if self._grid is None else list(self._grid),
            "has_prior": self.prior is not None,
        }

    @classmethod
    def _from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        """Build the model, with an empty prior if it had one."""
        arguments = dict(config)
        grid, has_prior = arguments.pop("grid", None), arguments.pop("has_prior", True)
        model = super()._from_config(arguments, net, **overrides)
        if grid is not None:
            model._grid = tuple(check_integer(size, "grid", minimum=1) for size in grid)
            model.prior = model._uniform_prior(model._grid) if has_prior else None
        return model

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Also load a prior into a model that has none yet, and drop the prior if the state has none."""
        prior = state_dict.get(f"{prefix}prior")
        if prior is not None:
            self.prior = torch.empty_like(prior, device=self.device, dtype=self.dtype)
            self._grid = tuple(prior.shape[:-1])
        elif any(name.startswith(prefix) for name in state_dict):
            self.prior = None
        super()._load_from_state_dict(state_dict, prefix, *rest)


class _QuantizationTask(GenerativeTask[VQVAE]):
    """Reports the terms of the bound and the perplexity of the codes."""

    monitors = MappingProxyType({"elbo": 1})

    def __init__(self, model: VQVAE) -> None:
        super().__init__(model)
        self._before = (model.prior, model._grid)

    def setup(self, batch: data_.Batch) -> None:
        """Find the shape of the encoder's grid; drop a prior over earlier codes."""
        with torch.no_grad(), evaluation_mode(self.model):
            z = call_network("encoder", self.model._vectors, batch.x[:1])
        self.model.prior, self.model._grid = None, tuple(z.shape[2:])

    def undo_setup(self) -> None:
        super().undo_setup()
        self.model.prior, self.model._grid = self._before

    def check_device_count(self, devices: int) -> None:
        """Accept any number; the codebook needs it, since a process group may exist that this training does not use."""
        super().check_device_count(devices)
        self.model.codebook.n_processes = devices

    def epoch_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """The terms, the bound with a uniform prior, and the perplexity of the codes of the epoch."""
        model = self.model
        assert model._grid is not None
        found = perplexity(model.codebook.used)
        model.codebook.used.zero_()
        elbo = -means["nll"] - math.prod(model._grid) * math.log(model._n_codes)
        return {**means, "elbo": elbo, "perplexity": found}

    def progress_text(self, metrics: Mapping[str, float]) -> str:
        shown = (
            f"NLL {metrics['nll']:.4g}  commitment {metrics['commitment']:.3g}  perplexity {metrics['perplexity']:.1f}"
        )
        return f"{shown}  held-out ELBO {metrics['validation_elbo']:.5g}" if "validation_elbo" in metrics else shown

    def validation_step(self, held_out: Dataset[Any] | DataLoader[Any], seed: int) -> dict[str, float]:
        return {"validation_elbo": float(self.model.elbo(held_out, seed=seed).mean())}
