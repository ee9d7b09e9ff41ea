"""One table over every method and every posterior: each keeps the contract that ``credo.testing`` checks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import StudentT

import credo
from credo.likelihoods import Likelihood
from credo.methods import Method
from credo.posteriors import MeanField, Posterior
from credo.posteriors.dropout import WeightDropout, weight_layers
from credo.posteriors.point import PointMass
from credo.selection import select
from credo.testing import check_method, check_posterior
from credo.testing.method import Task

Build = Callable[[nn.Module, Likelihood], Method]


@dataclass(frozen=True)
class Row:
    """A method, how its predictions behave, and what ``credo.load`` must be given."""

    build: Build
    stochastic: bool = True
    dropout: float = 0.0
    load_options: dict[str, Any] | None = None


def bbb(**options: Any) -> Build:
    return lambda net, likelihood: credo.BayesByBackprop(net, likelihood, **options)


HEAVY_TAILED = StudentT(3.0)
METHODS: dict[str, Row] = {
    "bbb": Row(bbb()),
    "bbb-weight": Row(bbb(estimator="weight")),
    "bbb-local": Row(bbb(estimator="local")),
    "bbb-flipout": Row(bbb(estimator="flipout", samples=2)),
    "bbb-scale-mixture": Row(bbb(prior=credo.ScaleMixture())),
    "bbb-weight-scale-mixture": Row(bbb(prior=credo.ScaleMixture(), estimator="weight")),
    "bbb-laplace-prior": Row(bbb(prior=credo.LaplacePrior(0.0, 0.5))),
    "bbb-sampled-kl": Row(bbb(kl="sampled", temperature=2.0)),
    "bbb-priors-by-name": Row(bbb(prior={"0.*": credo.Normal(0.0, 0.3), "*": credo.ScaleMixture()})),
    "bbb-any-distribution": Row(bbb(prior=HEAVY_TAILED), load_options={"prior": HEAVY_TAILED}),
    "bbb-last-layer": Row(bbb(bayesian="2.*", estimator="flipout")),
    "mc-dropout": Row(lambda net, likelihood: credo.MCDropout(net, likelihood, p=0.1)),
    "mc-dropout-weight-noise": Row(lambda net, likelihood: credo.MCDropout(net, likelihood, p=0.1, weight_noise=0.05)),
    "mc-dropout-own-layers": Row(lambda net, likelihood: credo.MCDropout(net, likelihood), dropout=0.2),
    "map": Row(lambda net, likelihood: credo.MAP(net, likelihood), stochastic=False),
    "ensemble-of-map": Row(
        lambda net, likelihood: credo.DeepEnsemble(net, members=2, likelihood=likelihood), stochastic=False
    ),
    "ensemble-of-bbb": Row(
        lambda net, likelihood: credo.DeepEnsemble(net, 2, credo.BayesByBackprop, likelihood=likelihood)
    ),
}


@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_the_contract(name: str, task: Task) -> None:
    row = METHODS[name]
    likelihood: Likelihood = credo.Gaussian("learned", initial=0.5) if task == "regression" else credo.Categorical()

    def network() -> nn.Module:
        return credo.architectures.MLP(3, (8,), 1 if task == "regression" else 3, "tanh", row.dropout or None).layers

    check_method(
        lambda net: row.build(net, copy.deepcopy(likelihood)),
        network,
        task,
        stochastic=row.stochastic,
        load_options=row.load_options,
    )


def test_every_method_is_in_the_table() -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2))

    named = {type(row.build(net(), credo.Gaussian(1.0))) for row in METHODS.values()}
    ours = {method for method in Method.registry.values() if method.__module__.startswith("credo.")}
    assert ours == named


def tied_network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.LayerNorm(4), nn.Conv1d(4, 6, 1, groups=2))
    net[2].weight = net[0].weight
    net[4].bias.requires_grad_(False)
    return net


def mean_field(net: nn.Module) -> Posterior:
    return MeanField(net, select(net), initial_scale=0.3)


def pruned(net: nn.Module) -> Posterior:
    posterior = MeanField(net, select(net), initial_scale=0.3)
    posterior.prune(0.25)
    return posterior


def weight_dropout(net: nn.Module, noise: float = 0.0) -> Posterior:
    units = weight_layers(net)
    return WeightDropout(net, units, dict.fromkeys(units, 0.3), noise)


POSTERIORS: dict[str, Callable[[nn.Module], Posterior]] = {
    "mean-field": mean_field,
    "mean-field-pruned": pruned,
    "point-mass": lambda net: PointMass(net, select(net)),
    "weight-dropout": weight_dropout,
    "weight-dropout-noise": lambda net: weight_dropout(net, 0.1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", POSTERIORS)
def test_every_posterior_keeps_the_contract(name: str, dtype: torch.dtype) -> None:
    net = tied_network().to(dtype)
    check_posterior(POSTERIORS[name](net), net)


@pytest.mark.parametrize("prior", [credo.LaplacePrior(0.1, 0.7), {"0.weight": credo.Normal(), "*": credo.Normal(0, 2)}])
def test_the_kl_contract_holds_for_other_closed_forms(prior: Any) -> None:
    net = tied_network()
    check_posterior(mean_field(net), net, prior=prior)


def test_the_kl_contract_holds_for_an_estimate() -> None:
    net = tied_network()
    check_posterior(mean_field(net), net, prior=credo.ScaleMixture(), closed_form=False)
