"""Every way in which a network calls dropout, brought to one place where it can be answered.

The ``nn.Dropout`` family, ``F.dropout`` in a forward, attention: all end in a few functions, which a
``TorchFunctionMode`` sees whoever calls them.
"""

from __future__ import annotations

import math
import types
from abc import abstractmethod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function_unary

from credo.errors import UnsupportedError
from credo.probing import RowDim

_ELEMENTWISE = (F.dropout, torch.dropout, torch.dropout_)
_CHANNELWISE = {F.dropout1d: 1, F.dropout2d: 2, F.dropout3d: 3, torch.feature_dropout: None}
_ALPHA = (F.alpha_dropout, torch.alpha_dropout)
_FEATURE_ALPHA = (F.feature_alpha_dropout, torch.feature_alpha_dropout)
_SELU_FLOOR = 1.7580993408473766
"""−α·scale of the self-normalizing ELU: what alpha dropout sets a dropped unit to, up to its affine map."""


def drop_branch(x: Tensor, p: float) -> Tensor:
    """``x``, or with probability p zeros, for all rows or for none; ``x`` where no :class:`DropoutCalls` is active."""
    if has_torch_function_unary(x):
        return handle_torch_function(drop_branch, (x,), x, p)
    return x


def drop_padded(x: Tensor, p: float) -> Tensor:
    """``x`` with units dropped, its rows known to lie along dim 0; ``x`` where no :class:`DropoutCalls` is active."""
    if has_torch_function_unary(x):
        return handle_torch_function(drop_padded, (x,), x, p)
    return x


class DropoutRequest(NamedTuple):
    """What a network asks of dropout.

    Attributes:
        x: the activation.
        p: the rate that was asked for.
        on: whether dropout was asked for at all; it is not in evaluation mode.
        spatial_dims: trailing dimensions that are dropped together, those of a channel.
        alpha: dropped units take the floor of the self-normalizing ELU.
        rows: where the rows are, if the caller knows.
    """

    x: Tensor
    p: float
    on: bool
    spatial_dims: int = 0
    alpha: bool = False
    rows: RowDim | None = None


class DropoutCalls(TorchFunctionMode):
    """Answers the dropout calls of a forward pass by :meth:`answer`."""

    @abstractmethod
    def answer(self, request: DropoutRequest) -> Tensor:
        """The activation with units dropped."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ELEMENTWISE:
            return self.answer(_request(args, kwargs))
        if func in _CHANNELWISE:
            request, spatial_dims = _request(args, kwargs), _CHANNELWISE[func]
            return self.answer(
                request._replace(spatial_dims=request.x.dim() - 2 if spatial_dims is None else spatial_dims)
            )
        if func in _ALPHA:
            return self.answer(_request(args, kwargs)._replace(alpha=True))
        if func in _FEATURE_ALPHA:
            request = _request(args, kwargs)
            return self.answer(request._replace(spatial_dims=request.x.dim() - 2, alpha=True))
        if func is drop_branch:
            return self.answer(DropoutRequest(args[0], args[1], True, args[0].dim()))
        if func is drop_padded:
            return self.answer(DropoutRequest(args[0], args[1], True, rows=RowDim(0)))
        if func is F.multi_head_attention_forward:
            return self._multi_head_attention(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _multi_head_attention(self, *args: Any, **kwargs: Any) -> Any:
        """Torch's own function with its calls answered here; asked to override itself, it would never return."""
        original = F.multi_head_attention_forward
        names = {
            **vars(F),
            "has_torch_function": lambda *_: False,
            "dropout": lambda x, p=0.5, training=True, inplace=False: self.answer(DropoutRequest(x, p, training)),
            "scaled_dot_product_attention": self._attention,
        }
        answered = types.FunctionType(original.__code__, names, None, original.__defaults__, original.__closure__)
        return answered(*args, **kwargs)

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
        return self.answer(DropoutRequest(scores.softmax(-1), dropout_p, True)) @ value


def apply_mask(x: Tensor, kept: Tensor, p: float, alpha: bool) -> Tensor:
    """``x`` where ``kept`` is 1, rescaled so that its mean, and for ``alpha`` its variance too, stays what it was."""
    if not alpha:
        return x * (kept / (1.0 - p))
    a = 1.0 / math.sqrt((_SELU_FLOOR**2 * p + 1.0) * (1.0 - p))
    return a * (x * kept + _SELU_FLOOR * (kept - 1.0 + p))


def _request(args: tuple[Any, ...], kwargs: dict[str, Any]) -> DropoutRequest:
    """Input, rate and flag of a dropout call, whichever way they were passed."""
    x = args[0] if args else kwargs["input"]
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    on = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))
    return DropoutRequest(x, float(p), bool(on))
