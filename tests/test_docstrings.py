"""Docstrings of public callables are complete (summary, ``Args``, ``Returns``), and the examples in them run."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import credo
from credo.tabular import methods
from credo_modules import credo_modules

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


NOT_RUN = {
    "credo.calibration.cross_conformal.CrossConformalClassifier": "takes minutes",
    "credo.calibration.cross_conformal.CrossConformalRegressor": "takes minutes",
    "credo.datasets.files.Split": "needs a data set",
    "credo.decisions.active_learning.ActiveLearner": "asks an expert",
    "credo.decisions.bandit.ThompsonBandit": "needs an environment",
    "credo.decisions.optimization.Evaluation": "needs an experiment",
    "credo.decisions.optimization.ThompsonOptimizer": "needs an experiment",
    "credo.integrations.skpro.ProbaRegressor": "needs the extra skpro",
    "credo.likelihoods.base.Likelihood": "an abstract class",
    "credo.methods.hmc.HMC": "takes minutes",
    "credo.methods.mclmc.MCLMC": "takes minutes",
    "credo.methods.stochastic_gradient_mcmc.SGHMC": "takes minutes",
    "credo.methods.stochastic_gradient_mcmc.SGLD": "takes minutes",
    "credo.metrics.segmentation.SegmentationScores": "needs a network of images",
    "credo.metrics.segmentation.accuracy_by_kept": "needs a network of images",
    "credo.plots.restoration.restoration_maps": "needs a network of images",
    "credo.plots.segmentation.segmentation_maps": "needs a network of images",
    "credo.posteriors.empirical.Empirical": "takes minutes",
    "credo.report.comparison.render_comparison": "takes minutes",
    "credo.report.rendering.render": "takes seconds; tests/report has the same",
    "credo.report.rendering.write": "takes seconds; tests/report has the same",
    "credo.sequence.generation.Generated": "needs a network of captions",
    "credo.serving.batching.Batcher": "needs an event loop",
    "credo.serving.server.create_app": "needs the extra serve",
    "credo.serving.server.serve": "needs the extra serve",
    "credo.stacking.Stack": "needs a function of its own",
    "credo.testing.calibration.Ranks": "needs a model of its own",
}
"""Docstrings with examples that are not run, and why."""


class WrittenOutput(doctest.OutputChecker):
    """Compares the output of a line only where the docstring shows one."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


@cache
def examples() -> dict[str, tuple[ModuleType, doctest.DocTest]]:
    """The docstrings that have examples, by the full names of their objects."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    return {test.name: (module, test) for module in credo_modules() for test in finder.find(module) if test.examples}


@cache
def of_the_reader(kind: str) -> dict[str, Any]:
    """What an example takes for granted: a network and data, or a fitted model of "numbers", "classes" or a "table"."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(60, 3, generator=rng)
    names: dict[str, Any] = {"credo": credo, "torch": torch, "nn": nn, "np": np, "plt": plt, "math": math}
    names |= {"x": x, "x_new": x[:4]}
    names |= {"VAE": credo.generative.VAE, "labels": (x[:, 0] > 0.5).long(), "grades": (5 * x[:, 0]).long()}
    names |= {"counts": (9 * x[:, :1]).round(), "shares": x[:, :1] * 0.9 + 0.05, "prices": x[:, :1] + 1.0}
    names |= {"x_held_out": x, "x_test": x, "digits": x, "letters": 3 * x, "pool": x}
    names["y"] = names["labels"] if kind == "classes" else x.sum(1, keepdim=True)
    names |= {"y_held_out": names["y"], "y_test": names["y"]}
    if kind == "table":
        frame = pd.DataFrame(x.numpy(), columns=["age", "size", "weight"])
        table = credo.Regressor("map", epochs=5, random_state=0).fit(frame, frame.sum(axis=1))
        return names | {"model": table, "X_test": frame, "y_test": frame.sum(axis=1)}
    likelihood = credo.Categorical() if kind == "classes" else credo.Gaussian(0.1)
    model = credo.BayesByBackprop(network(2 if kind == "classes" else 1), likelihood)
    model.fit((x, names["y"]), epochs=2, seed=0)
    return names | {"model": model, "p": model.predict(x, samples=10, seed=0)}


def network(outputs: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, outputs))


def kind_of(module: ModuleType, source: str) -> str:
    if module.__name__.startswith(("credo.explain", "credo.report")):
        return "table"
    words = r"Categorical|Temperature|reliability|misclassification|p\.mode|labels|batch_bald|out_of_distribution"
    return "classes" if re.search(words, source) else "numbers"


def outputs_of(source: str) -> int:
    if "Bernoulli" in source or "Ordinal" in source:
        return 1
    return 2 if "Categorical" in source or "heteroscedastic" in source else 1


@pytest.mark.parametrize("part", PARTS)
def test_examples_of_docstrings_run(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with the names of its module, and with the reader's network and data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(methods, "_METHODS", dict(methods._METHODS))  # one of the examples registers a method
    found: list[str] = []
    for name, (module, test) in examples().items():
        if name.split(".")[1] != part or name in NOT_RUN:
            continue
        source = "".join(example.source for example in test.examples)
        own = {"net": network(outputs_of(source)), "trained": network(2)}
        test.globs = {**of_the_reader(kind_of(module, source)), **own, **vars(module)}
        runner = doctest.DocTestRunner(WrittenOutput(), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        with torch.random.fork_rng(), contextlib.redirect_stdout(None):
            torch.manual_seed(0)
            runner.run(test, out=found.append)
    plt.close("all")
    assert not found, "".join(found)


def test_examples_that_are_not_run_exist() -> None:
    assert set(NOT_RUN) <= set(examples())
