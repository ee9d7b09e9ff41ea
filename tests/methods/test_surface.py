"""What a user sees of a model: few names, and few classes above it."""

from __future__ import annotations

import inspect

import pytest
from torch import nn

import credo
from credo_modules import credo_modules

MAX_NAMES, MAX_CLASSES = 23, 5
"""Five classes are HMC, Sampler, NetworkMethod, Method and Model: what four samplers share is a class of its own."""


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4, 1))


METHODS = [credo.BayesByBackprop, credo.MAP, credo.MCDropout, credo.DeepEnsemble, credo.HMC, credo.Laplace]
METHODS += [credo.ConcreteDropout, credo.IVON, credo.MCLMC, credo.SGLD, credo.SGHMC, credo.SNGP, credo.SWAG]
METHODS += [credo.VariationalLastLayer]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_adds_few_public_names_to_a_module(method: type) -> None:
    own = set(dir(method(network()))) - set(dir(nn.Module()))
    public = sorted(name for name in own if not name.startswith("_"))
    assert len(public) <= MAX_NAMES, public


def test_classes_inherit_from_few_others() -> None:
    classes = {cls for module in credo_modules() for cls in vars(module).values() if inspect.isclass(cls)}
    ours = [[c.__name__ for c in cls.__mro__ if c.__module__.startswith("credo.")] for cls in classes]
    assert [names for names in ours if len(names) > MAX_CLASSES] == []
