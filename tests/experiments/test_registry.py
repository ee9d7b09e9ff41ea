"""Experiments are found by their files, and their rows carry the mean and its error."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from credo import experiments
from credo.errors import InputError
from credo.experiments import Result, Row


def test_names_are_files_and_come_sorted():
    names = experiments.names()
    assert names == sorted(names)
    assert {"bbb-regression", "dropout-rotated-digit", "kendall-gal-uncertainty"} <= set(names)
    for name in names:
        assert experiments.get(name).run.__module__ == "credo.experiments." + name.replace("-", "_")


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_says_what_it_shows_and_where_it_comes_from(name):
    chosen = experiments.get(name)
    assert chosen.name == name
    assert chosen.title
    assert chosen.reference
    assert len(chosen.description.split("\n\n")) > 1, "a line of what it is, and at least a paragraph about it"


def test_unknown_name_brings_the_nearest():
    with pytest.raises(InputError, match="unknown experiment 'bbb-regresion': did you mean 'bbb-regression'"):
        experiments.get("bbb-regresion")


def test_names_and_a_light_experiment_load_nothing_heavy():
    code = (
        "import sys\n"
        "from credo import experiments\n"
        "assert len(experiments.names()) > 20\n"
        "experiments.get('gap-curve')\n"
        "heavy = {'matplotlib', 'sklearn', 'lightning_fabric', 'pandas', 'torchmetrics'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_row_has_the_mean_and_its_standard_error():
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
def test_row_shows_the_error_to_two_digits_and_the_mean_to_as_many_decimals(values, shown):
    assert Row("q", values).ours == shown


def test_row_refuses_what_cannot_be_traced():
    with pytest.raises(InputError, match="'q' needs a source"):
        Row("q", (1.0,), published=2.0)
    with pytest.raises(InputError, match="'q' must hold at least one number"):
        Row("q", ())


def test_results_are_pooled_row_by_row():
    first, second = (Result((Row("a", (x,)), Row("b", (x, -x)))) for x in (1.0, 2.0))
    pooled = Result.pooled([first, second])
    assert [row.values for row in pooled.rows] == [(1.0, 2.0), (1.0, -1.0, 2.0, -2.0)]
    with pytest.raises(InputError, match="different quantities"):
        Result.pooled([first, Result((Row("c", (1.0,)),))])
