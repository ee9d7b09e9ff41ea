r"""The Laplace approximation: a Gaussian posterior whose precision is the curvature at the maximum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.distributions import Normal as TorchNormal
from typing_extensions import Unpack, override

from credo import data as data_
from credo._arguments import check_bool, check_integer, check_option
from credo._devices import at_least_float32
from credo._embeddings import without_padding
from credo.curvature import GaussNewton, NetworkGradients
from credo.curvature.network import is_factorable
from credo.errors import InputError, UnsupportedError
from credo.functional import Carrier, Forward, Replica
from credo.likelihoods import Likelihood
from credo.methods._last_layer import check_is_last
from credo.methods._linearized import LinearizedPredictor
from credo.methods._noise_hooks import noisy_layers
from credo.methods._planning import plan_estimators
from credo.methods._residual_noise import learn_untrained_noise
from credo.methods.base import check_samples
from credo.methods.network import NetworkMethod, NetworkPredictor
from credo.posteriors.kronecker import KroneckerPrecision
from credo.posteriors.precision import PrecisionGaussian
from credo.posteriors.precision_structures import DiagonalPrecision, FullPrecision, LowRankPrecision
from credo.priors import AdaptiveNormal, Normal, Prior, check_one_scale_per_module, move_prior, resolve, to_config
from credo.selection import as_json, match_parameters, select, tied_parameters
from credo.training.options import FitKeywords, FitOptions, with_fit_options
from credo.training.supervised import Terms

_MAX_UPDATES = 200
_TOLERANCE = 1e-9


class Laplace(NetworkMethod):
    r"""A Gaussian posterior around the maximum a posteriori weights w*, by a quadratic expansion of the log posterior.

        q(w) = N(w*, (H + diag(δ))⁻¹),    H = Σ_n J_nᵀ·Λ_n·J_n

    H is the generalized Gauss–Newton matrix: J_n is the Jacobian of the network's output for row n, Λ_n the Hessian of
    −log p(y_n | f) in the output; δ is the precision 1/s² of the prior N(m, s²).

    :meth:`fit` trains the network to its maximum, as :class:`credo.MAP` does, and then computes H in one pass over the
    data. For a network that is trained already, ``fit(data, epochs=0)`` leaves its weights as they are; a noise level
    that is to be learned, and was not yet, becomes that of its residuals.

    Predictions are those of the network linearized at w*, whose outputs are Gaussian with covariance J·(H + δ)⁻¹·Jᵀ.
    For a Gaussian likelihood the result is exact, without draws: one Gaussian for every output, with its own epistemic
    part; covariances between the outputs of a row are left out. For other likelihoods the outputs of each row are
    integrated out with ``samples`` quasi-random points of their exact means and variances, the same for all seeds; rows
    with more than 256 outputs use ``samples`` random functions.

    Args:
        net: any ``nn.Module``; it is not rewritten.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        prior: p(w), a :class:`credo.Normal` with one scale per parameter tensor, or a mapping from name patterns to
            them. :class:`credo.AdaptiveNormal`: the scale of every layer maximizes the evidence times its hyperprior
            after training; calling ``fit`` again trains with that scale.
        structure: what is kept of H. ``"full"``: all of it, for up to 10,000 parameters. ``"kron"``: a Kronecker
            product for every Linear, Conv1d and Conv2d layer, the diagonal for other parameters. ``"diag"``: the
            diagonal. ``"low_rank"``: the ``rank`` largest eigenvalues and their eigenvectors.
        parameters: the weights that are uncertain: ``"all"`` trainable ones but the affine parameters of normalization
            layers; ``"last_layer"``, the last module that holds any of those; or a name pattern, or several. The prior
            is put on these only.
        rank: the number of eigenvectors of ``"low_rank"``.
        linearized: predict with the linearized network; ``False``: with the network itself, under drawn weights.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Example:
        >>> model = credo.Laplace(net, credo.Categorical()).fit((x, y), epochs=10)
        >>> model.predict(x_new).epistemic
        >>> credo.Laplace(trained, parameters="last_layer", structure="full").fit((x, y), epochs=0)

    References: D. J. C. MacKay, "A practical Bayesian framework for backpropagation networks", Neural Computation 1992.
    E. Daxberger, A. Kristiadi, A. Immer, R. Eschenhagen, M. Bauer, P. Hennig, "Laplace redux", NeurIPS 2021.
    """

    posterior: PrecisionGaussian
    _derived = frozenset({"_centers"})
    _centers: dict[str, Tensor]

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        *,
        structure: str = "kron",
        parameters: str | Sequence[str] = "all",
        rank: int = 20,
        linearized: bool = True,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(net, likelihood, forward)
        if any(isinstance(module, Carrier) for module in self.net.modules()):
            raise UnsupportedError(
                "the curvature is computed row by row, but the network carries a state from one minibatch to the next; "
                "pass the network inside CarriedState, forward=lambda net, x: net(x)[0], and whole sequences as rows"
            )
        self.prior: Prior = Normal(0.0, 1.0) if prior is None else prior
        self._structure = check_option(structure, "structure", ("full", "kron", "diag", "low_rank"))
        self._rank = check_integer(rank, "rank", minimum=1)
        self._linearized = check_bool(linearized, "linearized")
        self._patterns = parameters
        names = _choose(net, parameters)
        self._priors = resolve(self.prior, {name: net.get_parameter(name).shape for name in names})
        precisions = [_prior_precision(name, prior) for name, prior in self._priors.items()]
        check_one_scale_per_module(self._priors)
        self.posterior = self._build_posterior(names, precisions)
        self._is_fitting = False
        self._follow_parameters()

    def _build_posterior(self, names: list[str], precisions: list[float]) -> PrecisionGaussian:
        if self._structure == "low_rank":
            return LowRankPrecision(self.net, names, precisions, self._rank)
        if self._structure == "full":
            return FullPrecision(self.net, names, precisions)
        kind = DiagonalPrecision if self._structure == "diag" else KroneckerPrecision
        return kind(self.net, names, precisions)

    def _inspect(self, x: Any, training: bool = False) -> None:
        if training not in self._inspected and self._patterns == "last_layer":
            check_is_last(self.net, self._forward, _module(self.posterior.names()[-1]), x)
        super()._inspect(x, training)

    @override
    def terms(self, x: Any, y: Tensor, sample_weight: Tensor | None = None) -> Terms:
        return self._point_terms(x, y, sample_weight)

    @override
    def kl(self) -> Tensor:
        """−log p(w) of the network's weights, which training minimizes; for the KL of the posterior see :meth:`elbo`.

        Returns:
            A scalar in nats, differentiable.
        """
        total: Tensor = torch.zeros((), device=self.device, dtype=at_least_float32(self.dtype))
        for name, delta in zip(self._centers, self.posterior.prior_precision, strict=True):
            offset = self._offset(name)
            total = total + (0.5 * delta).to(offset.dtype) * offset.square().sum()
            total = total + (0.5 * offset.numel() * (math.log(2.0 * math.pi) - delta.log())).to(offset.dtype)
        return total

    def _offset(self, name: str) -> Tensor:
        """w − m of one tensor, differentiable; 0 for a vector for padding, which is no parameter."""
        center = self._centers[name]
        return without_padding(
            self.net.get_parameter(name).to(center.dtype) - center, self.posterior._padding.get(name)
        )

    @with_fit_options
    def fit(self, data: Any, **options: Unpack[FitKeywords]) -> Self:
        """Train the network to its maximum a posteriori, then compute the curvature there.

        Args:
            data: a DataLoader, a Dataset, or a tuple of tensors or arrays ``(x, y)`` or ``(x, y, sample_weight)``,
                rows along dim 0.
            **options: see :class:`credo.training.FitOptions`; ``epochs=0`` keeps the weights as they are.

        Returns:
            The model itself.

        Raises:
            InputError: data or options do not match the model; it is unchanged.
            DivergenceError: the loss became NaN or infinite; the weights are as after the last good epoch, and if they
                changed there is no posterior.
        """
        chosen, weights = FitOptions.from_keywords(options), {n: w.clone() for n, w in self.posterior.mean().items()}
        before, self._is_fitting = self.posterior.clear(), True
        try:
            super().fit(data, **options)
            if chosen.epochs == 0:
                learn_untrained_noise(self, data_.batches(data, chosen.batch_size, self.device, self.dtype))
            self._fit_posterior(data, chosen.batch_size)
        except BaseException:
            if all(torch.equal(w, weights[name]) for name, w in self.posterior.mean().items()):
                self.posterior.restore(before)
            raise
        finally:
            self._is_fitting = False
        return self

    def _fit_posterior(self, data: Any, batch_size: int) -> None:
        """Compute the curvature at the network's weights, and the scales of an adaptive prior."""

        def batches() -> Any:
            return data_.batches(data, batch_size, self.device, self.dtype)

        network = self._gradients(next(iter(batches())).x)
        self.posterior.fit(GaussNewton(network, self.likelihood, batches))
        if any(isinstance(prior, AdaptiveNormal) for prior in self._priors.values()):
            self._update_prior("layer", adaptive=True)

    def _gradients(self, x: Any) -> NetworkGradients:
        """Row gradients by the layers of the network, found on a batch; by those of the posterior if it has any."""
        names = self.posterior.names()
        if isinstance(self.posterior, KroneckerPrecision) and self.posterior.is_fitted:
            return NetworkGradients(self.net, self._forward, names, self.posterior.layers)
        candidates = noisy_layers(self.net, names, tied_parameters(self.net))
        layers = [path for path, layer in candidates.items() if is_factorable(layer)]
        probe = Replica(self.net, self._forward, own_buffers=True)
        plan = plan_estimators(probe, layers, "auto", x) if layers else {}
        return NetworkGradients(self.net, self._forward, names, [path for path in layers if plan[path] == "auto"])

    def log_marginal_likelihood(self) -> float:
        r"""The Laplace approximation of the log evidence, at the weights and the prior as they are.

            log p(D) ≈ log p(D | w*) + log p(w*) + P/2·log 2π − ½·log det(H + diag(δ))

        It compares priors, likelihoods and networks on the same data. For a linear model with Gaussian noise it is
        exact.

        Returns:
            A number in nats.

        Raises:
            InputError: before ``fit``.
        """
        posterior = self.posterior
        posterior._check_is_fitted()
        delta, sizes = posterior.prior_precision.double(), self._sizes()
        fit = posterior.log_likelihood - 0.5 * (delta * self._distances()).sum()
        return float(fit + 0.5 * (sizes * delta.log()).sum() - 0.5 * posterior.log_determinant())

    def optimize_prior(self, groups: str = "all") -> Self:
        r"""Choose the prior's scale by the evidence, without training again; the weights stay where they are.

        The precisions δ of a group of K weights are multiplied by a common factor until

            γ = Σ_t δ_t·‖w_t − m_t‖²,    γ = K − tr(diag(δ)·Σ),

        where γ is the number of weights that the data determine (MacKay 1992). Each update moves log δ half way to
        log(γ/‖w − m‖²). As γ falls with δ, and more slowly than 1/δ, there is one solution for a single group, and
        every update at least halves the distance to it.

        Args:
            groups: ``"all"``: one factor for all weights; ``"layer"``: one for the parameters of every module.

        Returns:
            The model itself, with a new ``prior``.

        Raises:
            InputError: before ``fit``, or if the prior is a :class:`credo.AdaptiveNormal`, whose scales ``fit``
                learns.
        """
        check_option(groups, "groups", ("all", "layer"))
        if any(isinstance(prior, AdaptiveNormal) for prior in self._priors.values()):
            raise InputError("the scales of an AdaptiveNormal prior are learned by fit: use a Normal prior here")
        self.posterior._check_is_fitted()
        self._update_prior(groups)
        scales = self.posterior.prior_precision.rsqrt().tolist()
        priors = {
            name: Normal(_center(prior), scale)
            for (name, prior), scale in zip(self._priors.items(), scales, strict=True)
        }
        one_for_all = groups == "all" and isinstance(self.prior, Distribution)
        self.prior = next(iter(priors.values())) if one_for_all else priors
        self._priors = resolve(self.prior, {name: w.shape for name, w in self.posterior.mean().items()})
        return self

    @torch.no_grad()
    def _update_prior(self, groups: str, adaptive: bool = False) -> None:
        """The fixed point of :meth:`optimize_prior`; for adaptive priors with the terms of their hyperprior."""
        names, delta = list(self._priors), self.posterior.prior_precision
        members: dict[str, list[int]] = {}
        for i, name in enumerate(names):
            if not adaptive or isinstance(self._priors[name], AdaptiveNormal):
                members.setdefault("" if groups == "all" else _module(name), []).append(i)
        sizes, distances = self._sizes(), self._distances()
        for _ in range(_MAX_UPDATES):
            shrinkage = self.posterior.shrinkage() if groups == "layer" else {}
            largest = 0.0
            for group, own in members.items():
                determined = float(sizes[own].sum())
                determined -= shrinkage[group] if groups == "layer" else self.posterior.total_shrinkage()
                penalty = float((delta[own].double() * distances[own]).sum())
                prior = self._priors[names[own[0]]]
                if isinstance(prior, AdaptiveNormal):
                    determined += 2.0 * prior.shape + 2.0
                    penalty += 2.0 * prior.rate * float(delta[own[0]])
                step = 0.5 * math.log(max(determined, 1e-30) / max(penalty, 1e-30))
                delta[own] = (delta[own] * math.exp(step)).clamp(1e-12, 1e12)
                largest = max(largest, abs(step))
            if largest < _TOLERANCE:
                return

    def _sizes(self) -> Tensor:
        """The number of weights of every tensor, ``[T]``."""
        sizes = [w.numel() for w in self.posterior.mean().values()]
        return torch.tensor(sizes, dtype=torch.float64, device=self.posterior.prior_precision.device)

    @torch.no_grad()
    def _distances(self) -> Tensor:
        """‖w − m‖² of every tensor, ``[T]``."""
        return torch.stack([self._offset(name).double().square().sum() for name in self._centers])

    @override
    def elbo(self, data: Any, samples: int = 10, seed: int | None = None) -> float:
        """E_q[log p(D | w)] − KL(q ‖ p) with the KL in closed form; of the linearized network if predictions are.

        Args:
            data: as for :meth:`fit`.
            samples: number of draws for the expectation.
            seed: for the draws; ``None``: from torch's random state.

        Returns:
            The bound in nats, over all of ``data``.
        """
        self.posterior._check_is_fitted()
        delta, sizes = self.posterior.prior_precision.double(), self._sizes()
        trace = sum(self.posterior.shrinkage().values())
        distance = float((delta * self._distances()).sum())
        log_ratio = float(self.posterior.log_determinant() - (sizes * delta.log()).sum())
        divergence = 0.5 * (trace + distance - float(sizes.sum()) + log_ratio)
        return super().elbo(data, samples, seed) + float(self.kl().detach()) - divergence

    def _predictor(self, samples: int | str, seed: int | None) -> Any:
        samples = check_samples(samples)
        if isinstance(samples, str):
            raise UnsupportedError(
                "samples='moments' is not offered for Laplace: predictions of the linearized network, the default, are "
                "in closed form already; use samples=100"
            )
        if samples == 0 or self._is_fitting:
            return NetworkPredictor(self, 0, None)
        self.posterior._check_is_fitted()
        return LinearizedPredictor(self, samples, seed) if self._linearized else NetworkPredictor(self, samples, seed)

    def _follow_parameters(self) -> None:
        """Move the means of the priors to the device of the parameters."""
        dtype = at_least_float32(self.dtype)
        self._centers = {
            name: torch.as_tensor(_center(move_prior(prior, self.device, dtype)), dtype=dtype, device=self.device)
            for name, prior in self._priors.items()
        }

    def _describe_parameter(self, name: str) -> str:
        kind = self._structure
        if isinstance(self.posterior, KroneckerPrecision) and self.posterior.is_fitted:
            kind = "kron" if _module(name) in self.posterior.layers else "diag"
        return f"Laplace ({kind}, prior {self._priors[name]!r})"

    @override
    def extra_repr(self) -> str:
        """The prior and the structure.

        Returns:
            What ``repr`` shows beside the submodules.
        """
        return f"prior={self.prior!r}, structure={self._structure!r}, parameters={self._patterns!r}"

    def _own_config(self) -> dict[str, object]:
        return {
            "prior": to_config(self.prior),
            "structure": self._structure,
            "parameters": as_json(self._patterns),
            "rank": self._rank,
            "linearized": self._linearized,
        }


