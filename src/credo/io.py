"""Saving and loading: safetensors for numbers, a JSON card for the rest, never pickle.

A run is a folder of two files, ``model.safetensors`` and ``card.json``. It appears whole or not at all, and
loading checks everything before it changes anything.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib
import math
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from credo import architectures
from credo._files import read_json, recover, shortened, to_json, write_folder
from credo._version import __version__
from credo.errors import InputError, LoadError, unknown_name
from credo.likelihoods import Likelihood
from credo.methods.base import Method
from credo.methods.deep_ensemble import DeepEnsemble
from credo.model import Model
from credo.posteriors.base import Posterior
from credo.priors import Prior
from credo.seeding import seeded

TENSORS, CARD = "model.safetensors", "card.json"
ESTIMATOR = "estimator"  # the section of a card that makes its model one of a table
_FORMAT, _FORMAT_VERSION = "credo-run", 1
_LARGEST_UNBACKED_SIZE = 4096
_LARGEST_HEADER = 2**24  # of a safetensors file: names, shapes and places
_MOST_TENSORS = 2**17


def save(model: Model, path: str | Path) -> None:
    """Write ``model`` to the folder ``path``, replacing an earlier run there."""
    tensors = tensor_bytes(model)
    write_folder(path, {TENSORS: tensors, CARD: to_json(describe(model, tensors))})


def load(
    path: str | Path,
    net: Any = None,
    *,
    prior: Prior | None = None,
    likelihood: Likelihood | None = None,
    forward: Any = None,
) -> Any:
    """The model saved at ``path``: a method, a generative model, or a :class:`credo.Regressor` or ``Classifier``.

    Args:
        path: the folder.
        net: a network of the same architecture, whose parameters take the saved values; for a deep ensemble a
            factory or a network, for a generative model a mapping from the names of its parts to networks. Networks
            from ``credo.architectures`` may be left out.
        prior: needed where the saved prior could not be described in JSON.
        likelihood: needed where the saved likelihood could not be.
        forward: how to call the network, as when the model was built.
    """
    try:
        folder = recover(path)
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        raise LoadError(f"{path!r} is not a folder that can be read: {error}") from error
    card = read_json(folder / CARD)
    method, config = _read_card(card, folder)
    network = card.get("network")
    if forward is None and isinstance(network, dict) and network.get("custom_forward"):
        raise LoadError(f"the run in {folder} called its network with a forward of its own; pass it: forward=...")
    tensors = get_tensors(folder / TENSORS)
    check_digest(folder / TENSORS, card.get("tensors"), CARD)  # afterwards: the folder may be replaced meanwhile
    _check_sizes(method, config, tensors, folder)
    given = {"prior": prior, "likelihood": likelihood, "forward": forward}
    overrides = {key: value for key, value in given.items() if value is not None}
    with seeded(0, torch.device("cpu")):  # initial weights are drawn, and overwritten
        if net is None or isinstance(net, Mapping):
            net = _rebuild_networks(card.get("network"), net or {}, tensors, folder)
        try:
            model = method.from_config(config, net, **overrides)
        except Exception as error:  # a hostile card can make a constructor fail in any way
            raise LoadError(f"the run in {folder} does not fit: {shortened(error)}") from error
    unknown = sorted(config.keys() - model.get_config().keys())
    if unknown:
        raise LoadError(f"the card in {folder} holds settings {method.__name__} does not have: {shortened(unknown)}")
    put_tensors(model, tensors, str(folder / TENSORS))
    model.restore_training(card.get("training"))
    model.eval()
    if ESTIMATOR not in card:
        return model
    from credo.tabular.saving import restore

    if not isinstance(model, Method):
        raise LoadError(f"the card in {folder} describes an estimator of tables around a {type(model).__name__}")
    return restore(card[ESTIMATOR], model)


def describe(model: Model, tensors: bytes) -> dict[str, Any]:
    """The card of ``model``, whose tensors are written as ``tensors``."""
    return {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "method": type(model).__name__,
        "config": model.get_config(),
        "network": model.network_card(),
        "training": model.training_card(),
        "tensors": digest(tensors),
        "versions": {"credo": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def digest(content: bytes) -> str:
    """What tells a file from any other: the SHA-256 of its content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def check_digest(path: Path, expected: object, source: str) -> None:
    """Raise LoadError if the file ``path`` is not the one that ``source``, a file beside it, was written with."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror or error}") from error
    if found != expected:
        raise LoadError(f"{path} and {source} beside it are not of the same run: one of them was replaced or changed")


def tensor_bytes(module: nn.Module) -> bytes:
    """:func:`unique_tensors` as a safetensors file."""
    tensors = unique_tensors(module)
    if len(tensors) > _MOST_TENSORS:
        raise InputError(f"this model holds {len(tensors):,} tensors, but a run holds {_MOST_TENSORS:,} at most")
    for name, value in _first_names(module):
        if _is_broken(value, isinstance(value, nn.Parameter)):
            raise InputError(f"{name} holds numbers that are NaN or infinite, which would not load: train it again")
    return to_bytes(tensors)


def unique_tensors(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and persistent buffers, on the CPU; a tied one once, under its first name."""
    return {name: to_cpu(value) for name, value in _first_names(module)}


