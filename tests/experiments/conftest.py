"""Fixtures for the tests of the experiments."""

from __future__ import annotations

import pytest

from credo import experiments


@pytest.fixture(scope="session")
def run_values():
    """Runs an experiment and returns its values by quantity."""

    def run(name: str, budget: experiments.Budget) -> dict[str, float]:
        result = experiments.get(name).run(experiments.RunConfig(budget))
        return {row.quantity: row.mean for row in result.rows}

    return run
