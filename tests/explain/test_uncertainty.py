"""Which columns drive the uncertainty: closed forms, brute force, standard errors, and parts that do not vary."""

from __future__ import annotations

import numpy as np
import pytest

from credo import explain
from credo.explain.uncertainty import _part

from .models import LinearDraws, LogisticDraws, gaussian_rows

DRAWS = np.array([[1.0, 2.0, 0.3], [1.0, 2.5, 0.1], [1.0, 1.2, -0.4]])


def test_one_uncertain_weight_drives_all_of_the_epistemic_part():
    """The epistemic standard deviation is s₁|x₁|: over all pairs the share of x₁ is 1, and that of others 0."""
    x = gaussian_rows(30)
    draws = np.array([[1.0, 2.0, 3.0], [1.0, 2.5, 3.0]])
    found = explain.uncertainty_importance(LinearDraws(draws), x, repeats=29)
    assert found.epistemic.share == pytest.approx([0.0, 1.0, 0.0], abs=1e-10)
    assert found.epistemic.mean == pytest.approx(np.mean(0.25 * np.abs(x[:, 1])))
    assert found.epistemic.change == pytest.approx([0.0, 0.0, 0.0], abs=1e-10)  # the same values in other rows


def test_additive_noise_is_split_by_its_variances():
    """u = σ(1 + v₀x₀ + v₁x₁): the share of column j is v_j² Var x_j / Var(v₀x₀ + v₁x₁), exactly over all pairs."""
    x = np.random.default_rng(0).uniform(-0.5, 0.5, size=(25, 3))
    v = np.array([0.5, 0.25, 0.0])
    found = explain.uncertainty_importance(LinearDraws(DRAWS, noise_weights=v), x, repeats=24)
    expected = v**2 * x.var(axis=0, ddof=1) / (x @ v).var(ddof=1)
    assert found.aleatoric.share == pytest.approx(expected, abs=1e-10)
    assert found.aleatoric.mean == pytest.approx(np.mean(0.5 * (1 + x @ v)))


def test_share_is_the_definition():
    x = gaussian_rows(10)
    u = np.sqrt((x @ DRAWS.T).var(axis=1))
    found = explain.uncertainty_importance(LinearDraws(DRAWS), x, repeats=9)
    for j in range(3):
        after = [[np.nan] * 10 for _ in range(10)]
        for i in range(10):
            for k in range(10):
                moved = x[i].copy()
                moved[j] = x[k, j]
                after[i][k] = np.sqrt((DRAWS @ moved).var())
        pairs = ~np.eye(10, dtype=bool)
        squares = 0.5 * (np.array(after) - u[:, None])[pairs] ** 2
        assert found.epistemic.share[j] == pytest.approx(squares.mean() / u.var(ddof=1))
        assert found.epistemic.change[j] == pytest.approx(np.array(after)[pairs].mean() / u.mean() - 1)


def test_standard_error_is_the_spread_over_data_sets():
    """u = x₀ + x₁, 400 data sets of 100 rows: a standard deviation of a standard deviation is 1/√800 = 3.5 % of it.

    4 of these, and 10 % for the second order of the ratio.
    """
    rng = np.random.default_rng(0)
    n = 100
    donors = np.stack([np.roll(np.arange(n), -shift) for shift in range(1, n)])
    shares, errors = [], []
    for _ in range(400):
        x = rng.normal(size=(2, n))
        after = x[0][donors] + x[1]
        part = _part(x.sum(axis=0) + 10.0, after[None] + 10.0, donors)
        shares.append(part.share[0])
        errors.append(part.standard_error[0])
    assert np.mean(shares) == pytest.approx(0.5, abs=4 * np.std(shares) / 20 + 1 / n)
    assert np.std(shares) / np.mean(errors) == pytest.approx(1.0, abs=4 * 0.035 + 0.1)


def test_part_that_does_not_vary_has_no_drivers():
    found = explain.uncertainty_importance(LinearDraws(DRAWS[:1]), gaussian_rows())
    assert found.epistemic.share.tolist() == found.aleatoric.share.tolist() == [0.0, 0.0, 0.0]
    assert found.epistemic.std == found.aleatoric.std == 0.0
    assert "The aleatoric standard deviation is the same for all rows, 0.5" in found.summary()
    found.plot()


def test_classes_are_in_nats():
    x = gaussian_rows()
    model = LogisticDraws(DRAWS)
    found = explain.uncertainty_importance(model, x)
    assert found.unit == "entropy (nats)"
    assert found.epistemic.mean == pytest.approx(float(model.predict_dist(x).mutual_information.mean()))


def test_table_and_summary():
    found = explain.uncertainty_importance(LinearDraws(DRAWS), gaussian_rows(), groups={"two": ["x0", "x1"]})
    frame = found.to_frame()
    assert set(frame["column"]) == {"two", "x2"}
    assert [name for name in frame if name.startswith("epistemic")] == [
        "epistemic",
        "epistemic_error",
        "epistemic_change",
    ]
    assert "two" in found.summary()
    axes = found.plot(max_columns=1)
    assert [label.get_text() for label in axes.get_yticklabels()] == [frame["column"][0]]
