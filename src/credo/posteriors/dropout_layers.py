"""The dropout a network already has, as a posterior: one draw is one set of masks, shared by all rows.

Masks enter through a ``TorchFunctionMode`` that answers every functional dropout call, whoever makes it: the
``nn.Dropout`` family, ``F.dropout`` in a forward, attention. Multi-layer recurrent networks, whose dropout
happens inside one fused kernel, are run layer by layer. Normalisation layers stay in evaluation mode.
"""

from __future__ import annotations

import math
import types
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from credo.errors import InputError, UnsupportedError
from credo.functional import Draw, Replica, Sampler, count_rows, map_tensors, rows_agree
from credo.posteriors.base import Posterior
from credo.seeding import derive, generator

_ELEMENTWISE = (F.dropout, torch.dropout)
_CHANNELWISE = {F.dropout1d: 1, F.dropout2d: 2, F.dropout3d: 3, torch.feature_dropout: None}
_ALPHA = (F.alpha_dropout, torch.alpha_dropout)
_FEATURE_ALPHA = (F.feature_alpha_dropout, torch.feature_alpha_dropout)
_SELU_FLOOR = 1.7580993408473766
"""−α·scale of the self-normalising ELU: what alpha dropout sets a dropped unit to, up to its affine map."""
_SMALLEST_BATCH = 61
_NO_DROPOUT = (
    "the network drops nothing: it has no dropout layer with a rate above 0; pass p=0.1 to put dropout before every "
    "weight layer, or add nn.Dropout to the network"
)


def check_dropout(net: nn.Module) -> None:
    """Refuse a network that surely has no dropout; one with a forward of its own may call ``F.dropout`` there."""
    for module in net.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return
        if isinstance(module, nn.RNNBase) and _drops_between_layers(module):
            return
        if isinstance(module, nn.MultiheadAttention) and module.dropout > 0:
            return
        if not type(module).__module__.startswith("torch.nn."):
            return
    raise InputError(_NO_DROPOUT)


class LayerDropout(Posterior):
    """Mask sets for the dropout layers of a network. A draw holds only the number its masks grow from."""

    vectorisable = False

    def names(self) -> list[str]:
        """One name: the masks have shapes only once there is an input."""
        return ["masks"]

    def mean(self) -> Draw:
        """Nothing: without masks a network in evaluation mode computes the mean activation of every layer."""
        raise UnsupportedError(
            "the network's own dropout layers have masks, not a weight posterior; "
            "use MCDropout(net, p=...) for draws of weights"
        )

    def sampler(self, seed: int) -> Sampler:
        """The seed of mask set ``s``."""
        return lambda numbers: [{"masks": torch.tensor(derive(seed, s))} for s in numbers]

    def sample(self, n: int = 1, seed: int | None = None) -> Draw:
        """Not offered: masks are no weights."""
        return self.mean()

    def call(self, network: Replica, draw: Draw, x: Any) -> Tensor:
        """The output for ``x`` with mask set ``draw``."""
        for module in network.net.modules():
            module.training = not isinstance(module, _NormBase | nn.RReLU)
            if isinstance(module, nn.RNNBase) and _drops_between_layers(module) and "forward" not in vars(module):
                vars(module)["forward"] = _Layered(module)
        rows = count_rows(x)
        padded = _pad_rows(x, _unmistakable(rows)) if rows_agree(x) else x
        with SharedMasks(int(draw["masks"]), count_rows(padded)) as masks:
            output = network({}, padded)
        if masks.count == 0:
            raise InputError(_NO_DROPOUT)
        return output[:rows]


def _unmistakable(rows: int) -> int:
    """The next prime number of rows, so that a dimension of that size, or a multiple, is the rows and nothing else."""
    count = max(rows, _SMALLEST_BATCH)
    while any(count % factor == 0 for factor in range(2, math.isqrt(count) + 1)):
        count += 1
    return count


def _pad_rows(x: Any, count: int) -> Any:
    """``x`` with its first row repeated at the end, to ``count`` rows; an empty batch stays empty."""
    return map_tensors(lambda t: torch.cat([t, t[:1].expand(count - len(t), *t.shape[1:])]) if len(t) else t, x)


