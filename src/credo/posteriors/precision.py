r"""Gaussian posteriors that are given by their precision: curvature of the data plus precision of the prior."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import override

from credo._devices import at_least_float32
from credo.curvature import Block, BlockGradients, GaussNewton
from credo.errors import InputError
from credo.functional import Draw, Sampler
from credo.posteriors._wide_parameters import WideBuffers
from credo.posteriors.base import Posterior
from credo.seeding import standard_normal
from credo.selection import parameter_owners

Gradients: TypeAlias = Sequence[tuple[Block, BlockGradients]]

_ALWAYS = ("prior_precision", "log_likelihood")
"""Buffers that a posterior has before it is fitted."""


class PrecisionGaussian(WideBuffers, Posterior):
    r"""N(w*, (H + diag(δ))⁻¹) around the network's own parameters w*.

    H is the curvature of −log p(D | w), in the form that a subclass keeps of it, and δ the precision of a Gaussian
    prior, one number for every parameter tensor. :meth:`fit` computes H; before that, there is no posterior.

    Args:
        net: the network, whose parameters are the mean.
        names: the parameters to cover.
        prior_precision: δ of every one of them.
    """

    prior_precision: Tensor
    log_likelihood: Tensor

    def __init__(self, net: nn.Module, names: Sequence[str], prior_precision: Sequence[float]) -> None:
        super().__init__(net)
        self._owners = parameter_owners(net, names)
        device = net.get_parameter(names[0]).device
        self.register_buffer("prior_precision", torch.tensor(prior_precision, dtype=torch.float64, device=device))
        self.register_buffer("log_likelihood", torch.zeros((), dtype=torch.float64, device=device))

    @abstractmethod
    def _curvature(self, curvature: GaussNewton) -> dict[str, Tensor]:
        """The buffers that hold H, by name."""

    @abstractmethod
    def _buffer_shapes(self, saved: Collection[str]) -> dict[str, torch.Size]:
        """The shapes of the buffers that hold H, given the names of saved ones."""

    @abstractmethod
    def _perturbation(self) -> Callable[[Draw], Draw]:
        """A function from standard normal noise to noise with the covariance of the posterior."""

    @abstractmethod
    def log_determinant(self) -> Tensor:
        """log det(H + diag(δ)).

        Returns:
            A scalar.
        """

    @abstractmethod
    def variance(self) -> Draw:
        """The marginal variance of every weight, the diagonal of (H + diag(δ))⁻¹.

        Returns:
            Name to tensor.
        """

    @abstractmethod
    def output_covariance(self, jacobian: Gradients) -> Tensor:
        """J·(H + diag(δ))⁻¹·Jᵀ, the covariance of the linearized outputs of every row.

        Args:
            jacobian: J, the gradients of all K outputs, by block.

        Returns:
            ``[B, K, K]``.
        """

    def shrinkage(self) -> dict[str, float]:
        """tr(diag(δ)·Σ) over the parameters of each module: the number of them that the prior determines.

        Returns:
            The path of the module to a number from 0 to the number of its parameters.
        """
        found: dict[str, float] = {}
        for (name, variance), delta in zip(self.variance().items(), self.prior_precision.tolist(), strict=True):
            path = name.rpartition(".")[0]
            found[path] = found.get(path, 0.0) + delta * float(variance.double().sum())
        return found

    def total_shrinkage(self) -> float:
        """tr(diag(δ)·Σ), the number of all parameters that the prior determines.

        Returns:
            The sum of :meth:`shrinkage`.
        """
        return sum(self.shrinkage().values())

    def fit(self, curvature: GaussNewton) -> None:
        """Compute H at the network's parameters as they are; an error leaves the posterior as it was.

        Args:
            curvature: the Gauss–Newton matrix on the training data.
        """
        found, log_likelihood = self._curvature(curvature), curvature.log_likelihood()
        self._check_is_finite(found.values())
        self.clear()
        self.log_likelihood.fill_(log_likelihood)
        for name, value in found.items():
            self.register_buffer(name, value)

    def clear(self) -> dict[str, Tensor]:
        """Forget H.

        Returns:
            What it was, by name.
        """
        names = [name for name in self._buffers if name not in _ALWAYS]
        return {name: self._buffers.pop(name) for name in names}  # type: ignore[misc]

    def restore(self, buffers: Mapping[str, Tensor]) -> None:
        """Undo :meth:`clear`.

        Args:
            buffers: what it returned.
        """
        for name, value in buffers.items():
            self.register_buffer(name, value)

    @property
    def _wide(self) -> torch.dtype:
        """The dtype that is computed in."""
        module, key = next(iter(self._owners.values()))
        return at_least_float32(getattr(module, key).dtype)

    @property
    def is_fitted(self) -> bool:
        """Whether H is known."""
        return len(self._buffers) > len(_ALWAYS)

    @override
    def names(self) -> list[str]:
        return list(self._owners)

    @override
    def mean(self) -> Draw:
        return {name: getattr(module, key).detach() for name, (module, key) in self._owners.items()}

    @override
    @torch.no_grad()
    def sampler(self, seed: int) -> Sampler:
        self._check_is_fitted()
        mean = self.mean()
        likes = [value.to(self._wide) for value in mean.values()]
        perturb = self._perturbation()
        memory: list[Tensor] = []

        @torch.no_grad()
        def draw(numbers: Sequence[int]) -> list[Draw]:
            noises = standard_normal(likes, [(seed, s) for s in numbers], memory)
            draws = []
            for noise in noises:
                moved = perturb(dict(zip(mean, noise, strict=True)))
                draws.append({name: (w.to(self._wide) + moved[name]).to(w.dtype) for name, w in mean.items()})
            return draws

        return draw

    def _check_is_finite(self, curvature: Iterable[Tensor]) -> None:
        """Raise ``InputError`` if parts of H are NaN or infinite."""
        if not all(bool(value.isfinite().all()) for value in curvature):
            raise InputError(
                f"the curvature is NaN or infinite in {self._wide}: scale the data to about 1, or compute in float64, "
                "net.double()"
            )

    def _check_is_fitted(self) -> None:
        if not self.is_fitted:
            raise InputError("there is no posterior before fit: call fit(data), or fit(data, epochs=0) after training")

    def _precisions(self) -> dict[str, Tensor]:
        """δ by name, in the precision of the computation."""
        return dict(zip(self._owners, self.prior_precision.to(self._wide).unbind(), strict=True))

    def _flat_precision(self, dtype: torch.dtype) -> Tensor:
        """δ of every weight, ``[P]``, in the order of :meth:`names`."""
        sizes = torch.tensor([w.numel() for w in self.mean().values()], device=self.prior_precision.device)
        return self.prior_precision.to(dtype).repeat_interleave(sizes)

    def _size(self) -> int:
        return sum(w.numel() for w in self.mean().values())

    def _split(self, flat: Tensor) -> Draw:
        """Parameters from a vector ``[P]``."""
        mean = self.mean()
        parts = flat.split([w.numel() for w in mean.values()])
        return {name: part.view_as(w) for (name, w), part in zip(mean.items(), parts, strict=True)}

    def _flatten(self, gradients: Gradients) -> Tensor:
        """Gradients of all blocks as rows ``[K, B, P]``, in the order of :meth:`names`."""
        by_name = {
            name: part.flatten(2)
            for block, gradient in gradients
            for name, part in block.split(gradient.matrices()).items()
        }
        return torch.cat([by_name[name] for name in self._owners], dim=2)

    def _expected_tensors(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a posterior that was fitted, or not, before it was saved, in the dtype of the saved ones."""
        shapes = {name: value.shape for name, value in self._buffers.items() if name in _ALWAYS and value is not None}
        if len(saved) > len(shapes):
            shapes |= self._buffer_shapes(saved)
        return {
            name: torch.empty(shape, dtype=_float_dtype(saved, name), device="meta") for name, shape in shapes.items()
        }

    def _prepare_for(self, saved: Mapping[str, Tensor]) -> None:
        """Register the tensors of a posterior that was fitted before it was saved."""
        self.clear()
        for name, value in self._expected_tensors(saved).items():
            self.register_buffer(name, torch.empty_like(value, device=self.prior_precision.device))

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        own = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
        if set(own) != set(self._buffers):
            self._prepare_for(own)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _float_dtype(saved: Mapping[str, Tensor], name: str) -> torch.dtype:
    dtype = saved[name].dtype if name in saved else torch.float64
    return dtype if dtype.is_floating_point else torch.float64


def add_up(parts: Iterable[Tensor]) -> Tensor:
    """The sum of tensors, on their device."""
    return sum(parts, start=torch.zeros(()))


def buffer_key(kind: str, name: str) -> str:
    """A buffer's name, which may not hold a dot."""
    return f"{kind}:{name.replace('.', '/')}"
