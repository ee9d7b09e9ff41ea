"""Public callables have complete docstrings: a summary, ``Args`` for every argument, and ``Returns``."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import credo

PARTS = sorted(module.name for module in pkgutil.iter_modules(credo.__path__) if module.name != "__main__")
NOT_DESCRIBED = (None, "None", "Self", "Never", "typing.Never", "NoReturn", inspect.Signature.empty)


def public_modules() -> Iterator[ModuleType]:
    yield credo
    for module in pkgutil.walk_packages(credo.__path__, "credo."):
        if not any(part.startswith("_") for part in module.name.split(".")):
            yield importlib.import_module(module.name)


def public_methods(cls: type) -> Iterator[tuple[Callable[..., Any], str]]:
    """The methods of a class that are defined in credo, with their own or inherited docstrings."""
    for name in dir(cls):
        attribute = inspect.getattr_static(cls, name)
        function = getattr(attribute, "__func__", attribute)  # of a class or static method
        if not name.startswith("_") and inspect.isfunction(function) and function.__module__.startswith("credo"):
            yield function, inspect.getdoc(getattr(cls, name)) or ""


def public_callables() -> dict[str, tuple[Callable[..., Any], str]]:
    """Full names of the functions, classes and methods that an ``__all__`` leads to, with their docstrings."""
    found = {}
    for module in public_modules():
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__module__.startswith("credo"):
                described = [(thing, inspect.getdoc(thing) or "")]
                if inspect.isclass(thing):
                    described += public_methods(thing)
                found.update({f"{f.__module__}.{f.__qualname__}": (f, doc) for f, doc in described})
    return found


def described_names(docstring: str) -> set[str]:
    """The names at the start of a line in the sections ``Args`` and ``Attributes``."""
    sections = re.findall(r"^(?:Args|Attributes):\n((?:[ \t]+.*\n?|\n)+)", docstring, flags=re.MULTILINE)
    return set(re.findall(r"^\s+\*{0,2}(\w+)\b[^:\n]*:", "\n".join(sections), flags=re.MULTILINE))


def missing_parts(thing: Callable[..., Any], docstring: str) -> list[str]:
    """What a docstring lacks."""
    if not docstring.strip():
        return ["a docstring"]
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):  # a class without a signature, such as some enumerations
        return []
    inherited = inspect.isclass(thing) and not getattr(thing.__init__, "__module__", "").startswith("credo")
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    arguments = [
        name
        for name, parameter in signature.parameters.items()
        if name not in ("self", "cls") and not (inherited and parameter.kind in variadic)
    ]
    missing = [f"Args: {name}" for name in arguments if name not in described_names(docstring)]
    returns_value = not inspect.isclass(thing) and signature.return_annotation not in NOT_DESCRIBED
    if returns_value and not re.search(r"^(Returns|Yields):", docstring, flags=re.MULTILINE):
        missing.append("Returns")
    return missing


@pytest.fixture(scope="module")
def incomplete() -> dict[str, list[str]]:
    """What is missing, by the full name of the callable."""
    missing = {name: missing_parts(*described) for name, described in public_callables().items()}
    return {name: parts for name, parts in sorted(missing.items()) if parts}


@pytest.mark.parametrize("part", PARTS)
def test_public_docstrings_are_complete(part: str, incomplete: dict[str, list[str]]) -> None:
    lines = [f"{name}: {', '.join(parts)}" for name, parts in incomplete.items() if name.split(".")[1] == part]
    assert not lines, "missing in docstrings:\n" + "\n".join(lines)


def test_missing_parts_are_found() -> None:
    def f(a: int, *rest: int, b: float = 1.0, **options: int) -> int:
        return a

    short = "Add."
    full = "Add.\n\nArgs:\n    a: one.\n    *rest: more.\n    b (float): another,\n        a: b.\n    **options: all.\n"
    assert missing_parts(f, "") == ["a docstring"]
    assert missing_parts(f, short) == ["Args: a", "Args: rest", "Args: b", "Args: options", "Returns"]
    assert missing_parts(f, full) == ["Returns"]
    assert missing_parts(f, full + "\nReturns:\n    the sum.\n") == []
    assert missing_parts(f, full.replace("    b (float)", "    c")) == ["Args: b", "Returns"]
