r"""Variance reduction as forward hooks: the right noise, added to what a layer computes with its mean weights.

For a layer that is linear in its weights, y = W∗x + b with W ~ N(μ, σ²):

- *local reparameterization* draws the output instead of the weights, y ~ N(μ∗x, σ²∗x²). Each output gets
  noise of its own, which is the right joint distribution only where every row uses each weight once: a Linear
  layer on ``[B, D]``, called once.
- *Flipout* gives each row n its own signs: W_n = μ + (σ∘ε)∘(r_n s_nᵀ). All positions of a row see the same
  W_n, so it is right for convolutions and tokens too.

References: D. P. Kingma, T. Salimans, M. Welling, "Variational dropout and the local reparameterization trick",
NeurIPS 2015; Y. Wen, P. Vicol, J. Ba, D. Tran, R. Grosse, "Flipout", ICLR 2018.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from credo import kernels
from credo.errors import UnsupportedError
from credo.functional import Replica
from credo.posteriors._gaussian_kl import half_square

Apply = Callable[..., Tensor]

_LAYERS: dict[type[nn.Module], tuple[int, Apply]] = {}


def register_layer(layer_type: type[nn.Module], spatial_dims: int) -> Callable[[Apply], Apply]:
    """Register ``apply(layer, x, weight, bias, *rest)`` for a layer that is linear in its weight.

    Args:
        layer_type: the exact type; subclasses may compute something else.
        spatial_dims: how many dimensions of the input follow its channels.
    """

    def decorate(apply: Apply) -> Apply:
        _LAYERS[layer_type] = (spatial_dims, apply)
        return apply

    return decorate


@register_layer(nn.Linear, 0)
def _linear(layer: nn.Linear, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


@register_layer(nn.Conv1d, 1)
@register_layer(nn.Conv2d, 2)
@register_layer(nn.Conv3d, 3)
def _convolution(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    output: Tensor = layer._conv_forward(x, weight, bias)
    return output


@register_layer(nn.ConvTranspose1d, 1)
@register_layer(nn.ConvTranspose2d, 2)
@register_layer(nn.ConvTranspose3d, 3)
def _transposed_convolution(
    layer: nn.ConvTranspose2d, x: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None = None
) -> Tensor:
    dims = len(layer.kernel_size)
    convolve: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
    padding = layer._output_padding(
        x,
        output_size,
        layer.stride,  # type: ignore[arg-type]
        layer.padding,  # type: ignore[arg-type]
        layer.kernel_size,  # type: ignore[arg-type]
        dims,
        layer.dilation,  # type: ignore[arg-type]
    )
    result: Tensor = convolve(x, weight, bias, layer.stride, layer.padding, padding, layer.groups, layer.dilation)
    return result


def channel_dim(layer: nn.Module) -> int:
    """The dimension of a registered layer's input that counts features or channels, from the end."""
    return -1 - _LAYERS[type(layer)][0]


def noisy_layers(net: nn.Module, bayesian: Collection[str], tied: Collection[str]) -> dict[str, nn.Module]:
    """The layers whose noise can enter through a hook: exact type known, weight Bayesian, nothing tied."""
    found = {}
    seen: Counter[int] = Counter(id(module) for _, module in net.named_modules(remove_duplicate=False))
    for path, module in net.named_modules():
        names = [f"{path}.{name}" if path else name for name, _ in module.named_parameters(recurse=False)]
        weight = f"{path}.weight" if path else "weight"
        known = type(module) in _LAYERS and "forward" not in vars(module)
        if known and weight in bayesian and not set(names) & set(tied) and seen[id(module)] == 1:
            found[path] = module
    return found


class _Flips(NamedTuple):
    """One Flipout draw of a layer."""

    signs_in: Tensor
    signs_out: Tensor
    weight: Tensor
    bias: Tensor | None


