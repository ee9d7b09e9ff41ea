"""The experiments on probability: KL divergences of Bishop's Figures 10.2 and 10.3, and plate diagrams."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm

from credo import experiments

BY_CHANCE = norm.isf(5e-5)  # one in 10,000, two-sided


def test_both_divergences_of_a_product_are_the_mutual_information(run_values):
    values = run_values("kl-directions-correlated", "smoke")
    information = values["mutual information −½ log(1 − ρ²), nats"]
    assert values["KL(q ‖ p) of (a), nats"] == pytest.approx(information, abs=1e-10)
    assert values["KL(p ‖ q) of (b), nats"] == pytest.approx(information, abs=1e-10)
    assert values["precision of z₁ in (a)"] == pytest.approx(values["Λ₁₁ of p"], rel=1e-10)
    assert values["largest relative error of the precisions in (a) by numerical search"] < 1e-5
    assert abs(values["KL(q ‖ p) of (a) by Monte Carlo, less the closed form, in standard errors"]) < BY_CHANCE


def test_each_fit_has_the_lowest_divergence_in_its_own_direction(run_values):
    values = run_values("kl-directions-bimodal", "smoke")
    for mode in ("(b)", "(c)"):
        assert values["(a) KL(p ‖ q), nats"] < values[f"{mode} KL(p ‖ q), nats"]
        assert values[f"{mode} KL(q ‖ p), nats"] < values["(a) KL(q ‖ p), nats"]
        searched = values[f"{mode} KL(q ‖ p) by numerical search, nats"]
        assert searched < math.log(2.0)
        assert searched < values["KL(q ‖ p) at the minimum that covers both modes, nats"]
        z = values[f"{mode} KL(q ‖ p) by Monte Carlo, less that of the search, in standard errors"]
        assert abs(z) < BY_CHANCE


def test_plate_diagrams_have_the_nodes_and_arrows_of_the_book():
    rows = experiments.get("plate-diagrams").run(experiments.RunConfig("smoke")).rows
    compared = [row for row in rows if row.published is not None and not row.note]
    assert len(compared) == 6
    assert all(row.mean == row.published for row in compared)
