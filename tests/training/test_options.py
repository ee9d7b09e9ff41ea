"""The options of ``fit`` are listed once, and shown in the signature and the docstring of every ``fit``."""

from __future__ import annotations

import dataclasses
import inspect
from typing import get_type_hints

import pytest

import credo
from credo.generative import VAE, VQVAE
from credo.training import FitOptions
from credo.training.options import FitKeywords

NAMES = [field.name for field in dataclasses.fields(FitOptions)]


def test_keywords_have_the_names_and_types_of_the_options() -> None:
    options = get_type_hints(FitOptions)
    assert get_type_hints(FitKeywords) == {name: options[name] for name in NAMES}


@pytest.mark.parametrize("model", [credo.BayesByBackprop, credo.DeepEnsemble, VAE, VQVAE], ids=lambda m: m.__name__)
def test_fit_shows_its_options(model: type) -> None:
    parameters = inspect.signature(model.fit).parameters
    assert [name for name in parameters if name in NAMES] == NAMES
    assert {name: parameters[name].default for name in NAMES} == {
        f.name: f.default for f in dataclasses.fields(FitOptions)
    }
    documented = inspect.getdoc(model.fit)
    assert documented is not None
    assert all(f"\n    {name}: " in documented for name in NAMES)
