"""What a user sees of a model: few names, and few classes above it."""

from __future__ import annotations

import importlib

import pytest
from torch import nn

import credo
from credo.io import MODELS

importlib.import_module("credo.generative")  # registers its models
MAX_NAMES, MAX_CLASSES = 22, 4


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4, 1))


@pytest.mark.parametrize("method", [credo.BayesByBackprop, credo.MAP, credo.MCDropout, credo.DeepEnsemble])
def test_a_method_adds_few_public_names_to_a_module(method: type) -> None:
    own = set(dir(method(network()))) - set(dir(nn.Module()))
    public = sorted(name for name in own if not name.startswith("_"))
    assert len(public) <= MAX_NAMES, public


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_models_inherit_from_few_classes(model: type) -> None:
    ours = [cls.__name__ for cls in model.__mro__ if cls.__module__.startswith("credo.")]
    assert len(ours) <= MAX_CLASSES, ours
