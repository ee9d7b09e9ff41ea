"""The registry finds all experiments, and rows have a mean and a standard error."""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from credo import experiments
from credo.errors import InputError
from credo.experiments import Result, Row, registry


def test_names_are_sorted():
    names = experiments.names()
    assert names == sorted(names)
    assert {"bbb-regression", "dropout-rotated-digit", "sequential-linear-regression"} <= set(names)


def test_every_experiment_module_is_discovered():
    """The names read from the source are those that the decorator registers."""
    registered = set()
    for module in pkgutil.walk_packages(experiments.__path__, "credo.experiments."):
        imported = importlib.import_module(module.name)
        registered |= {e.name for e in registry._REGISTRY.values() if e.run.__module__ == imported.__name__}
    assert registered == set(registry._modules())


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_has_a_title_a_reference_and_a_description(name):
    chosen = experiments.get(name)
    assert chosen.name == name
    assert chosen.run.__module__.split(".")[-2] == chosen.part
    assert (Path(experiments.__file__).parent / chosen.part).is_dir()
    assert chosen.title
    assert chosen.reference
    assert len(chosen.description.split("\n\n")) > 1, "one summary line, and at least one paragraph"


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="unknown experiment 'bbb-regresion': did you mean 'bbb-regression'"):
        experiments.get("bbb-regresion")


def test_names_and_a_light_experiment_import_nothing_heavy():
    code = (
        "import sys\n"
        "from credo import experiments\n"
        "assert len(experiments.names()) > 20\n"
        "experiments.get('sine-with-gap')\n"
        "heavy = {'matplotlib', 'sklearn', 'lightning_fabric', 'pandas', 'torchmetrics'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_row_mean_and_standard_error():
    row = Row("q", (1.0, 2.0, 3.0, 6.0))
    assert row.mean == pytest.approx(3.0)
    # s² = (4 + 1 + 0 + 9)/3, and the error of the mean is s/√4.
    assert row.standard_error == pytest.approx(math.sqrt(14 / 3) / 2)
    assert Row("q", (1.0,)).standard_error is None


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((0.12345,), "0.123"),
        ((2.0, 2.0), "2 ± 0"),
        ((0.1, 0.3), "0.20 ± 0.10"),
        ((1234.0, 1244.0), "1239.0 ± 5.0"),
        ((1e5, 3e5), "2e+05 ± 1e+05"),
        ((1e-9, 3e-9), "2e-09 ± 1e-09"),
        ((float("nan"), 1.0), "nan ± nan"),
    ],
)
def test_row_formats_mean_and_standard_error(values, shown):
    assert Row("q", values).ours == shown


def test_row_without_values_or_source_raises():
    with pytest.raises(InputError, match="'q' needs a source"):
        Row("q", (1.0,), published=2.0)
    with pytest.raises(InputError, match="'q' must hold at least one number"):
        Row("q", ())


def test_pool_concatenates_rows():
    first, second = (Result((Row("a", (x,)), Row("b", (x, -x)))) for x in (1.0, 2.0))
    pooled = Result.pool([first, second])
    assert [row.values for row in pooled.rows] == [(1.0, 2.0), (1.0, -1.0, 2.0, -2.0)]
    with pytest.raises(InputError, match="different quantities"):
        Result.pool([first, Result((Row("c", (1.0,)),))])


def test_quick_run_of_every_entry_was_timed():
    """And took at most three minutes: benchmarks/reproduce_seconds.py."""
    stored = Path(__file__).parents[2] / "benchmarks" / "results" / "reproduce_quick_seconds.json"
    rows = {row["name"]: row for row in json.loads(stored.read_text(encoding="utf-8"))["rows"]}
    assert set(rows) == set(experiments.names())
    assert all("failed" not in row and row["cpu_seconds"] <= 180 for row in rows.values())
