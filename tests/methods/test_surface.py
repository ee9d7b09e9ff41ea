"""What a user sees of a model: few names, and few classes above it."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import credo
from credo.errors import InputError
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


def test_initial_scale_is_saved(tmp_path: Path) -> None:
    x, y = torch.randn(8, 2), torch.randn(8, 1)
    model = credo.BayesByBackprop(nn.Linear(2, 1), credo.Gaussian(0.1), initial_scale=0.2)
    model.fit((x, y), epochs=1, progress=False).save(tmp_path / "run")
    credo.load(tmp_path / "run", net=nn.Linear(2, 1)).save(tmp_path / "again")
    cards = [json.loads((tmp_path / name / "card.json").read_text("utf-8")) for name in ("run", "again")]
    assert [card["config"]["initial_scale"] for card in cards] == [0.2, 0.2]


def test_repr_of_a_cyclical_sampler_shows_its_arguments() -> None:
    model = credo.SGLD(nn.Linear(2, 1), credo.Gaussian(0.1), cycles=4, warmup=2000, draws=80)
    assert "warmup=2000, draws=80" in repr(model)


@pytest.mark.parametrize("batch_size", [0, 2.5, "8"])
def test_a_batch_size_that_is_no_integer_raises(batch_size: Any) -> None:
    model = credo.MAP(nn.Linear(2, 1), credo.Gaussian(0.1))
    with pytest.raises(InputError, match="batch_size must be"):
        model.predict(torch.randn(3, 2), batch_size=batch_size)
