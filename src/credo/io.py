"""Saving and loading: safetensors for numbers, a JSON card for the rest, never pickle.

A run is a folder of two files, ``model.safetensors`` and ``card.json``. It appears whole or not at all, and
loading checks everything before it changes anything.
"""

from __future__ import annotations

import datetime
import importlib
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from credo import architectures
from credo._arguments import check_bool
from credo._files import read_json, recover, shorten, to_json, write_folder
from credo._registry import Registry
from credo._tensors import (
    TENSORS,
    check_digest,
    digest,
    fingerprint,
    frozen_tensors,
    get_tensors,
    put_tensors,
    tensor_bytes,
)
from credo._version import __version__
from credo.errors import LoadError, unknown_name
from credo.likelihoods import Likelihood
from credo.priors import Prior
from credo.seeding import seeded

CARD = "card.json"
_FORMAT, _FORMAT_VERSION = "credo-run", 1
LARGEST_UNBACKED_SIZE = 4096
_MODEL_PACKAGES = ("credo.methods", "credo.generative")
"""Packages that register their models in ``MODELS`` when they are imported."""
_SECTIONS = {"estimator": "credo.tabular.saving"}
"""Further sections of a card: the module whose ``restore(section, model)`` returns what :func:`load` returns."""


class SavedModel(Protocol):
    """What saving and loading use of a model, which is an ``nn.Module`` too."""

    def _get_config(self) -> dict[str, object]:
        """What JSON can hold of the constructor's arguments."""

    @classmethod
    def _from_config(cls, config: dict[str, Any], net: Any, **overrides: Any) -> Self:
        """Build the model from its configuration and a network, or networks, of the same shape."""

    @classmethod
    def _check_sizes(cls, config: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Raise ``LoadError`` for a configuration that asks for more than ``tensors`` can fill."""

    def _describe_networks(self) -> dict[str, object]:
        """The section ``network`` of the card."""

    def _describe_training(self) -> dict[str, object]:
        """The section ``training`` of the card."""

    def _restore_training(self, card: object) -> None:
        """Restore what :meth:`_describe_training` returned."""


MODELS: Registry[SavedModel] = Registry("method in the card")
"""The models that a card can name."""


def save(model: SavedModel, path: str | Path, *, frozen: bool = True) -> None:
    """Write a model to a folder, replacing an earlier run there.

    Args:
        model: the model.
        path: the folder.
        frozen: whether to write the parameters that are not trained; ``False``: only their fingerprint.
    """
    assert isinstance(model, nn.Module)
    left_out = {} if check_bool(frozen, "frozen") else frozen_tensors(model)
    tensors = tensor_bytes(model, left_out)
    card = describe(model, tensors)
    if left_out:
        card["frozen"] = fingerprint(left_out)
    write_folder(path, {TENSORS: tensors, CARD: to_json(card)})


def load(
    path: str | Path,
    net: Any = None,
    *,
    prior: Prior | None = None,
    likelihood: Likelihood | None = None,
    forward: Any = None,
) -> Any:
    """Load a model that was saved with ``model.save(path)``.

    Args:
        path: the folder.
        net: a network of the same architecture, whose parameters take the saved values; for a deep ensemble a
            factory or a network, for a generative model a mapping from the names of its parts to networks. Networks
            from ``credo.architectures`` may be left out. For a run that was saved with ``frozen=False``, the network
            with the same frozen parameters.
        prior: the prior, if it could not be described in JSON.
        likelihood: the likelihood, if it could not be described in JSON.
        forward: how to call the network, as when the model was built.

    Returns:
        The model: a method, a generative model, or a :class:`credo.Regressor` or :class:`credo.Classifier`.

    Raises:
        LoadError: the folder is damaged, was not written by credo, or does not match ``net``.
    """
    try:
        folder = recover(path)
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        raise LoadError(f"{path!r} is not a folder that can be read: {error}") from error
    card = read_json(folder / CARD)
    method, config = _read_card(card, folder)
    network = card.get("network")
    if forward is None and isinstance(network, dict) and network.get("custom_forward"):
        raise LoadError(f"the run in {folder} called its network with a custom forward; pass it: forward=...")
    if net is None and "frozen" in card:
        raise LoadError(
            f"the run in {folder} was saved without its frozen parameters; pass the network that it was trained on: "
            "credo.load(path, net=...)"
        )
    tensors = get_tensors(folder / TENSORS)
    check_digest(folder / TENSORS, card.get("tensors"), CARD)  # afterwards: the folder may be replaced meanwhile
    try:
        check_count(config, max(LARGEST_UNBACKED_SIZE, count_numbers(tensors.values())))
        method._check_sizes(config, tensors)
    except LoadError as error:
        raise LoadError(f"the card in {folder} {error}") from error
    given = {"prior": prior, "likelihood": likelihood, "forward": forward}
    overrides = {key: value for key, value in given.items() if value is not None}
    with seeded(0, torch.device("cpu")):  # initial weights are drawn, and overwritten
        if net is None or isinstance(net, Mapping):
            net = _rebuild_networks(card.get("network"), net or {}, tensors, folder)
        try:
            model = method._from_config(config, net, **overrides)
        except Exception as error:  # a hostile card can make a constructor fail in any way
            raise LoadError(f"the run in {folder} cannot be built: {shorten(error)}") from error
    unknown = sorted(config.keys() - model._get_config().keys())
    if unknown:
        raise LoadError(f"the card in {folder} holds settings {method.__name__} does not have: {shorten(unknown)}")
    assert isinstance(model, nn.Module)
    if "frozen" in card:
        tensors |= _own_frozen_tensors(model, card["frozen"], folder)
    put_tensors(model, tensors, str(folder / TENSORS))
    model._restore_training(card.get("training"))
    model.eval()
    for section, module in _SECTIONS.items():
        if section in card:
            return importlib.import_module(module).restore(card[section], model)
    return model


def describe(model: SavedModel, tensors: bytes) -> dict[str, Any]:
    """The card of a model.

    Args:
        model: the model.
        tensors: the content of its tensor file.

    Returns:
        What ``card.json`` holds.
    """
    return {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "method": type(model).__name__,
        "config": model._get_config(),
        "network": model._describe_networks(),
        "training": model._describe_training(),
        "tensors": digest(tensors),
        "versions": {"credo": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def check_sizes(description: Any, tensors: Mapping[str, Tensor]) -> None:
    """Raise ``LoadError`` for an integer in ``description`` that is larger than all of ``tensors``."""
    largest = max(LARGEST_UNBACKED_SIZE, count_numbers(tensors.values()))
    for size in pytree.tree_leaves(description):
        if isinstance(size, int) and size > largest:
            raise LoadError(f"holds a size of {size:.3g}, but {TENSORS} is smaller than that")


def check_count(description: Any, maximum: int) -> None:
    """Raise ``LoadError`` for a description of more than ``maximum`` settings, without a look at all of them."""
    waiting, settings = [description], 0
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, dict | list):
            waiting += entry.values() if isinstance(entry, dict) else entry
        else:
            settings += 1
        if len(waiting) + settings > maximum:
            raise LoadError(f"holds more than {maximum:,} settings, too many for {TENSORS}")


def count_numbers(tensors: Any) -> int:
    """The number of elements of all tensors."""
    return sum(tensor.numel() for tensor in tensors)


def describe_network(net: nn.Module) -> dict[str, object]:
    """The network's class and size, and its configuration if it comes from ``credo.architectures``."""
    card: dict[str, object] = {"class": type(net).__name__, "parameters": sum(p.numel() for p in net.parameters())}
    architecture = architectures.describe(net)
    return card if architecture is None else {**card, "architecture": architecture}


def _own_frozen_tensors(model: nn.Module, expected: object, folder: Path) -> dict[str, Tensor]:
    """The frozen parameters of a model, after a check that they are those that a run was saved without."""
    own = frozen_tensors(model)
    if fingerprint(own) != expected:
        raise LoadError(
            f"the run in {folder} was saved without its frozen parameters, and those of net are not the same: pass the "
            "network that it was trained on, with the same parameters frozen"
        )
    return own


def _read_card(card: dict[str, Any], folder: Path) -> tuple[type[SavedModel], dict[str, Any]]:
    """The method a card names and the settings it gives, after checking the rest of it."""
    if card.get("format") != _FORMAT:
        raise LoadError(f"{folder / CARD} is not the card of a credo run")
    if card.get("format_version") != _FORMAT_VERSION:
        found = shorten(repr(card.get("format_version")))
        raise LoadError(f"{folder} has format version {found}; credo {__version__} reads {_FORMAT_VERSION}")
    method, config, training = card.get("method"), card.get("config"), card.get("training")
    for package in _MODEL_PACKAGES:
        importlib.import_module(package)
    model = MODELS.lookup(method)
    if not isinstance(config, dict) or "forward" in config:
        raise LoadError(f"the card in {folder} does not describe how its method was built")
    history = training.get("history") if isinstance(training, dict) else None
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise LoadError(f"the card in {folder} does not hold the history of its training")
    return model, config


def _rebuild_networks(network: object, given: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> Any:
    """The network that a card describes; where a model has several, those that are not ``given``, by name."""
    parts = network.get("parts") if isinstance(network, dict) else None
    if not isinstance(parts, dict):
        return given or _rebuild_network("net", network, tensors, folder)
    for name in given:
        if name not in parts:
            raise LoadError(str(unknown_name("part in net", name, [shorten(str(part)) for part in parts])))
    missing = {str(name): part for name, part in parts.items() if name not in given}
    own = {name: part for name, part in missing.items() if not _has_architecture(part)}
    if own:
        asked = shorten(", ".join(f"{name!r}: ..." for name in own))
        raise LoadError(
            f"{folder} holds what was learned for networks of your own, {_named(own)}; pass such to load it into: "
            f"credo.load(path, net={{{asked}}})"
        )
    return {**given, **{name: _rebuild_network(name, part, tensors, folder) for name, part in missing.items()}}


def _has_architecture(network: object) -> bool:
    return isinstance(network, dict) and isinstance(network.get("architecture"), dict)


def _named(networks: Mapping[str, object]) -> str:
    """Parts of a model and their classes, in words."""
    classes = {
        name: part.get("class", "network") if isinstance(part, dict) else "network" for name, part in networks.items()
    }
    return shorten(" and ".join(f"the {name} (a {kind})" for name, kind in classes.items()))


def _rebuild_network(part: str, network: object, tensors: Mapping[str, Tensor], folder: Path) -> nn.Module:
    if not isinstance(network, dict) or not _has_architecture(network):
        name = shorten(str(network.get("class", "network"))) if isinstance(network, dict) else "network"
        raise LoadError(
            f"{folder} holds what was learned for a {name}; pass one to load it into: credo.load(path, net=...)"
        )
    architecture = network["architecture"]
    try:
        check_count(architecture, LARGEST_UNBACKED_SIZE)
        check_sizes(architecture, tensors)
        with torch.device("meta"):
            sketch = architectures.build(**architecture)
        needed = {id(t): t for t in sketch.state_dict(keep_vars=True).values()}  # a tied parameter is stored once
        if count_numbers(needed.values()) > count_numbers(tensors.values()):
            raise LoadError(f"{TENSORS} is too small for it")
        net = architectures.build(**architecture)
    except Exception as error:  # a hostile card can make a constructor fail in any way
        raise LoadError(f"the network described in {folder} cannot be built: {shorten(error)}") from error
    dtypes = {v.dtype for n, v in tensors.items() if f".{part}." in f".{n}" and v.is_floating_point()}
    return net.to(dtypes.pop()) if len(dtypes) == 1 else net
