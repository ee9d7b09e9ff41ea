"""One table over every method and every posterior: each keeps the contract that ``credo.testing`` checks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import StudentT

import credo
from credo.errors import InputError
from credo.functional import Sampler
from credo.io import MODELS
from credo.likelihoods import Likelihood
from credo.methods import Method
from credo.methods.distilled import Distilled
from credo.posteriors import Empirical, LowRankGaussian, MeanField, Posterior
from credo.posteriors.concrete_dropout import ConcreteWeightDropout
from credo.posteriors.dropout import WeightDropout, weight_layers
from credo.posteriors.point import PointMass
from credo.posteriors.trajectory import TrajectoryGaussian
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
    fit_options: dict[str, Any] | None = None


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
    "bbb-adaptive-prior": Row(bbb(prior=credo.AdaptiveNormal())),
    "bbb-laplace-prior": Row(bbb(prior=credo.LaplacePrior(0.0, 0.5))),
    "bbb-sampled-kl": Row(bbb(kl="sampled", temperature=2.0)),
    "bbb-priors-by-name": Row(bbb(prior={"0.*": credo.Normal(0.0, 0.3), "*": credo.ScaleMixture()})),
    "bbb-any-distribution": Row(bbb(prior=HEAVY_TAILED), load_options={"prior": HEAVY_TAILED}),
    "bbb-low-rank": Row(bbb(rank=2)),
    "bbb-low-rank-scale-mixture": Row(bbb(rank=3, prior=credo.ScaleMixture(), estimator="flipout")),
    "bbb-low-rank-hierarchical": Row(bbb(rank=1, prior=credo.HierarchicalNormal("input"), estimator="weight")),
    "bbb-last-layer": Row(bbb(bayesian="2.*", estimator="flipout")),
    "mc-dropout": Row(lambda net, likelihood: credo.MCDropout(net, likelihood, p=0.1)),
    "mc-dropout-weight-noise": Row(lambda net, likelihood: credo.MCDropout(net, likelihood, p=0.1, weight_noise=0.05)),
    "mc-dropout-connections": Row(lambda net, likelihood: credo.MCDropout(net, likelihood, p=0.1, connections=True)),
    "mc-dropout-own-layers": Row(lambda net, likelihood: credo.MCDropout(net, likelihood), dropout=0.2),
    "concrete-dropout": Row(lambda net, likelihood: credo.ConcreteDropout(net, likelihood, p=0.2)),
    "hmc": Row(
        lambda net, likelihood: credo.HMC(net, likelihood, warmup=20, draws=50, leapfrog_steps=2, init="prior"),
        fit_options={"progress": False},
    ),
    "hmc-hierarchical": Row(
        lambda net, likelihood: credo.HMC(
            net, likelihood, credo.HierarchicalNormal("unit"), warmup=20, draws=50, leapfrog_steps=2, init="prior"
        ),
        fit_options={"progress": False},
    ),
    "bbb-hierarchical": Row(bbb(prior=credo.HierarchicalNormal("input"))),
    "sgld": Row(
        lambda net, likelihood: credo.SGLD(net, likelihood, warmup=20, draws=50, thinning=2, init="prior"),
        fit_options={"progress": False},
    ),
    "sghmc-cyclical": Row(
        lambda net, likelihood: credo.SGHMC(
            net, likelihood, warmup=40, draws=60, thinning=2, cycles=4, batch_size=7, init="network"
        ),
        fit_options={"progress": False},
    ),
    "mclmc": Row(
        lambda net, likelihood: credo.MCLMC(net, likelihood, warmup=50, draws=50, thinning=2, init="prior"),
        fit_options={"progress": False},
    ),
    "ivon": Row(lambda net, likelihood: credo.IVON(net, likelihood)),
    "ivon-clipped": Row(
        lambda net, likelihood: credo.IVON(net, likelihood, credo.Normal(0.1, 0.5), bayesian="2.*", clip_radius=0.1)
    ),
    "swag": Row(lambda net, likelihood: credo.SWAG(net, likelihood)),
    "swag-diagonal": Row(lambda net, likelihood: credo.SWAG(net, likelihood, rank=0, start=0.0, bayesian="2.*")),
    "multi-swag": Row(
        lambda net, likelihood: credo.DeepEnsemble(net, 2, credo.SWAG, likelihood=likelihood, rank=2, start=0.2)
    ),
    "map": Row(lambda net, likelihood: credo.MAP(net, likelihood), stochastic=False),
    "laplace": Row(lambda net, likelihood: credo.Laplace(net, likelihood), stochastic=False),
    "laplace-full": Row(lambda net, likelihood: credo.Laplace(net, likelihood, structure="full"), stochastic=False),
    "laplace-diag": Row(
        lambda net, likelihood: credo.Laplace(net, likelihood, structure="diag", linearized=False, parameters="2.*")
    ),
    "laplace-low-rank": Row(
        lambda net, likelihood: credo.Laplace(net, likelihood, structure="low_rank", rank=5, linearized=False)
    ),
    "laplace-kron-sampled": Row(
        lambda net, likelihood: credo.Laplace(net, likelihood, prior=credo.AdaptiveNormal(), linearized=False)
    ),
    "variational-last-layer": Row(lambda net, likelihood: credo.VariationalLastLayer(net, likelihood)),
    "variational-last-layer-diagonal": Row(
        lambda net, likelihood: credo.VariationalLastLayer(
            net, likelihood, credo.AdaptiveNormal(), layer="2", covariance="diagonal"
        )
    ),
    "sngp": Row(lambda net, likelihood: credo.SNGP(net, likelihood, features=20)),
    "sngp-unbounded": Row(
        lambda net, likelihood: credo.SNGP(
            net, likelihood, credo.Normal(0.1, 0.5), features=8, length_scale=2.0, spectral_bound=None, layer="2"
        )
    ),
    "ensemble-of-map": Row(
        lambda net, likelihood: credo.DeepEnsemble(net, members=2, likelihood=likelihood), stochastic=False
    ),
    "ensemble-of-bbb": Row(
        lambda net, likelihood: credo.DeepEnsemble(net, 2, credo.BayesByBackprop, likelihood=likelihood)
    ),
}


IN_FIT = ["hmc", "sgld", "sghmc-cyclical", "mclmc", "swag", "multi-swag", "laplace", "laplace-diag", "sngp"]
"""Methods whose posterior is found in ``fit`` and not by gradient steps on the loss."""


@pytest.mark.parametrize("name", IN_FIT)
def test_without_a_posterior_there_is_no_prediction_but_that_of_the_network(name: str, tmp_path: Path) -> None:
    def build() -> Method:
        torch.manual_seed(0)
        return METHODS[name].build(
            nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), credo.Gaussian("learned")
        )

    model, x = build(), torch.ones(4, 2)
    with pytest.raises(InputError, match="no posterior before fit"):
        model.predict(x, samples=5)
    point = model.predict(x, samples=0)
    assert torch.equal(point.epistemic, torch.zeros(4, 1))
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", net=nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
    assert torch.equal(loaded.predict(x, samples=0).mean, point.mean)
    assert loaded.summary() == model.summary()
    for copied in (loaded, copy.deepcopy(model)):
        with pytest.raises(InputError, match="no posterior before fit"):
            copied.predict(x, samples=5)
    options = METHODS[name].fit_options or {"epochs": 1}
    fitted = build().fit((torch.randn(8, 2), torch.randn(8, 1)), seed=0, **options)
    fitted.load_state_dict(model.state_dict())
    with pytest.raises(InputError, match="no posterior before fit"):
        fitted.predict(x, samples=5)


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
        fit_options=row.fit_options,
    )


def test_every_method_is_in_the_table() -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2))

    named = {type(row.build(net(), credo.Gaussian(1.0))) for row in METHODS.values()}
    ours = {m for m in MODELS.values() if issubclass(m, Method) and m.__module__.startswith("credo.")}
    assert ours - {Distilled} == named  # it learns from a model, not from data: tests/test_distillation.py


def tied_network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.LayerNorm(4), nn.Conv1d(4, 6, 1, groups=2))
    net[2].weight = net[0].weight
    net[4].bias.requires_grad_(False)
    return net


def mean_field(net: nn.Module) -> Posterior:
    return MeanField(net, select(net), initial_scale=0.3)


def low_rank(net: nn.Module) -> Posterior:
    torch.manual_seed(0)
    return LowRankGaussian(net, select(net), rank=3, initial_scale=0.3)


def pruned(net: nn.Module) -> Posterior:
    posterior = MeanField(net, select(net), initial_scale=0.3)
    posterior.prune(0.25)
    return posterior


def weight_dropout(net: nn.Module, noise: float = 0.0) -> Posterior:
    units = weight_layers(net)
    return WeightDropout(net, units, dict.fromkeys(units, 0.3), noise)


def concrete_dropout(net: nn.Module) -> Posterior:
    units = weight_layers(net)
    return ConcreteWeightDropout(net, units, dict.fromkeys(units, 0.3))


def empirical(net: nn.Module) -> Posterior:
    source = torch.Generator().manual_seed(0)
    means = {name: net.get_parameter(name) for name in select(net)}
    noise = {name: torch.randn(4, 250, *mean.shape, generator=source) for name, mean in means.items()}
    return Empirical({name: mean + 0.3 * noise[name].to(mean.dtype) for name, mean in means.items()})


def laplace(structure: str) -> Callable[[nn.Module], Posterior]:
    def build(net: nn.Module) -> Posterior:
        dtype = next(net.parameters()).dtype
        source = torch.Generator().manual_seed(0)
        x, y = (torch.randn(9, *shape, generator=source, dtype=dtype) for shape in ((4, 4), (6, 4)))

        def forward(net: Any, x: Tensor) -> Any:
            return net[4](net[:4](x).mT)

        model = credo.Laplace(net, credo.Gaussian(0.5), structure=structure, forward=forward)
        return model.fit((x, y), epochs=0).posterior

    return build


def trajectory(rank: int) -> Callable[[nn.Module], Posterior]:
    def build(net: nn.Module) -> Posterior:
        posterior = TrajectoryGaussian(net, select(net), rank)
        source = torch.Generator().manual_seed(0)
        for _ in range(7):
            for weight in posterior.mean().values():
                weight += 0.1 * torch.randn(weight.shape, generator=source, dtype=weight.dtype)
            posterior.collect()
        posterior.center()
        return posterior

    return build


POSTERIORS: dict[str, Callable[[nn.Module], Posterior]] = {
    "trajectory": trajectory(rank=4),
    "trajectory-diagonal": trajectory(rank=0),
    **{f"laplace-{structure}": laplace(structure) for structure in ("full", "kron", "diag", "low_rank")},
    "mean-field": mean_field,
    "low-rank": low_rank,
    "mean-field-pruned": pruned,
    "empirical": empirical,
    "point-mass": lambda net: PointMass(net, select(net)),
    "weight-dropout": weight_dropout,
    "concrete-dropout": concrete_dropout,
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


class KLOverTheBatch(credo.BayesByBackprop):
    """Trap 1: the KL divided by the size of the batch."""

    def forward(self, x: Any, y: Tensor, n_data: int | None = None, **options: Any) -> Tensor:
        if n_data is None:
            raise credo.errors.InputError("n_data is needed")
        return super().forward(x, y, len(y) if len(y) < 21 else n_data, **options)


class SumOverRows(credo.BayesByBackprop):
    """A log likelihood that is a sum over the batch."""

    def _weighted_nll(self, log_likelihood: Tensor, sample_weight: Tensor | None) -> Tensor:
        return -log_likelihood.sum()


class DisturbsRandomState(credo.BayesByBackprop):
    """Trap 15."""

    def _predictor(self, samples: int, seed: int | None) -> Any:
        torch.rand(1)
        return super()._predictor(samples, seed)


class LeavesTrainMode(credo.BayesByBackprop):
    """Trap 25."""

    def _predictor(self, samples: int, seed: int | None) -> Any:
        self.net.train()
        return super()._predictor(samples, seed)


class MovesWeights(credo.BayesByBackprop):
    """Trap 24: noise is left in the network."""

    def _predictor(self, samples: int, seed: int | None) -> Any:
        next(self.net.parameters()).data.add_(1e-6)
        return super()._predictor(samples, seed)


class IgnoresTheSeed(credo.BayesByBackprop):
    """Every prediction has the same draws."""

    def _predictor(self, samples: int, seed: int | None) -> Any:
        return super()._predictor(samples, 0)


class MaskPerRow(credo.MCDropout):
    """A draw that is no function: its noise depends on the place of a row."""

    def _predictor(self, samples: int, seed: int | None) -> Any:
        whole = super()._predictor(samples, seed)
        evaluate = whole._evaluate

        def by_place(x: Any, batch_size: int | None = None, vectorize: str = "auto") -> Tensor:
            outputs = evaluate(x, batch_size, vectorize)
            noise = torch.arange(outputs.shape[1]).view(1, -1, *[1] * (outputs.dim() - 2))
            return outputs + 0.1 * (samples > 0) * noise

        whole._evaluate = by_place  # type: ignore[assignment]
        return whole


class ReturnsNothing(credo.BayesByBackprop):
    """``fit`` that cannot be chained."""

    def fit(self, data: Any, **options: Any) -> Any:
        super().fit(data, **options)


class LosesItsScales(credo.BayesByBackprop):
    """Trap 23: something that matters is not in the state_dict."""

    def state_dict(self, *args: Any, **options: Any) -> Any:
        state = super().state_dict(*args, **options)
        return {k: torch.zeros_like(v) if "rho" in k else v for k, v in state.items()}


BROKEN_METHODS: dict[type[credo.BayesByBackprop | credo.MCDropout], str] = {
    KLOverTheBatch: "must not depend on the batch",
    SumOverRows: "unbiased estimate",
    DisturbsRandomState: "random state",
    LeavesTrainMode: "train/eval flags",
    MovesWeights: "must not change|the same seed",
    IgnoresTheSeed: "different seeds",
    MaskPerRow: "order of rows",
    ReturnsNothing: "return the model itself",
    LosesItsScales: "state_dict|finite",
}


@pytest.mark.parametrize("method", BROKEN_METHODS, ids=lambda method: method.__name__)
def test_a_broken_method_is_caught(method: Any) -> None:
    options = {"p": 0.1} if issubclass(method, credo.MCDropout) else {}
    with pytest.raises(AssertionError, match=BROKEN_METHODS[method]):
        check_method(lambda net: method(net, credo.Gaussian(0.5), **options))


class MeanKL(MeanField):
    """Trap 1."""

    def kl(self, prior: Any, samples: int = 1, seed: int | None = None, kind: str = "auto") -> Tensor:
        return torch.stack(list(self.kl_by_name(prior, samples, seed, kind).values())).mean()


class Biased(MeanField):
    """Draws about another mean than the one it tells."""

    def sampler(self, seed: int) -> Sampler:
        draw = super().sampler(seed)
        return lambda numbers: [{name: value + 0.2 for name, value in d.items()} for d in draw(numbers)]


class Forgetful(MeanField):
    """Draws from the global stream."""

    def sampler(self, seed: int) -> Sampler:
        return lambda numbers: [{n: v + torch.randn_like(v) for n, v in self.mean().items()} for _ in numbers]


class Correlated(MeanField):
    """Draw s depends on the draws before it."""

    def sampler(self, seed: int) -> Sampler:
        source = torch.Generator().manual_seed(seed)
        return lambda numbers: [
            {n: v + torch.randn(v.shape, generator=source) for n, v in self.mean().items()} for _ in numbers
        ]


BROKEN_POSTERIORS = {
    MeanKL: "not a mean",
    Biased: "standard errors",
    Forgetful: "same seed",
    Correlated: r"draw\(seed, 3\)",
}


@pytest.mark.parametrize("kind", BROKEN_POSTERIORS, ids=lambda kind: kind.__name__)
def test_a_broken_posterior_is_caught(kind: type[MeanField]) -> None:
    net = tied_network()
    with pytest.raises(AssertionError, match=BROKEN_POSTERIORS[kind]):
        check_posterior(kind(net, select(net), initial_scale=0.3), net)


def test_a_posterior_over_frozen_or_unknown_names_is_caught() -> None:
    net = tied_network()
    with pytest.raises(AssertionError, match="frozen"):
        check_posterior(MeanField(net, ["0.weight", "4.bias"]), net)
    with pytest.raises(AssertionError, match="first name"):
        check_posterior(MeanField(net, ["2.weight"]), net)