class SharedMasks(TorchFunctionMode):
    """Answers dropout calls with masks that do not depend on the row; the k-th call of a pass gets mask k.

    Args:
        seed: of the mask set.
        rows: number of rows of the batch.
    """

    def __init__(self, seed: int, rows: int) -> None:
        super().__init__()
        self.seed, self.rows = seed, rows
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ELEMENTWISE:
            return self._drop(*_arguments(args, kwargs))
        if func in _CHANNELWISE:
            x, p = _arguments(args, kwargs)
            spatial = _CHANNELWISE[func]
            return self._drop(x, p, channelwise=x.dim() - 2 if spatial is None else spatial)
        if func in _ALPHA:
            return self._alpha(*_arguments(args, kwargs), channelwise=None)
        if func in _FEATURE_ALPHA:
            x, p = _arguments(args, kwargs)
            return self._alpha(x, p, channelwise=x.dim() - 2)
        if func is F.multi_head_attention_forward:
            return self._multi_head_attention(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    def mask(self, shape: list[int], p: float, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The next mask of this pass: 1 with probability 1 − p, else 0."""
        self.count += 1
        source = generator(device, self.seed, self.count)
        return (torch.rand(shape, device=device, generator=source) >= p).to(dtype)

    def _row_free(self, x: Tensor) -> tuple[list[int], list[int]]:
        """A view of ``x`` with the rows in one dimension, and the shape of a mask that is the same for all rows."""
        shape = list(x.shape)
        if self.rows in shape:
            dim = shape.index(self.rows)
            return shape, [*shape[:dim], 1, *shape[dim + 1 :]]
        if self.rows and shape and shape[0] % self.rows == 0:
            return [self.rows, shape[0] // self.rows, *shape[1:]], [1, shape[0] // self.rows, *shape[1:]]
        return shape, shape

    def _multi_head_attention(self, *args: Any, **kwargs: Any) -> Any:
        """Torch's own function with its calls answered here; asked to override itself, it would never return."""
        original = F.multi_head_attention_forward
        names = {
            **vars(F),
            "has_torch_function": lambda *_: False,
            "dropout": lambda x, p=0.5, training=True, inplace=False: self._drop(x, p if training else 0.0),
            "scaled_dot_product_attention": self._attention,
        }
        answered = types.FunctionType(original.__code__, names, None, original.__defaults__, original.__closure__)
        return answered(*args, **kwargs)

    def _noise(self, x: Tensor, p: float, channelwise: int | None) -> Tensor:
        """Zeros and ones that broadcast against ``x``."""
        if channelwise is None:
            view, shape = self._row_free(x)
            mask = self.mask(shape, p, x.device, x.dtype)
            return mask if view == list(x.shape) else mask.expand(view).reshape(x.shape)
        channel = x.dim() - channelwise - 1
        shape = [1] * x.dim()
        shape[channel] = x.shape[channel]
        return self.mask(shape, p, x.device, x.dtype)

    def _drop(self, x: Tensor, p: float, channelwise: int | None = None) -> Tensor:
        if p <= 0:
            return x
        return x * self._noise(x, p, channelwise) / (1.0 - p) if p < 1 else torch.zeros_like(x)

    def _alpha(self, x: Tensor, p: float, channelwise: int | None) -> Tensor:
        if p <= 0:
            return x
        if p >= 1:
            return torch.zeros_like(x)
        noise = self._noise(x, p, channelwise)
        a = 1.0 / math.sqrt((_SELU_FLOOR**2 * p + 1.0) * (1.0 - p))
        return a * (x * noise + _SELU_FLOOR * (noise - 1.0 + p))

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        if dropout_p <= 0:
            return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, **options)
        if options.get("enable_gqa"):
            raise UnsupportedError("MC dropout inside grouped-query attention is not offered; set its dropout to 0")
        scores = query @ key.transpose(-2, -1) * (options.get("scale") or query.shape[-1] ** -0.5)
        if is_causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~allowed, -math.inf)
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        return self._drop(scores.softmax(-1), dropout_p) @ value


class _Layered:
    """A recurrent network run layer by layer, so that dropout between layers is a call that can be answered."""

    def __init__(self, rnn: nn.RNNBase) -> None:
        self._dropout = float(rnn.dropout)
        self._directions = directions = 2 if rnn.bidirectional else 1
        width = directions * (rnn.proj_size or rnn.hidden_size)
        extra: dict[str, Any] = {"proj_size": rnn.proj_size} if isinstance(rnn, nn.LSTM) else {}
        if type(rnn) is nn.RNN:
            extra["nonlinearity"] = rnn.nonlinearity
        self._layers: list[nn.RNNBase] = []
        for k in range(rnn.num_layers):
            build: Any = type(rnn)
            layer = build(
                rnn.input_size if k == 0 else width,
                rnn.hidden_size,
                bias=rnn.bias,
                batch_first=rnn.batch_first,
                bidirectional=rnn.bidirectional,
                device="meta",
                **extra,
            )
            for name, _ in list(layer.named_parameters()):
                layer.register_parameter(name, getattr(rnn, name.replace("_l0", f"_l{k}")))
            self._layers.append(layer.eval())

    def __call__(self, x: Any, hx: Any = None) -> Any:
        """As the recurrent network's own forward, with dropout between layers."""
        directions = self._directions
        finals = []
        for k, layer in enumerate(self._layers):
            if k:
                x = self._drop(x, self._dropout)
            x, final = layer(x, _part(hx, slice(k * directions, (k + 1) * directions)))
            finals.append(final)
        if isinstance(finals[0], tuple):
            return x, tuple(torch.cat(parts) for parts in zip(*finals, strict=True))
        return x, torch.cat(finals)

    def _drop(self, x: Any, p: float) -> Any:
        if not isinstance(x, PackedSequence):
            return F.dropout(x, p)
        times = torch.repeat_interleave(torch.arange(len(x.batch_sizes)), x.batch_sizes).to(x.data.device)
        steps = torch.ones(1, len(x.batch_sizes), x.data.shape[-1], device=x.data.device, dtype=x.data.dtype)
        factor = F.dropout(steps.expand(int(x.batch_sizes[0]), -1, -1), p)[0]
        return x._replace(data=x.data * factor[times])


def _drops_between_layers(rnn: nn.RNNBase) -> bool:
    return rnn.dropout > 0 and rnn.num_layers > 1


def _part(hx: Any, rows: slice) -> Any:
    if hx is None:
        return None
    return tuple(h[rows] for h in hx) if isinstance(hx, tuple) else hx[rows]


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, float]:
    """Input and rate of a dropout call, whichever way they were passed; the rate is 0 outside training mode."""
    x = args[0] if args else kwargs["input"]
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    training = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))
    return x, float(p) if training else 0.0
