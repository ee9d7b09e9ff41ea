"""Vectors of embeddings that stand for padding: they are no parameters."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn


def padding_rows(net: nn.Module) -> dict[str, int]:
    """Where embeddings have a vector for padding, which no gradient reaches: it is no parameter.

    Args:
        net: the network.

    Returns:
        The row by the name of the weight; without tied weights, whose rows are all in use.
    """
    uses = Counter(id(parameter) for _, parameter in net.named_parameters(remove_duplicate=False))
    return {
        f"{path}.weight" if path else "weight": layer.padding_idx
        for path, layer in find_embeddings(net).items()
        if layer.padding_idx is not None and uses[id(layer.weight)] == 1
    }


def without_padding(weight: Tensor, row: int | None, prior: object = None) -> Tensor:
    """A weight as its prior sees it: a vector for padding is at the prior's center, whatever it is in the network.

    It is no parameter, so that its density must not move it, nor count in the choice of a prior's scale.

    Args:
        weight: of an embedding, or of any other module.
        row: from :func:`padding_rows`; ``None``: there is no such vector.
        prior: of the weight, whose center is ``loc`` if it has one, and otherwise 0.

    Returns:
        The weight, differentiable.
    """
    if row is None:
        return weight
    loc = getattr(prior, "loc", None)
    center = weight.new_zeros(()) if loc is None else loc.to(weight)  # nothing is copied from a CPU in a captured step
    return torch.cat([weight[:row], center.expand_as(weight)[row : row + 1], weight[row + 1 :]])


def find_embeddings(net: nn.Module) -> dict[str, nn.Embedding | nn.EmbeddingBag]:
    """The embeddings of a network, by path."""
    return {path: m for path, m in net.named_modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