def _choose(net: nn.Module, parameters: str | Sequence[str]) -> list[str]:
    """The names of the parameters that ``parameters`` stands for."""
    if parameters != "last_layer":
        return select(net, "*" if parameters == "all" else parameters, "parameters")
    chosen = match_parameters(net, argument="parameters")
    last = {id(p) for p in net.get_submodule(_module(chosen[-1])).parameters(recurse=False)}  # tied ones included
    return select(net, [name for name in chosen if id(net.get_parameter(name)) in last], "parameters")


def _module(name: str) -> str:
    """The path of the module that holds a parameter."""
    return name.rpartition(".")[0]


def _center(prior: Distribution) -> Any:
    return prior.loc if isinstance(prior, TorchNormal) else 0.0


def _prior_precision(name: str, prior: Distribution) -> float:
    """1/s² of a Gaussian prior."""
    if isinstance(prior, AdaptiveNormal):
        return 1.0
    if not isinstance(prior, TorchNormal):
        raise UnsupportedError(
            f"the prior of {name!r} is a {type(prior).__name__}, but a Laplace approximation needs a Gaussian one: use "
            "credo.Normal or credo.AdaptiveNormal"
        )
    scale = prior.scale.flatten()  # torch repeats it for a mean per weight
    if bool((scale != scale[0]).any()):
        raise UnsupportedError(f"the prior of {name!r} must have one scale for all weights of the tensor")
    return 1.0 / float(scale[0]) ** 2
