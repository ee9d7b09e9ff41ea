"""The benchmark on tables, ``benchmarks/tables.py``, without the libraries that credo is compared with."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from credo.predictive import RealPredictive
from credo.predictive.location_scale import GaussianComponents

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules of the benchmark by their names."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ("table_data", "table_methods", "table_report", "table_scores", "tables")
    return {name: importlib.import_module(name) for name in names}


def test_tables_are_not_those_that_defaults_were_chosen_on(benchmark: dict[str, ModuleType]) -> None:
    data = benchmark["table_data"]
    sources = {source for table in data.TABLES for source in table.source.split("+")}
    used = {source for names in data.USED_FOR_DEFAULTS.values() for source in names}
    assert not sources & used
    assert not {table.name for table in data.TABLES} & set(data.USED_FOR_DEFAULTS)
    assert len(data.TABLES) >= 15
    assert {table.task for table in data.TABLES} == {"regression", "counts", "classes"}


def test_the_density_of_quantiles(benchmark: dict[str, ModuleType]) -> None:
    """It integrates to 1, is the derivative of its cdf, and its CRPS is ∫ (F − 1{y ≤ t})² dt.

    The integrals are by the trapezoidal rule with nodes h = 5 × 10⁻⁴ apart. The density has 9 jumps of at most 0.4, the
    largest density of a standard normal, so that its integral is off by at most 9 × 0.4 × h/2 < 10⁻³; (F − 1{y ≤ t})²
    has one of at most 1, an error of h/2. The midpoint rule with 400 levels is off by at most the variation of 2ρ_τ
    over 800, and 2ρ_τ rises from 0 to at most ½ and falls to 0 again on each side of y: 2/800.
    """
    levels = np.array([0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975])
    quantiles = stats.norm.ppf(levels)[:, None]
    grid = np.linspace(-50.0, 50.0, 200_001)
    distribution = benchmark["table_scores"].QuantileDistribution
    p = distribution(levels, np.repeat(quantiles, len(grid), axis=1), np.zeros(len(grid)), 1.0)
    nodes = torch.from_numpy(grid)
    assert np.trapezoid(p.log_prob(nodes).exp().numpy(), grid) == pytest.approx(1.0, abs=1e-3)
    one, y = distribution(levels, quantiles, np.zeros(1), 1.0), torch.tensor([0.3], dtype=torch.float64)
    for q in (0.001, 0.03, 0.3, 0.5, 0.77, 0.96, 0.999):
        assert float(one.cdf(one.quantile(q))) == pytest.approx(q, abs=1e-12)
    integral = np.trapezoid((p.cdf(nodes).numpy() - (grid >= float(y))) ** 2, grid)
    assert one.crps(y) == pytest.approx(integral, abs=2 / 800 + 2.5e-4)


def test_quantiles_that_coincide_have_a_finite_density(benchmark: dict[str, ModuleType]) -> None:
    p = benchmark["table_scores"].QuantileDistribution(
        np.array([0.025, 0.25, 0.5, 0.75, 0.975]), np.full((5, 1), 2.0), np.full(1, 2.0), 1.0
    )
    assert float(p.log_prob(torch.tensor([2.0], dtype=torch.float64))) == pytest.approx(math.log(10.0))


def test_a_count_has_the_probability_of_its_integer(benchmark: dict[str, ModuleType]) -> None:
    mean, variance = torch.tensor([[3.2]], dtype=torch.float64), torch.tensor([[4.0]], dtype=torch.float64)
    p = RealPredictive(GaussianComponents(mean, variance.log()))
    y = torch.tensor([5.0], dtype=torch.float64)
    exact = stats.norm.cdf(5.5, 3.2, 2.0) - stats.norm.cdf(4.5, 3.2, 2.0)
    assert benchmark["table_scores"].log_score(p, y, counts=True) == pytest.approx(math.log(exact), abs=1e-6)


def test_ranks_and_critical_difference(benchmark: dict[str, ModuleType]) -> None:
    """Ties share their ranks. For four methods q is 2.569 (Demšar 2006, table 5), which has four digits."""
    scores = {"a": [1.0, 3.0, 2.0], "b": [2.0, 1.0, 2.0], "c": [3.0, 2.0, 1.0], "d": [4.0, 4.0, 4.0]}
    found = benchmark["table_scores"].compare(scores)
    assert found.ranks == pytest.approx({"a": 6.5 / 3, "b": 5.5 / 3, "c": 2.0, "d": 4.0})
    assert list(found.ranks) == ["b", "c", "a", "d"]
    assert found.critical_difference == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 3)), abs=1e-3)


def test_a_failed_fit_ranks_last(benchmark: dict[str, ModuleType]) -> None:
    found = benchmark["table_scores"].compare({"a": [1.0, 2.0], "b": [0.5, float("nan")], "c": [2.0, 3.0]})
    assert found.ranks == {"a": 1.5, "b": 2.0, "c": 2.5}


def simulate(task: str) -> pd.DataFrame:
    """Sixty rows of two numbers, with missing ones, and a word."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y: Any = x[:, 0] + 0.1 * rng.normal(size=60)
    y = rng.poisson(np.exp(y)) if task == "counts" else np.where(y > 0, "yes", "no") if task == "classes" else y
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "word": rng.choice(["red", "green"], 60), "y": y})
    frame.loc[:2, "b"] = np.nan
    return frame


def test_export_run_and_merge(
    benchmark: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fit leaves a record, also one that raises, and the records of a table become a row for every method."""
    data, tables = benchmark["table_data"], benchmark["tables"]
    tasks = ("regression", "counts", "classes")
    monkeypatch.setattr(data, "load", lambda table: simulate(table.task))

    def refuse(*_: object) -> None:
        raise ValueError("not this one")

    monkeypatch.setitem(benchmark["table_methods"].METHODS, "gp", refuse)
    data.export(tmp_path, tuple(data.Table(task, task, "", "y") for task in tasks))
    methods = ("linear", "forest", "gp")
    fits = [tables.Fit(tmp_path, tmp_path, task, task, 0, method) for task in tasks for method in methods]
    tables.run_all(fits, workers=2, limit=60)
    rows = benchmark["table_report"].merge([tables.json.loads(fit.path.read_text(encoding="utf-8")) for fit in fits])
    assert len(rows) == 9
    for row in rows:
        if row["method"] == "gp":
            assert row["error"] == "ValueError: not this one"
        else:
            assert math.isfinite(row["nll"])
            assert ("accuracy" in row) == (row["task"] == "classes") != ("crps" in row)
    found = benchmark["table_report"].comparison(rows, "classes", "nll")
    assert found.tables == 1
    assert list(found.ranks)[-1] == "gp"
