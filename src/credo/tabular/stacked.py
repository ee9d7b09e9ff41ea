r"""A stacked ensemble on a table: networks from nearly linear to flexible, weighted by how they predict held-out rows.

One batch trains G·F networks. Those of group g have a Gaussian prior of scale s_g on the weights of hidden layers, and
network (g, f) holds out part f of the rows, by which it is stopped early. The groups are mixed,

.. math:: p(y \mid x) = \sum_g w_g \frac1F \sum_f p(y \mid f_{gf}(x)), \qquad
    w = \arg\max \sum_i \log \sum_g w_g \frac1r \sum_{f \in H_i} p(y_i \mid f_{gf}(x_i)),

with H_i the r networks of a group that hold out row i, so that rows are scored by networks that have not seen them. The
same rows calibrate the noise of the ensemble (:mod:`credo.tabular.out_of_fold`).

References: Y. Yao, A. Vehtari, D. Simpson, A. Gelman, "Using stacking to average Bayesian predictive distributions",
Bayesian Analysis 2018. F. Wenzel, J. Snoek, D. Tran, R. Jenatton, "Hyperparameter ensembles for robustness and
uncertainty quantification", NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from credo import data as data_
from credo._devices import check_device
from credo._threads import one_thread
from credo.architectures import TabularMLP
from credo.methods import MAP, DeepEnsemble
from credo.methods._fold_training import FoldSchedule, fit_on_folds
from credo.priors import Normal
from credo.tabular.methods import MIN_PRODUCTS_FOR_THREADS, NetworkSpec, Rows, TabularMethod, TrainingPlan, register
from credo.tabular.out_of_fold import HeldOutOutputs, overlapping_parts, shift_network

NAME = "stacked"
MANY_ROWS = 500
"""Rows from which on networks are wider, fewer, and hold out less."""
FOLDS, FOLDS_FOR_MANY_ROWS = 8, 5
"""Networks per group."""
SCALES = (3.0, 1.0, 0.3, 0.1)
"""Prior scales of the weights of hidden layers, one per group."""
LINEAR_SCALE = 3.0
"""Prior scale of the weights of the linear part and of all biases."""
HIDDEN, HIDDEN_FOR_MANY_ROWS = (64, 64), (128, 128)
BINS, MAX_CODES = 8, 1_024
"""Bins of the piecewise linear encoding of a feature; fewer, if all features had more than this many codes."""
RATE = 0.3
"""Of the learning rate of other methods."""
_ROWS_FOR_KNOTS = 20_000


def count_networks(rows: int) -> int:
    """The number of networks per group."""
    return FOLDS if rows < MANY_ROWS else FOLDS_FOR_MANY_ROWS


def hidden_layers(rows: int) -> tuple[int, ...]:
    """The widths of the hidden layers."""
    return HIDDEN if rows < MANY_ROWS else HIDDEN_FOR_MANY_ROWS


def count_blocks(targets: NDArray[Any]) -> int:
    """The number of blocks of rows, of which a network holds out one for classes, two for quantities.

    So it holds out an eighth of the rows, and a tenth of many. Blocks of quantities are held out by two networks, as
    the calibration of the noise needs, see :func:`overlapping_parts`.
    """
    networks, many = count_networks(len(targets)), len(targets) >= MANY_ROWS
    return networks * _held_out_by(targets) * (2 if many else 1)


def _held_out_by(targets: NDArray[Any]) -> int:
    """The number of networks per group that hold out a row, if any does: one for classes, otherwise two."""
    return 1 if targets.dtype.kind == "i" else 2


def build(spec: NetworkSpec, *, scales: Sequence[float] = SCALES, bins: int = BINS, **options: Any) -> DeepEnsemble:
    """The untrained ensemble, with the knots of its networks at quantiles of the rows of training.

    Args:
        spec: what is known of the table.
        scales: the prior scale of the hidden layers' weights of each group.
        bins: the number of bins per feature of the piecewise linear encoding.
        **options: further arguments of :class:`credo.MAP`.

    Returns:
        Networks of the first group first.
    """
    assert spec.features is not None
    folds = count_networks(len(spec.features))
    features = spec.features[:: -(-len(spec.features) // _ROWS_FOR_KNOTS)]
    encoded = [j for j, column in enumerate(features.T) if len(np.unique(column)) > 2]
    bins = min(bins, max(MAX_CODES // max(len(encoded), 1), 1))
    networks = []
    for _ in range(len(scales) * folds):
        net = TabularMLP(spec.in_features, spec.hidden, spec.outputs, spec.activation, len(encoded), bins)
        net.encoding.fit(torch.from_numpy(features), encoded)
        networks.append(net)
    ensemble = DeepEnsemble(networks, likelihood=spec.likelihood, **options)
    if "prior" not in options:
        of_groups = np.repeat(np.asarray(scales, dtype=float), folds)
        for k, scale in enumerate(of_groups.tolist()):
            prior = {"perceptron.*.weight": Normal(0.0, scale), "*": Normal(0.0, LINEAR_SCALE)}
            member = ensemble.members[k]
            assert isinstance(member, MAP)
            ensemble.members[k] = MAP(member.net, member.likelihood, prior)
    return ensemble


def train(
    model: Any,
    rows: Rows,
    plan: TrainingPlan,
    *,
    validation: Rows | None,
    held_out: Sequence[NDArray[np.intp]],
    seed: int,
    device: str | None,
    progress: bool | None,
) -> None:
    """Train all networks in one batch, weight the groups, and calibrate them.

    Arguments are those of :class:`credo.tabular.methods.Train`.
    """
    assert isinstance(model, DeepEnsemble)
    model.to(model.device if device is None else check_device(device))
    members = [member for member in model.members if isinstance(member, MAP)]
    tensors = [torch.from_numpy(part).to(model.device) for part in rows]
    data = data_.Batch(tensors[0], tensors[1], tensors[2] if len(tensors) > 2 else None)
    schedule = FoldSchedule(plan.steps, plan.batch_size, RATE * plan.lr)
    products = sum(p.numel() for p in members[0].parameters()) * len(members) * plan.batch_size
    parts = overlapping_parts(held_out, count_networks(len(data.y)), _held_out_by(rows[1]))
    with one_thread(products < MIN_PRODUCTS_FOR_THREADS):
        fit_on_folds(members, data, parts, schedule, seed=seed, progress=progress)
        scores = HeldOutOutputs.compute(members, data, parts)
        weights = scores.group_weights()
        shift = scores.choose_shift(members[0].likelihood, weights)
    if shift:
        for member in members:
            shift_network(member.net, shift)
    model.set_weights(weights.repeat_interleave(len(parts)).tolist())
    model.history = [{"member": i, **entry} for i, member in enumerate(members) for entry in member.history]


register(
    TabularMethod(
        NAME, "Stacked ensemble", build, step_factor=0.5, train=train, hidden=hidden_layers, folds=count_blocks
    )
)
