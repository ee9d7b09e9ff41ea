"""Hamiltonian Monte Carlo on a table: the prior, the length of the chains, and what is kept of them.

A chain uses all rows in every step, so that its length is planned from the size of the table: what all steps cost stays
the same, less than a minute on one core, however many rows there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from credo._threads import one_thread
from credo.hierarchical import HierarchicalNormal
from credo.methods import HMC
from credo.methods._fold_chains import fit_models
from credo.methods.sampler import Sampler
from credo.posteriors import Empirical
from credo.priors import Normal
from credo.tabular.methods import MIN_PRODUCTS_FOR_THREADS, NetworkSpec, Rows, TabularMethod, TrainingPlan, register

NAME = "hmc"
CHAINS, WARMUP, DRAWS, STARTING_STEPS = 4, 120, 80, 300
MAX_GRADIENTS = 10_000
_PRODUCTS = 10**11
"""Of a row and a weight, in all: less than a minute on one core."""
_PRODUCTS_OF_OVERHEAD = 2_500_000
"""As many take as long as the rest of a gradient, which does not depend on the size of the table."""
_KEPT_DRAWS = 200


@dataclass(frozen=True)
class SamplingPlan:
    """The length of the chains on a table.

    Attributes:
        gradients: of all chains, on all rows, after those of the optimizer where chains start.
        leapfrog_steps: the largest number of steps of a trajectory.
    """

    gradients: int
    leapfrog_steps: int

    @classmethod
    def make(cls, rows: int, weights: int) -> SamplingPlan:
        """The plan for a table.

        Args:
            rows: the number of rows of the training table.
            weights: the number of weights of the network.

        Returns:
            A plan that takes up to 10,000 gradients, and fewer above about 500 rows. A trajectory has between 1 and its
            largest number of steps, half of it on average.
        """
        cost = CHAINS * rows * weights + _PRODUCTS_OF_OVERHEAD
        gradients = min(_PRODUCTS // cost, MAX_GRADIENTS)
        return cls(gradients, max(2 * gradients // (WARMUP + DRAWS) - 1, 1))


def build_hmc(spec: NetworkSpec, **options: Any) -> HMC:
    """Hamiltonian Monte Carlo with unknown prior variances: per input, per output in the last layer, and per layer.

    Those per input switch irrelevant inputs off (automatic relevance determination). The settings are those of
    ``benchmarks/uci_posteriors.py``, with fewer chains and shorter ones.
    """
    net = spec.network()
    groups = {"layers.0.weight": "input"}
    if spec.hidden:
        groups |= {"skip.weight": "input", f"layers.{len(net.layers) - 1}.weight": "unit"}
    plan = SamplingPlan.make(spec.plan.rows, sum(p.numel() for p in net.parameters()))
    settings: dict[str, Any] = {
        "prior": {name: HierarchicalNormal(group, rate=0.1) for name, group in (groups | {"*": "layer"}).items()},
        "noise_prior": Normal(-1.0, 2.0),
        "chains": CHAINS,
        "warmup": WARMUP,
        "draws": DRAWS,
        "leapfrog_steps": plan.leapfrog_steps,
        "init_steps": STARTING_STEPS,
    }
    return HMC(net, spec.likelihood, **(settings | options))


def run_chains(
    model: Sampler,
    rows: Rows,
    plan: TrainingPlan,
    *,
    validation: Rows | None,
    held_out: Sequence[NDArray[np.intp]],
    seed: int,
    device: str | None,
    progress: bool | None,
) -> None:
    """Run the chains of a sampler, and keep about 200 of their draws.

    Arguments are those of :class:`credo.tabular.methods.Train`. ``plan``, ``validation`` and ``held_out`` are not
    used: a sampler has no epochs, and is not stopped early.
    """
    weights = sum(parameter.numel() for parameter in model.parameters())
    with one_thread(CHAINS * weights * plan.rows < MIN_PRODUCTS_FOR_THREADS):
        fit_models([model], [rows], [seed], device=device, progress=progress)  # without notices: notes_ has them
    for posterior in filter(None, (model.posterior, model.likelihood_posterior)):
        thin(posterior)


def thin(posterior: Empirical) -> None:
    """Keep about 200 draws, evenly spaced, as a prediction uses no more."""
    chains, draws = posterior.shape
    every = max(chains * draws // _KEPT_DRAWS, 1)
    posterior.replace(posterior.thin(every).by_chain())


register(TabularMethod(NAME, "Hamiltonian Monte Carlo", build_hmc, train=run_chains, has_epochs=False))