def to_cpu(value: Tensor) -> Tensor:
    """A contiguous copy of ``value`` on the CPU that shares memory with nothing."""
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def get_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors in a safetensors file."""
    try:
        if not path.is_file():
            raise LoadError(f"{path} does not exist or is not a file")
        with path.open("rb") as start:
            header = int.from_bytes(start.read(8), "little")
        if _LARGEST_HEADER < header <= path.stat().st_size:
            raise LoadError(f"{path} describes its tensors at greater length than credo does")
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            if len(names) > _MOST_TENSORS:
                raise LoadError(f"{path} holds {len(names):,} tensors, but a run holds {_MOST_TENSORS:,} at most")
            return {name: file.get_tensor(name) for name in names}
    except LoadError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise LoadError(f"{path} is truncated or not a safetensors file: {shortened(error)}") from error


@torch.no_grad()
def put_tensors(model: nn.Module, values: Mapping[str, Tensor], source: str) -> None:
    """Copy ``values`` into the parameters and buffers of ``model``; all of them, or none."""
    for prefix, part in model.named_modules():
        if not isinstance(part, Posterior | Likelihood):
            continue
        own = {n.removeprefix(f"{prefix}."): v for n, v in values.items() if n.startswith(f"{prefix}.")}
        if isinstance(part, Posterior):
            part.restore(own)
        else:
            dtypes = {value.dtype for value in own.values() if value.is_floating_point()}
            if len(dtypes) == 1:  # a method moved by .double() has a likelihood in float64
                part.to(dtypes.pop())
    expected = dict(_first_names(model))
    missing, unexpected = expected.keys() - values.keys(), values.keys() - expected.keys()
    if missing or unexpected:
        parts = [f"lacks {shortened(sorted(missing))}"] if missing else []
        parts += [f"holds {shortened(sorted(unexpected))}, which the model does not have"] if unexpected else []
        raise LoadError(
            f"{source} does not fit the network: it {' and '.join(parts)}; pass the architecture it was saved with, "
            "with the same parameters frozen"
        )
    for name, value in expected.items():
        new = values[name]
        if new.shape != value.shape or new.dtype != value.dtype:
            raise LoadError(
                f"{source} does not fit the network: {name} is {new.dtype} {list(new.shape)} there, "
                f"{value.dtype} {list(value.shape)} here"
            )
        if _is_broken(new, isinstance(value, nn.Parameter)):
            raise LoadError(f"{source} holds numbers that are NaN or infinite, in {shortened(name)}: train it again")
    for name, value in expected.items():
        value.copy_(values[name])


def _is_broken(value: Tensor, is_parameter: bool) -> bool:
    """Whether nothing can be predicted with it; masks of attention, which are no parameters, may hold infinities."""
    return bool(value.isnan().any() or (is_parameter and value.isinf().any()))


def _first_names(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    seen: set[int] = set()
    for name, value in module.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and id(value) not in seen:
            seen.add(id(value))
            yield name, value


def _read_card(card: dict[str, Any], folder: Path) -> tuple[type[Model], dict[str, Any]]:
    """The method a card names and the settings it gives, after checking the rest of it."""
    if card.get("format") != _FORMAT:
        raise LoadError(f"{folder / CARD} is not the card of a credo run")
    if card.get("format_version") != _FORMAT_VERSION:
        found = shortened(repr(card.get("format_version")))
        raise LoadError(f"{folder} has format version {found}; credo {__version__} reads {_FORMAT_VERSION}")
    method, config, training = card.get("method"), card.get("config"), card.get("training")
    importlib.import_module("credo.generative")  # registers its models
    if not isinstance(method, str) or method not in Model.registry:
        raise LoadError(str(unknown_name("method in the card", shortened(str(method)), Model.registry)))
    if not isinstance(config, dict) or "forward" in config:
        raise LoadError(f"the card in {folder} does not describe how its method was built")
    history = training.get("history") if isinstance(training, dict) else None
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise LoadError(f"the card in {folder} does not hold the history of its training")
    return Model.registry[method], config


def _check_sizes(method: type[Model], config: dict[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Raise ``LoadError`` for a card that asks for more than its tensors can fill, before that is built."""
    if issubclass(method, DeepEnsemble):
        found = len({name.split(".")[1] for name in tensors if name.startswith("members.")})
        if config.get("members") != found:
            wrong = shortened(repr(config.get("members")))
            raise LoadError(f"the card in {folder} says {wrong} members, but {TENSORS} holds {found}")
        config = config["member"] if isinstance(config.get("member"), dict) else {}
    _check_count(config, max(_LARGEST_UNBACKED_SIZE, _count(tensors.values())), folder)
    _check_count(config.get("bayesian"), max(_LARGEST_UNBACKED_SIZE, len(tensors)), folder)
    _check_integers([config.get("codes"), config.get("latent")], tensors, folder)
    if config.get("grid") is not None:  # of the codes of a VQVAE
        _check_grid(config, tensors, folder)
    likelihood = config.get("likelihood")
    if isinstance(likelihood, dict):
        _check_integers(likelihood.get("outputs"), tensors, folder)


