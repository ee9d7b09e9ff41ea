"""Transformers through every method: trained, asked, copied to a file and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.architectures import TransformerLanguageModel, VisionTransformer
from credo.errors import UnsupportedError
from credo.methods import Method
from credo.testing import check_method
from methods.test_conformance import METHODS as CONFORMANCE

ROWS = 8
SOURCE = torch.Generator().manual_seed(0)
SEQUENCES = torch.randint(5, (ROWS, 4), generator=SOURCE)
IMAGES = torch.randn(ROWS, 1, 4, 4, generator=SOURCE)
CASES: dict[str, tuple[Callable[[float | None], nn.Module], Tensor, Tensor]] = {
    "language model": (
        lambda dropout: TransformerLanguageModel(5, 4, 1, 2, 4, 3, dropout=dropout),
        SEQUENCES[:, :-1],
        SEQUENCES[:, 1:],
    ),
    "vision transformer": (
        lambda dropout: VisionTransformer(3, 1, 4, 2, 4, 1, 2, 4, dropout=dropout),
        IMAGES,
        torch.arange(ROWS) % 3,
    ),
}
CHAINS: dict[str, Any] = {"chains": 2, "warmup": 4, "draws": 4, "init": "network"}


def _bbb(**options: Any) -> Callable[[nn.Module], Method]:
    return lambda net: credo.BayesByBackprop(net, credo.Categorical(), **options)


def _laplace(**options: Any) -> Callable[[nn.Module], Method]:
    return lambda net: credo.Laplace(net, credo.Categorical(), **options)


METHODS: dict[str, Callable[[nn.Module], Method]] = {
    "map": lambda net: credo.MAP(net, credo.Categorical()),
    "bbb": _bbb(),
    **{f"bbb-{estimator}": _bbb(estimator=estimator) for estimator in ("weight", "local", "flipout")},
    "bbb-scale-mixture": _bbb(prior=credo.ScaleMixture()),
    "bbb-attention-only": _bbb(bayesian="*query_key_value*"),
    "mc-dropout": lambda net: credo.MCDropout(net, credo.Categorical(), p=0.1),
    "mc-dropout-own-layers": lambda net: credo.MCDropout(net, credo.Categorical()),
    "ensemble": lambda net: credo.DeepEnsemble(net, members=2, likelihood=credo.Categorical()),
    "ensemble-of-bbb": lambda net: credo.DeepEnsemble(net, 2, credo.BayesByBackprop, likelihood=credo.Categorical()),
    **{f"laplace-{structure}": _laplace(structure=structure) for structure in ("kron", "diag", "full")},
    "laplace-low-rank": _laplace(structure="low_rank", rank=3),
    "laplace-sampled": _laplace(linearized=False),
    "laplace-last-layer": _laplace(parameters="last_layer", structure="full"),
    "swag": lambda net: credo.SWAG(net, credo.Categorical(), start=0.0),
    "concrete-dropout": lambda net: credo.ConcreteDropout(net, credo.Categorical()),
    "bbb-low-rank": _bbb(rank=2),
    "variational-last-layer": lambda net: credo.VariationalLastLayer(net, credo.Categorical()),
    "sngp": lambda net: credo.SNGP(net, credo.Categorical(), features=8),
    "ivon": lambda net: credo.IVON(net, credo.Categorical()),
    "sgld": lambda net: credo.SGLD(net, credo.Categorical(), **CHAINS),
    "sghmc": lambda net: credo.SGHMC(net, credo.Categorical(), **CHAINS),
    "hmc": lambda net: credo.HMC(net, credo.Categorical(), leapfrog_steps=2, **CHAINS),
    "mclmc": lambda net: credo.MCLMC(net, credo.Categorical(), **CHAINS),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_a_transformer_goes_through_every_method(case: str, method: str, tmp_path: Path) -> None:
    """In float64, where covariances that are singular up to rounding have roots that are accurate to about 1e-8."""
    build, x, y = CASES[case]
    x = x.double() if x.is_floating_point() else x
    torch.manual_seed(0)
    net = build(0.1 if method == "mc-dropout-own-layers" else None).double()
    if (case, method) == ("language model", "variational-last-layer"):
        with pytest.raises(UnsupportedError, match="several places"):  # a tied output layer
            METHODS[method](net)
        return
    model = METHODS[method](net)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    is_sampler = method in ("sgld", "sghmc", "hmc", "mclmc")
    options = {} if is_sampler else {"epochs": 2, "batch_size": 4, "lr": 1e-2}
    assert model.fit((x, y), seed=0, progress=False, **options) is model
    after = model.state_dict()
    assert any(name not in before or not torch.equal(value, before[name]) for name, value in after.items())

    p = model.predict(x, samples=4, seed=1)
    assert p.mean.shape == (*y.shape, 5 if case == "language model" else 3)
    assert bool(p.draws.isfinite().all())
    assert bool((p.epistemic > 0).any()) == (method != "map")
    torch.testing.assert_close(p.entropy, p.aleatoric + p.epistemic)
    assert bool(p.log_prob(y).isfinite().all())
    part = model.predict(x[2:5], samples=4, seed=1)
    torch.testing.assert_close(part.draws, p.draws[:, 2:5], rtol=0, atol=1e-6)

    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run")
    assert torch.equal(loaded.predict(x, samples=4, seed=1).draws, p.draws)


def test_every_method_is_in_the_table() -> None:
    def kinds(models: list[Method]) -> set[type[Method]]:
        return {type(model) for model in models}

    def small() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2))

    build = CASES["vision transformer"][0]
    ours = kinds([make(build(0.1)) for make in METHODS.values() if make is not METHODS["mc-dropout"]])
    assert ours == kinds([row.build(small(), credo.Categorical()) for row in CONFORMANCE.values()])


PATTERNS_OF_AN_MLP = ("bbb-priors-by-name", "bbb-last-layer", "ivon-clipped", "swag-diagonal", "laplace-diag")
SINGULAR = [("language model", "laplace"), ("language model", "laplace-full")]
"""The covariance of the linearized outputs of a row is singular, and its root accurate to √ε only."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "method"),
    [
        (case, method)
        for case in CASES
        for method in CONFORMANCE
        if method not in PATTERNS_OF_AN_MLP and (case, method) not in SINGULAR
    ],
)
def test_a_transformer_keeps_the_contract_of_every_method(case: str, method: str) -> None:
    """In float64 for the reason above.

    The first call of Bayes by Backprop finds out where local reparameterization is exact, and then adds the KL of
    these parameters in another order, so it is made before the check that two losses are equal to the last digit.
    """
    build, x, y = CASES[case]
    row = CONFORMANCE[method]
    x = x.double() if x.is_floating_point() else x

    def prepared(net: nn.Module) -> Method:
        model = row.build(net, credo.Categorical())
        members = model.members if isinstance(model, credo.DeepEnsemble) else [model]
        for member in members:
            if isinstance(member, credo.BayesByBackprop):
                member.eval().loss(x, y, n_data=ROWS)
                member.train()
        return model

    check_method(
        prepared,
        lambda: build(row.dropout or None).double(),
        "classification",
        data=(x, y),
        stochastic=row.stochastic,
        fit_options=row.fit_options,
        load_options=row.load_options,
    )
