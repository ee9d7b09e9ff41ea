r"""SNGP: a network with bounded spectral norms and a Gaussian process, by random features, as its last layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal as TorchNormal
from typing_extensions import Unpack, override

from credo import data as data_
from credo._arguments import check_integer, check_positive
from credo.curvature import check_outputs, output_factors
from credo.errors import InputError, LoadError, UnsupportedError
from credo.functional import Forward
from credo.likelihoods import Gaussian, Likelihood
from credo.methods._last_layer import FeatureReplica, LastLayerMethod, find_last_linear
from credo.methods._spectral_norm import SpectralBound, bounded_weights
from credo.posteriors.last_layer import OutputPrecisionGaussian
from credo.priors import Prior, to_config
from credo.selection import check_network
from credo.training.options import FitKeywords, FitOptions, with_fit_options
from credo.training.supervised import SupervisedTask, Terms


class RandomFourierFeatures(nn.Module):
    r"""φ(h) = √(2/M)·cos(ω·h/ℓ + b) with ω ~ N(0, I) and b ~ U(0, 2π), drawn once and kept as buffers.

    E[φ(h)ᵀφ(h')] = exp(−‖h − h'‖²/(2ℓ²)), the kernel of a Gaussian process, with a standard error of at most 1/√M.

    Args:
        inputs: D, the number of inputs.
        features: M, the number of features.
        length_scale: ℓ.

    Reference: A. Rahimi, B. Recht, "Random features for large-scale kernel machines", NeurIPS 2007.
    """

    frequency: Tensor
    phase: Tensor

    def __init__(self, inputs: int, features: int, length_scale: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("frequency", torch.randn(features, inputs) / length_scale)
        self.register_buffer("phase", torch.rand(features) * 2.0 * math.pi)

    def forward(self, h: Tensor) -> Tensor:
        """The features.

        Args:
            h: ``[..., D]``.

        Returns:
            ``[..., M]``.
        """
        return math.sqrt(2.0 / len(self.phase)) * F.linear(h, self.frequency, self.phase).cos()


class SNGP(LastLayerMethod):
    r"""A network that keeps distances, with a Gaussian process on its last hidden layer h(x).

        f_k(x) = β_kᵀφ(h(x)),    φ(h) = √(2/M)·cos(ω·h/ℓ + b),    β_k ~ N(0, s²)

    φ are M fixed random features, so that f is approximately a Gaussian process with kernel s²·exp(−‖h − h'‖²/(2ℓ²)):
    far from the data, where the kernel to all of them is 0, the uncertainty is that of the prior. So that h does not
    stretch the distances between inputs, the weight matrix W of every hidden linear and convolution layer is scaled
    to a spectral norm of at most c after every step.

    :meth:`fit` trains all weights to their maximum a posteriori, then computes the Laplace approximation of β in one
    pass over the data, with one precision matrix per output,

        q(β_k) = N(β̂_k, P_k⁻¹),    P_k = I/s² + Σ_n λ_nk·φ_n·φ_nᵀ,

    where λ_nk is the curvature of −log p(y_n | f): p_k(1 − p_k) for classes, 1/σ² for Gaussian noise. In the latter
    case β̂ is solved for exactly at the end, and given h the posterior is that of Bayesian linear regression.

    The network that is passed is not changed: ``model.net`` is a copy in which
    ``nn.Sequential(RandomFourierFeatures(D, M), nn.Linear(M, K, bias=False))`` takes the place of the last
    ``nn.Linear``, and that copy is trained. The Gaussian process has mean 0: center real-valued targets.

    Only ``nn.Linear`` and ``nn.Conv1d`` to ``nn.Conv3d`` are bounded, convolutions as matrices ``[out, in·kernel]``,
    whose norm may be smaller than that of the convolution; the scales of batch norm are not. Distances are kept from
    below too where layers are residual, x + g(x), with c < 1. Networks without residual layers can only shrink
    distances if c < 1, and may need a larger c to fit. In a training loop of your own nothing is scaled.

    Args:
        net: any ``nn.Module`` whose output is that of an ``nn.Linear``.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        prior: p(β), a :class:`credo.Normal`; its scale is s.
        features: M; the covariances hold K·M² numbers for K outputs.
        length_scale: ℓ, a distance between the inputs of the last layer.
        spectral_bound: c; ``None``: no bound.
        layer: the name of the layer to replace, such as ``"head"``; ``None``: the ``nn.Linear`` registered last.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Example:
        >>> model = credo.SNGP(net, credo.Categorical()).fit((x, y), epochs=50)
        >>> model.predict(x_new).epistemic
        >>> model.predict(x_new, samples="moments").entropy

    Reference: J. Liu, Z. Lin, S. Padhy, D. Tran, T. Bedrax-Weiss, B. Lakshminarayanan, "Simple and principled
    uncertainty estimation with deterministic deep learning via distance awareness", NeurIPS 2020.
    """

    posterior: OutputPrecisionGaussian

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        *,
        features: int = 1024,
        length_scale: float = 1.0,
        spectral_bound: float | None = 0.95,
        layer: str | None = None,
        forward: Forward | None = None,
    ) -> None:
        replaced = find_last_linear(check_network(net), layer)
        check_integer(features, "features", minimum=1)
        check_positive(length_scale, "length_scale")
        copied, path = _with_random_features(net, replaced, features, length_scale)
        super().__init__(copied, likelihood, prior, path, forward)
        self._replaced, self._count, self._length_scale = replaced, features, length_scale
        self.posterior = OutputPrecisionGaussian(copied, list(self._priors), self._prior_precision())
        bound = None if spectral_bound is None else check_positive(spectral_bound, "spectral_bound")
        self._spectral = None if bound is None else SpectralBound(copied, bounded_weights(copied, path), bound)
        self._is_fitting = False

    @override
    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        return self._point_terms(x, y, sample_weight)

    @override
    def kl(self) -> Tensor:
        """−log p(β) of the last layer's weights, which training minimizes; the KL of the posterior is in :meth:`elbo`.

        Returns:
            A scalar in nats, differentiable.
        """
        penalties = [
            -prior.log_prob(self.net.get_parameter(name).to(prior.mean.dtype)).sum()
            for name, prior in self._priors_here.items()
        ]
        return torch.stack(penalties).sum()

    @with_fit_options
    def fit(self, data: Any, **options: Unpack[FitKeywords]) -> Self:
        """Train the network to its maximum a posteriori, then compute the posterior of the last layer.

        Args:
            data: a DataLoader, a Dataset, or a tuple of tensors or arrays ``(x, y)`` or ``(x, y, sample_weight)``,
                rows along dim 0.
            **options: see :class:`credo.training.FitOptions`.

        Returns:
            The model itself.

        Raises:
            InputError: data or options do not match the model; it is unchanged.
            DivergenceError: the loss became NaN or infinite; the weights are as after the last good epoch, and if they
                changed there is no posterior.
        """
        posterior = self.posterior
        precision, weights = posterior.precision, {name: w.clone() for name, w in posterior.mean().items()}
        posterior.precision, self._is_fitting = self._prior_precision().diag_embed(), True
        try:
            super().fit(data, **options)
            if self._spectral is not None:
                self._spectral.project_exactly()
            self._fit_posterior(data, FitOptions.from_keywords(options).batch_size)
        except BaseException:
            if all(torch.equal(w, weights[name]) for name, w in posterior.mean().items()):
                posterior.precision = precision
            raise
        finally:
            self._is_fitting = False
        return self

    @torch.no_grad()
    def _fit_posterior(self, data: Any, batch_size: int) -> None:
        """Sum up the precisions; for Gaussian noise, move the weights to the posterior mean."""
        features = FeatureReplica(self.net, self._forward, self._layer, own_buffers=True)
        (prior,), (mean,) = self._priors.values(), self.posterior.mean().values()
        precision = self._prior_precision().diag_embed()
        slope = self._prior_precision() * (prior.mean.to(mean.device) - mean).double()
        is_linear = isinstance(self.likelihood, Gaussian) and self.likelihood.noise != "heteroscedastic"
        for x, y, sample_weight in data_.batches(data, batch_size, self.device, self.dtype):
            call = features(x)
            check_outputs(self.likelihood, call.output, y)
            phi = call.features.flatten(0, -2).double()
            factors = output_factors(self.likelihood, call.output, y, sample_weight)
            curvature = factors.double().square().sum(0).reshape(-1, len(mean))
            for total, own in zip(precision, curvature.mT, strict=True):
                total.addmm_(phi.mT * own, phi)
            if is_linear:
                slope += (curvature * (y - call.output).reshape(-1, len(mean)).double()).mT @ phi
        self.posterior.precision = precision
        if is_linear:
            self.posterior.shift(self.posterior.solve(slope))

    def _prior_precision(self) -> Tensor:
        """1/s² of every weight of the last layer, ``[K, M]``, in float64."""
        ((name, prior),) = self._priors.items()
        if not isinstance(prior, TorchNormal):
            raise UnsupportedError(f"SNGP needs a credo.Normal prior for {name!r}, got a {type(prior).__name__}")
        weight = self.net.get_parameter(name)
        return prior.scale.to(weight.device).double().square().reciprocal().expand(weight.shape)

    @override
    def elbo(self, data: Any, samples: int = 10, seed: int | None = None) -> float:
        """E_q[log p(D | β)] − KL(q ‖ p) with the KL in closed form, given the features.

        Args:
            data: as for :meth:`fit`.
            samples: number of draws for the expectation.
            seed: for the draws; ``None``: from torch's random state.

        Returns:
            The bound in nats, over all of ``data``.
        """
        divergence = float(self.posterior.kl_to(self._priors_here).detach())
        return super().elbo(data, samples, seed) + float(self.kl().detach()) - divergence

    def _predictor(self, samples: int | str, seed: int | None) -> Any:
        """Without draws while training, as the covariance is only known at its end."""
        if samples == 0 or self._is_fitting:
            return super()._predictor(0, seed)
        diagonal = self.posterior.precision.diagonal(dim1=1, dim2=2)  # any row of data adds to it
        if torch.equal(diagonal, self._prior_precision().to(diagonal)):
            raise InputError("there is no posterior before fit: call fit(data), or fit(data, epochs=0) after training")
        return super()._predictor(samples, seed)

    def _training_task(self) -> _ProjectingTask:
        return _ProjectingTask(self)

    def _describe_parameter(self, name: str) -> str:
        return f"Gaussian process ({self._count} random features, prior {self._priors[name]!r})"

    @override
    def extra_repr(self) -> str:
        """The prior, the features and the bound.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        bound = None if self._spectral is None else self._spectral.bound
        return f"prior={self.prior!r}, length_scale={self._length_scale:g}, spectral_bound={bound}"

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        super()._check_sizes(config, tensors)
        held = [len(value) for name, value in tensors.items() if name.endswith("phase") and value.dim()]
        if config.get("features") not in held:
            raise LoadError(f"has {config.get('features')!r:.100} random features, but no tensor of that many phases")

    def _own_config(self) -> dict[str, object]:
        return {
            "prior": to_config(self.prior),
            "features": self._count,
            "length_scale": self._length_scale,
            "spectral_bound": None if self._spectral is None else self._spectral.bound,
            "layer": self._replaced,
        }


class _ProjectingTask(SupervisedTask[SNGP]):
    """Bounds the spectral norms after every step."""

    def on_batch_end(self, step: int) -> None:
        """Scale down the weights that exceed the bound."""
        if self.model._spectral is not None:
            self.model._spectral.project()


def _with_random_features(net: nn.Module, path: str, features: int, length_scale: float) -> tuple[nn.Module, str]:
    """A copy of the network with random features in front of a new last layer, and the path of that layer."""
    copied = copy.deepcopy(net)
    old = copied.get_submodule(path)
    assert isinstance(old, nn.Linear)
    new = nn.Sequential(
        RandomFourierFeatures(old.in_features, features, length_scale),
        nn.Linear(features, old.out_features, bias=False),
    ).to(old.weight)
    if not path:
        return new, "1"
    parent, _, key = path.rpartition(".")
    copied.get_submodule(parent).register_module(key, new)
    return copied, f"{path}.1"
