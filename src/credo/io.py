"""Saving and loading: safetensors for numbers, a JSON card for the rest, never pickle.

A run is a folder of two files, ``model.safetensors`` and ``card.json``. It appears whole or not at all, and
loading checks everything before it changes anything.
"""

from __future__ import annotations

import datetime
import json
import math
import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from credo import architectures
from credo._version import __version__
from credo.errors import CredoError, InputError, LoadError, unknown_name
from credo.likelihoods import Likelihood
from credo.methods.base import Method
from credo.posteriors.base import Posterior
from credo.priors import Prior

TENSORS, CARD = "model.safetensors", "card.json"
_FORMAT, _FORMAT_VERSION = "credo-run", 1
_LARGEST_CARD = 64 * 2**20


def save(model: Method, path: str | Path) -> None:
    """Write ``model`` to the folder ``path``, replacing an earlier run there."""
    card = json.dumps(finite(describe(model)), indent=2, allow_nan=False)
    write_folder(path, {TENSORS: to_bytes(unique_tensors(model)), CARD: card.encode()})


def load(
    path: str | Path,
    net: Any = None,
    *,
    prior: Prior | None = None,
    likelihood: Likelihood | None = None,
    forward: Any = None,
) -> Method:
    """The model saved at ``path``.

    Args:
        path: the folder.
        net: a network of the same architecture, whose parameters take the saved values; for a deep ensemble a
            factory or a network. May be left out for networks from ``credo.architectures``.
        prior: needed where the saved prior could not be described in JSON.
        likelihood: needed where the saved likelihood could not be.
        forward: how to call the network, as when the model was built.
    """
    folder = Path(path)
    card = read_json(folder / CARD)
    if card.get("format") != _FORMAT:
        raise LoadError(f"{folder / CARD} is not the card of a credo run")
    if card.get("format_version") != _FORMAT_VERSION:
        raise LoadError(
            f"{folder} has format version {card.get('format_version')!r}; credo {__version__} reads {_FORMAT_VERSION}"
        )
    method, config = card.get("method"), card.get("config")
    if method not in Method.registry:
        raise LoadError(str(unknown_name("method in the card", method, Method.registry)))
    if not isinstance(config, dict):
        raise LoadError(f"the card in {folder} does not describe how its method was built")
    if net is None:
        net = _rebuild_network(card, folder)
    overrides = {"prior": prior, "likelihood": likelihood, "forward": forward}
    try:
        model = Method.registry[method].from_config(
            config, net, **{key: value for key, value in overrides.items() if value is not None}
        )
    except LoadError:
        raise
    except (CredoError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise LoadError(f"the run in {folder} does not fit: {error}") from error
    read_tensors(folder / TENSORS, model)
    model.restore_training(card.get("training"))
    model.eval()
    return model


def describe(model: Method) -> dict[str, Any]:
    """The card of ``model``."""
    return {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "method": type(model).__name__,
        "config": model.config(),
        "network": model.network_card(),
        "training": model.training_card(),
        "versions": {"credo": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def unique_tensors(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and persistent buffers, on the CPU; a tied one once, under its first name."""
    seen: set[int] = set()
    tensors = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and id(value) not in seen:
            seen.add(id(value))
            tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensors


def read_tensors(path: Path, module: nn.Module) -> None:
    """Fill ``module`` from a safetensors file, after checking every name, shape and dtype."""
    try:
        with safe_open(path, framework="pt") as file:
            loaded = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise LoadError(f"{path} does not exist") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise LoadError(f"{path} is truncated or not a safetensors file: {error}") from error
    for prefix, part in module.named_modules():
        if isinstance(part, Posterior):
            start = f"{prefix}." if prefix else ""
            part.restore({k.removeprefix(start): v for k, v in loaded.items() if k.startswith(start)})
    fill(module, loaded, str(path))


@torch.no_grad()
def fill(module: nn.Module, values: Mapping[str, Tensor], source: str) -> None:
    """Copy ``values`` into the parameters and buffers of ``module``; all of them, or none."""
    target = {n: v for n, v in module.state_dict(keep_vars=True).items() if isinstance(v, Tensor)}
    first: dict[int, str] = {}
    expected = {name: value for name, value in target.items() if first.setdefault(id(value), name) == name}
    missing, unexpected = expected.keys() - values.keys(), values.keys() - expected.keys()
    if missing or unexpected:
        parts = [f"lacks {', '.join(sorted(missing)[:3])}"] if missing else []
        parts += [f"holds {', '.join(sorted(unexpected)[:3])}, which the model does not have"] if unexpected else []
        raise LoadError(f"{source} does not fit the network: it {' and '.join(parts)}; pass the architecture it was saved with")
    for name, value in expected.items():
        new = values[name]
        if new.shape != value.shape or new.dtype != value.dtype:
            raise LoadError(
                f"{source} does not fit the network: {name} is {new.dtype} {list(new.shape)} there, "
                f"{value.dtype} {list(value.shape)} here"
            )
    for name, value in expected.items():
        value.copy_(values[name])


def write_folder(path: str | Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of ``files`` that appears whole or not at all; replaces only a folder of such files."""
    target = Path(path)
    if target.exists():
        foreign = [p.name for p in target.iterdir() if p.name not in files] if target.is_dir() else [target.name]
        if foreign:
            raise InputError(f"{target} holds other things ({', '.join(sorted(foreign)[:3])}); choose a new folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for name, content in files.items():
            (staging / name).write_bytes(content)
        staging.chmod(0o755)
        if target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
            target.rename(old / "run")
            staging.rename(target)
            shutil.rmtree(old)
        else:
            staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of reasonable size, or a sentence."""
    try:
        if path.stat().st_size > _LARGEST_CARD:
            raise LoadError(f"{path} is too large to be a card")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise LoadError(f"{path} does not exist; is {path.parent} a folder that credo saved?") from error
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{path} is damaged or not JSON: {error}") from error
    if not isinstance(content, dict):
        raise LoadError(f"{path} must hold a JSON object")
    return content


def finite(value: Any) -> Any:
    """``value`` with every number that JSON cannot hold replaced by ``None``."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, list | tuple) else value


def _rebuild_network(card: dict[str, Any], folder: Path) -> nn.Module:
    network = card.get("network")
    if not isinstance(network, dict) or "architecture" not in network:
        name = network.get("class", "network") if isinstance(network, dict) else "network"
        raise LoadError(f"{folder} holds a posterior over a {name}; pass one to load it into: credo.load(path, net=...)")
    try:
        return architectures.build(**network["architecture"])
    except (CredoError, TypeError, ValueError, KeyError) as error:
        raise LoadError(f"the network described in {folder} cannot be built: {error}") from error