def _check_grid(config: dict[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> None:
    """A prior over codes must be as large as the tensor that fills it; the codes, no more than their vectors."""
    sizes: list[Any] = [*config["grid"], config.get("codes")] if isinstance(config["grid"], list) else [None]
    if not all(isinstance(size, int) for size in sizes):
        raise LoadError(f"the card in {folder} does not describe a grid of codes")
    _check_integers(sizes, tensors, folder)
    if config.get("has_prior", True) and math.prod(sizes) != _count([t for n, t in tensors.items() if n == "prior"]):
        raise LoadError(f"the card in {folder} speaks of a grid that the prior in {TENSORS} does not have")


def _check_integers(description: Any, tensors: Mapping[str, Tensor], folder: Path) -> None:
    largest = max(_LARGEST_UNBACKED_SIZE, _count(tensors.values()))
    for size in pytree.tree_leaves(description):
        if isinstance(size, int) and size > largest:
            raise LoadError(f"the card in {folder} speaks of a size of {size:.3g}, but {TENSORS} is smaller than that")


def _check_count(description: Any, most: int, folder: Path) -> None:
    """Raise ``InputError`` for a description of more than ``most`` settings, without a look at all of them."""
    waiting, settings = [description], 0
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, dict | list):
            waiting += entry.values() if isinstance(entry, dict) else entry
        else:
            settings += 1
        if len(waiting) + settings > most:
            raise LoadError(f"the card in {folder} holds more than {most:,} settings, too many for {TENSORS}")


def _rebuild_networks(network: object, given: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> Any:
    """The network that a card describes; where a model has several, those that are not ``given``, by name."""
    parts = network.get("parts") if isinstance(network, dict) else None
    if not isinstance(parts, dict):
        return given or _rebuild_network("net", network, tensors, folder)
    for name in given:
        if name not in parts:
            raise LoadError(str(unknown_name("part in net", name, [shortened(str(part)) for part in parts])))
    missing = {str(name): part for name, part in parts.items() if name not in given}
    own = {name: part for name, part in missing.items() if not _has_recipe(part)}
    if own:
        asked = shortened(", ".join(f"{name!r}: ..." for name in own))
        raise LoadError(
            f"{folder} holds what was learned for networks of your own, {_named(own)}; pass such to load it into: "
            f"credo.load(path, net={{{asked}}})"
        )
    return {**given, **{name: _rebuild_network(name, part, tensors, folder) for name, part in missing.items()}}


def _has_recipe(network: object) -> bool:
    return isinstance(network, dict) and isinstance(network.get("architecture"), dict)


def _named(networks: Mapping[str, object]) -> str:
    """Parts of a model and their classes, in words."""
    classes = {
        name: part.get("class", "network") if isinstance(part, dict) else "network" for name, part in networks.items()
    }
    return shortened(" and ".join(f"the {name} (a {kind})" for name, kind in classes.items()))


def _rebuild_network(part: str, network: object, tensors: Mapping[str, Tensor], folder: Path) -> nn.Module:
    if not isinstance(network, dict) or not _has_recipe(network):
        name = shortened(str(network.get("class", "network"))) if isinstance(network, dict) else "network"
        raise LoadError(
            f"{folder} holds what was learned for a {name}; pass one to load it into: credo.load(path, net=...)"
        )
    recipe = network["architecture"]
    _check_count(recipe, _LARGEST_UNBACKED_SIZE, folder)
    _check_integers(recipe, tensors, folder)
    try:
        with torch.device("meta"):
            sketch = architectures.build(**recipe)
        if _count(sketch.state_dict().values()) > _count(tensors.values()):
            raise LoadError(f"{TENSORS} is too small for it")
        net = architectures.build(**recipe)
    except Exception as error:  # a hostile card can make a constructor fail in any way
        raise LoadError(f"the network described in {folder} cannot be built: {shortened(error)}") from error
    dtypes = {v.dtype for n, v in tensors.items() if f".{part}." in f".{n}" and v.is_floating_point()}
    return net.to(dtypes.pop()) if len(dtypes) == 1 else net


def _count(tensors: Any) -> int:
    return sum(tensor.numel() for tensor in tensors)
