"""The public objects of credo: every name of every ``__all__``, under the name by which users reach it."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import credo

PARTS: dict[str, tuple[str, ...]] = {
    "The package": ("credo",),
    "Networks": (
        "methods",
        "priors",
        "likelihoods",
        "posteriors",
        "predictive",
        "training",
        "diagnostics",
        "moments",
        "evaluation",
        "curvature",
    ),
    "Tables": ("tabular", "tabular.estimators", "tabular.targets", "report"),
    "Evaluation": ("metrics", "calibration", "explain", "plots", "datasets"),
    "Decisions": ("decisions",),
    "Classical models": (
        "conjugate",
        "information",
        "linear",
        "mixture",
        "decomposition",
        "sequence",
        "gaussian_process",
        "gaussian_process.kernels",
        "em",
    ),
    "Generative models": ("generative", "generative.evaluation", "architectures"),
    "Production": (
        "serving",
        "export",
        "distillation",
        "integrations.dask",
        "integrations.ray",
        "integrations.skpro",
    ),
    "For authors": ("experiments", "testing", "errors"),
}
"""The parts of the reference and their packages, in the order of its index."""
WITHOUT_ALL = ("errors", "priors")
"""Public modules whose names are their classes and functions."""


@dataclass(frozen=True)
class PublicObject:
    """A public object.

    Attributes:
        name: the shortest public name, ``credo.BayesByBackprop``.
        value: the object.
    """

    name: str
    value: Any

    @property
    def kind(self) -> str:
        """``class``, ``exception``, ``function``, ``module`` or ``data``."""
        if inspect.ismodule(self.value):
            return "module"
        if inspect.isclass(self.value):
            return "exception" if issubclass(self.value, Exception) else "class"
        return "function" if callable(self.value) and hasattr(self.value, "__code__") else "data"

    @property
    def description(self) -> str:
        """The docstring; that of a constant is the string below its assignment."""
        if self.kind != "data":
            return inspect.getdoc(self.value) or ""
        package, _, name = self.name.rpartition(".")
        folder = Path(str(importlib.import_module(package).__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            body = ast.parse(path.read_text(encoding="utf-8")).body
            for assignment, after in pairwise(body):
                targets = getattr(assignment, "targets", [getattr(assignment, "target", None)])
                if any(getattr(target, "id", None) == name for target in targets) and isinstance(after, ast.Expr):
                    return inspect.cleandoc(ast.literal_eval(after.value))
        if name == "__version__":
            return "The version of the package."
        values = self.value if isinstance(self.value, tuple | dict | list) else getattr(self.value, "__args__", ())
        kind = "A mapping with the keys" if isinstance(self.value, dict) else "The values"
        return f"{kind} {', '.join(f'``{value!r}``' for value in values)}."

    @property
    def summary(self) -> str:
        """The first line of the description."""
        return self.description.partition("\n")[0]

    def members(self) -> list[str]:
        """Public methods, properties and documented fields of a class that are defined in credo."""
        found = []
        for name in dir(self.value):
            if name.startswith("_") or name == "extra_repr":
                continue
            owner = next((cls for cls in self.value.__mro__ if name in vars(cls)), None)
            attribute = inspect.getattr_static(self.value, name)
            function = getattr(attribute, "fget", None) or getattr(attribute, "func", None)
            function = function or getattr(attribute, "fn", None) or attribute  # fn: of scikit-learn's available_if
            function = getattr(function, "__func__", function)
            described = callable(function) and not inspect.isclass(function) and (function.__doc__ or "").strip()
            inherited = inspect.getdoc(getattr(self.value, name, None)) if callable(function) else None
            if owner is not None and owner.__module__.startswith("credo") and (described or inherited):
                found.append(name)
        order = {name: i for cls in reversed(self.value.__mro__) for i, name in enumerate(vars(cls))}
        return sorted(found, key=lambda name: order.get(name, 0))


def public_modules() -> dict[str, ModuleType]:
    """Public packages and modules that declare public names, by their names below credo."""
    modules = {"credo": credo}
    for info in pkgutil.walk_packages(credo.__path__, "credo."):
        name = info.name.removeprefix("credo.")
        if not any(part.startswith("_") for part in name.split(".")):
            module = importlib.import_module(info.name)
            if hasattr(module, "__all__") or name in WITHOUT_ALL:
                modules[name] = module
    return modules


def parts() -> dict[str, list[str]]:
    """The packages that there are, by part; those that ``PARTS`` does not name are the last part."""
    modules = public_modules()
    found = {part: [name for name in names if name in modules] for part, names in PARTS.items()}
    listed = {name for names in found.values() for name in names}
    further = [name for name in modules if name not in listed]
    return {**found, "Further packages": further} if further else found


def public_names(module: ModuleType) -> list[str]:
    """The names of ``__all__``, or the public classes and functions that a module without one defines."""
    if module is credo:
        return [*credo.__all__, "Regressor", "Classifier"]
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def public_objects() -> dict[str, list[PublicObject]]:
    """The public objects of every public module, each under the name it has in all of them."""
    modules = public_modules()
    shortest: dict[tuple[str, int], str] = {}
    for module in sorted(modules.values(), key=lambda module: module.__name__.count(".")):
        for name in public_names(module):
            shortest.setdefault((name, id(getattr(module, name))), f"{module.__name__}.{name}")
    return {
        key: [
            PublicObject(shortest[name, id(getattr(module, name))], getattr(module, name))
            for name in public_names(module)
        ]
        for key, module in modules.items()
    }