class NoiseHooks:
    """Hooks on a private replica of the network.

    Args:
        replica: the training replica; its hooked layers keep their mean weights.
        layers: the paths of the layers to hook.
        owners: the modules that hold Bayesian parameters, hooked or not.
        estimator: ``"auto"``, ``"local"`` or ``"flipout"``.

    Attributes:
        plan: the estimator of each layer; ``"weight"`` switches its hook off.
        squared: the parameters of which σ²/2 is needed, not σ: those with local reparameterization. Whether ``"auto"``
            is local depends on the input of a layer, which is taken to be as in the last pass.
    """

    def __init__(self, replica: Replica, layers: Collection[str], owners: Collection[str], estimator: str) -> None:
        self.rows = 0
        self.active = False
        self.scale: Mapping[str, Tensor] = {}
        self._are_squared: Container[str] = ()
        self._drawn: dict[str, _Flips | None] = {}
        self._is_captured = False
        self._entered: dict[nn.Module, torch.cuda.Event] = {}
        """The moments at which the inputs of layers were known, in a pass that is captured."""
        self._names = {path: (f"{path}.weight".lstrip("."), f"{path}.bias".lstrip(".")) for path in layers}
        self._on_matrices = {path: type(replica.net.get_submodule(path)) is nn.Linear for path in layers}
        """Whether the last input of a layer was one row of features per datum."""
        self.set_plan(dict.fromkeys(layers, estimator))
        for path in owners:
            replica.net.get_submodule(path).register_forward_pre_hook(self._enter)
        for path in layers:
            replica.net.get_submodule(path).register_forward_hook(self._noise_for(path), with_kwargs=True)

    def set_plan(self, plan: dict[str, str]) -> None:
        """Choose the estimator of each layer."""
        self.plan, self._is_stale = plan, False
        local = [p for p, how in plan.items() if how == "local" or (how == "auto" and self._on_matrices[p])]
        self.squared = frozenset(name for path in local for name in self._names[path])

    def begin(self, rows: int, scale: Mapping[str, Tensor], squared: Container[str] = ()) -> None:
        """Open a forward pass over ``rows`` rows with σ²/2 of the parameters in ``squared`` and σ of the others."""
        self.rows, self.scale, self.active = rows, scale, True
        self._is_captured = _is_captured(scale)
        self._are_squared = squared
        self._drawn = {}

    def end(self) -> None:
        """Close it: nothing of the pass stays behind."""
        self.scale, self.active = {}, False
        self._drawn, self._entered = {}, {}
        if self._is_stale:
            self.set_plan(self.plan)

    def covers(self, name: str) -> bool:
        """Whether the noise of parameter ``name`` comes from a hook."""
        return self.plan.get(name.rpartition(".")[0], "weight") != "weight"

    def _enter(self, layer: nn.Module, args: Any) -> None:
        if not self.active:
            raise UnsupportedError(
                "the network uses gradient checkpointing, which would recompute activations with other weights "
                "than the forward pass drew; switch it off in the network"
            )
        if self._is_captured:
            self._entered[layer] = torch.cuda.current_stream().record_event()

    def _noise_for(self, path: str) -> Callable[..., Tensor | None]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor | None:
            estimator = self.plan[path]
            if estimator == "weight" or not self.scale:
                return None
            x, rest = (args[0], args[1:]) if args else (kwargs["input"], ())
            rest = (*rest, *(value for key, value in kwargs.items() if key != "input"))
            if estimator == "local":
                return self._local(path, layer, x, rest, output)
            if estimator == "auto" and path not in self._drawn:
                one_weight_per_row = type(layer) is nn.Linear and x.dim() == 2 and x.shape[0] == self.rows
                if self._on_matrices[path] is not one_weight_per_row:
                    self._on_matrices[path], self._is_stale = one_weight_per_row, True
                if one_weight_per_row:
                    self._drawn[path] = None
                    return self._local(path, layer, x, rest, output)
            return output + self._flipout(path, layer, x, rest, output)

        return hook

    def _local(self, path: str, layer: nn.Module, x: Tensor, rest: tuple[Any, ...], output: Tensor) -> Tensor:
        """The output with noise √(σ²∗x²)·ε, with an ε for every number."""
        weight, bias = self._half_variances(path, layer)
        if type(layer) is nn.Linear and x.dim() == 2 and not _is_rewritten(x):
            if layer in self._entered:
                known = self._entered[layer]
                if weight is not self.scale[self._names[path][0]]:  # it was computed from what was given, just now
                    known = torch.cuda.current_stream().record_event()
                half = _product_beside(known, x, weight, bias)
                return _Noise.apply(output, half)  # type: ignore[no-any-return, no-untyped-call]
            return _LocalNoise.apply(output, x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
        _, apply = _LAYERS[type(layer)]
        half_variance = apply(layer, x.square(), weight, bias, *rest)
        floored = half_variance.clamp_min(torch.finfo(half_variance.dtype).tiny)
        return output + (2.0 * floored).sqrt() * torch.randn_like(floored)

    def _flipout(self, path: str, layer: nn.Module, x: Tensor, rest: tuple[Any, ...], output: Tensor) -> Tensor:
        """((σ∘ε)∗(x∘s))∘r, with the signs and ε of this forward pass, which all calls of the layer share."""
        spatial_dims, apply = _LAYERS[type(layer)]
        if path not in self._drawn:
            self._drawn[path] = self._draw_flipout(path, layer, x, output, spatial_dims)
        flips = self._drawn[path]
        if flips is None:
            raise UnsupportedError(
                f"layer {path!r} is called more than once in a forward pass; compute model.loss on one batch "
                "before compiling, so that this is known, or use estimator='flipout'"
            )
        return apply(layer, x * flips.signs_in, flips.weight, flips.bias, *rest) * flips.signs_out

    def _draw_flipout(self, path: str, layer: nn.Module, x: Tensor, output: Tensor, spatial_dims: int) -> _Flips:
        channel = -1 - spatial_dims
        by_row = x.dim() + channel > 0 and x.shape[0] == self.rows

        def signs(like: Tensor) -> Tensor:
            shape = [1] * like.dim()
            shape[channel] = like.shape[channel]
            if not by_row:
                return like.new_ones(shape)
            shape[0] = like.shape[0]
            return torch.randint(0, 2, shape, device=like.device).to(like.dtype) * 2 - 1

        weight, bias = self._scales(path, layer)
        perturbed_bias = None if bias is None else bias * torch.randn_like(bias)
        return _Flips(signs(x), signs(output), weight * torch.randn_like(weight), perturbed_bias)

    def _half_variances(self, path: str, layer: nn.Module) -> tuple[Tensor, Tensor | None]:
        """σ²/2 of weight and bias, in the precision that the layer computes with."""
        weight, bias = self._given(path, layer)
        if self._names[path][0] in self._are_squared:
            return weight, bias
        return half_square(weight), None if bias is None else half_square(bias)

    def _scales(self, path: str, layer: nn.Module) -> tuple[Tensor, Tensor | None]:
        """σ of weight and bias, in the precision that the layer computes with."""
        weight, bias = self._given(path, layer)
        if self._names[path][0] not in self._are_squared:
            return weight, bias
        return _root(weight), None if bias is None else _root(bias)

    def _given(self, path: str, layer: nn.Module) -> tuple[Tensor, Tensor | None]:
        names, dtype = self._names[path], layer.weight.dtype
        weight, bias = self.scale[names[0]], self.scale.get(names[1])
        return weight.to(dtype), None if bias is None else bias.to(dtype)  # type: ignore[arg-type]


class _LocalNoise(torch.autograd.Function):
    r"""y + √(2h)·ε with h = x²·Vᵀ + b, for V and b half the variances of weight and bias.

    With r = ε/√(2h), the derivatives are ∂h = g∘r, ∂V = ∂hᵀ·x², ∂b = Σ_rows ∂h and ∂x = 2x∘(∂h·V): one pass over V
    where autograd takes several over the outputs.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        result, ratio = _add_noise(output, F.linear(x.square(), weight, bias))
        ctx.save_for_backward(x, weight, ratio)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, ratio = ctx.saved_tensors
        return grad, *_product_gradients(ctx.needs_input_grad[1:], grad * ratio, x, weight, x.square())


class _Noise(torch.autograd.Function):
    """y + √(2h)·ε; the second half of :class:`_LocalNoise`, for an h that is computed beside y."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, half_variance: Tensor) -> Tensor:
        result, ratio = _add_noise(output, half_variance)
        ctx.save_for_backward(ratio)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad * ctx.saved_tensors[0]


class _HalfVariance(torch.autograd.Function):
    """h = x²·Vᵀ + b; the first half of :class:`_LocalNoise`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        squares = x.square()
        ctx.save_for_backward(x, weight, squares)
        return F.linear(squares, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _product_gradients(ctx.needs_input_grad, grad, *ctx.saved_tensors)


def _add_noise(output: Tensor, half_variance: Tensor) -> tuple[Tensor, Tensor]:
    """y + √(2h)·ε, and ε/√(2h); overwrites h."""
    noise = torch.randn_like(half_variance)
    if kernels.accepts([output, half_variance]):
        return kernels.add_noise(output, half_variance, noise), noise
    deviation = half_variance.clamp_min_(torch.finfo(half_variance.dtype).tiny).mul_(2.0).sqrt_()
    return torch.addcmul(output, deviation, noise), noise.div_(deviation)


def _product_gradients(
    needed: Sequence[bool], grad: Tensor, x: Tensor, weight: Tensor, squares: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of x²·Vᵀ + b in x, V and b, as far as they are needed."""
    needs_x, needs_weight, needs_bias = needed
    grad_x = (grad @ weight) * (2.0 * x) if needs_x else None
    return grad_x, grad.t() @ squares if needs_weight else None, grad.sum(0) if needs_bias else None


def _product_beside(known: torch.cuda.Event, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x²·Vᵀ + b on a second stream, from when all three are ``known``, while a captured layer computes μ∗x.

    Products of a minibatch are too small for a GPU; two at once take little more time than one. Autograd runs the
    derivative on the same stream.
    """
    main, beside = torch.cuda.current_stream(), _second_stream(x.device)
    beside.wait_event(known)
    with torch.cuda.stream(beside):
        half: Tensor = _HalfVariance.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    for tensor in (x, weight, bias):
        if tensor is not None:
            tensor.record_stream(beside)
    half.record_stream(main)
    main.wait_stream(beside)
    return half


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _is_captured(scale: Mapping[str, Tensor]) -> bool:
    """Whether the pass is being captured as a CUDA graph; compiled code does not ask."""
    if torch.compiler.is_compiling() or not scale:
        return False
    return next(iter(scale.values())).is_cuda and torch.cuda.is_current_stream_capturing()


def _is_rewritten(x: Tensor) -> bool:
    """Whether a compiler or autocast writes the derivative of an operation by itself."""
    return torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type)


def _root(half_variance: Tensor) -> Tensor:
    """σ of σ²/2; 0 of 0, also for the derivative."""
    floored = half_variance.clamp_min(torch.finfo(half_variance.dtype).tiny)
    return torch.where(half_variance > 0, (2.0 * floored).sqrt(), 0.0)
