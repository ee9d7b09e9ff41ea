"""How far a mean-field posterior gets with its default settings, and what they were chosen by.

    python benchmarks/convergence.py [--processes 2] [--out benchmarks/results/convergence.json]

Small tasks, each split into training and *validation* rows; no test rows are looked at. Contestants are plain Adam, and
Adam in the posterior's own units with relative steps of 0.03, 0.1 and 0.3, for 20 epochs and for 2,000 steps. Reported
are the ELBO per training datum and the validation scores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import logging
import math
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.multiprocessing as multiprocessing
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn

import credo
from credo.training.optimizers import NaturalAdam, adam


class Task(NamedTuple):
    x: Tensor
    y: Tensor
    x_validation: Tensor
    y_validation: Tensor
    network: nn.Module
    likelihood: credo.likelihoods.Likelihood


def digits(network: Callable[[], nn.Module], pretrained: bool) -> Task:
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    images, labels = torch.tensor(x[order] / 16).float().view(-1, 1, 8, 8), torch.tensor(y[order])
    net = network()
    if pretrained:
        data = (images[:1000], labels[:1000])
        credo.MAP(net, credo.Categorical(), credo.Normal(0.0, 10.0)).fit(data, epochs=30, seed=0, progress=False)
    return Task(images[:1000], labels[:1000], images[1000:1400], labels[1000:1400], net, credo.Categorical())


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), credo.architectures.MLP(64, (100, 100), 10))


def diabetes() -> Task:
    x, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    table = torch.tensor(np.column_stack([x, y])[order]).float()
    table = (table - table.mean(0)) / table.std(0)
    x, y = table[:, :-1], table[:, -1:]
    net = credo.architectures.MLP(10, (50, 50))
    return Task(x[:250], y[:250], x[250:350], y[250:350], net, credo.Gaussian("learned"))


def sine() -> Task:
    x = torch.rand(700, 1, generator=torch.Generator().manual_seed(0)) * 2 - 1
    y = torch.sin(4 * x) + 0.1 * torch.randn(700, 1, generator=torch.Generator().manual_seed(1))
    return Task(x[:500], y[:500], x[500:], y[500:], credo.architectures.MLP(1, (50,)), credo.Gaussian("learned"))


TASKS: dict[str, Callable[[], Task]] = {
    "digits, trained CNN": partial(digits, convolutional, True),
    "digits, new CNN": partial(digits, convolutional, False),
    "digits, new MLP": partial(digits, dense, False),
    "diabetes": diabetes,
    "sine": sine,
}
PRIORS = {"Normal(0, 1)": lambda: credo.Normal(0.0, 1.0), "AdaptiveNormal()": credo.AdaptiveNormal}
STEPS: list[float | None] = [None, 0.03, 0.1, 0.3]


def run(job: tuple[str, str, float | None, int | None]) -> dict[str, object]:
    """One task with one prior, one optimizer (``None`` is plain Adam without warm-up) and one length of training."""
    task_name, prior, step, epochs = job
    logging.getLogger("credo").setLevel("WARNING")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    task = TASKS[task_name]()
    model = credo.BayesByBackprop(task.network, task.likelihood, PRIORS[prior](), kl_warmup=0 if step is None else None)
    optimizer = adam if step is None else partial(_natural, model, step)
    model.fit((task.x, task.y), epochs=epochs, optimizer=optimizer, seed=0, progress=False)
    p = model.predict(task.x_validation, samples=50, seed=0)
    scale = torch.cat([s.detach().flatten() for s in model.posterior.scale().values()])
    row: dict[str, object] = {
        "task": task_name,
        "prior": prior,
        "optimizer": "Adam" if step is None else f"NaturalAdam, r = {step:g}",
        "steps": len(model.history) * math.ceil(len(task.x) / 128),
        "elbo": round(model.elbo((task.x, task.y), samples=20, seed=0) / len(task.x), 3),
        "validation_nll": round(-float(p.log_prob(task.y_validation).mean()), 4),
        "median_scale": round(float(scale.median()), 4),
    }
    if task.y.dtype == torch.int64:
        row["validation_accuracy"] = round(credo.metrics.accuracy(p, task.y_validation), 4)
        row["mutual_information"] = round(float(p.mutual_information.mean()), 4)
    return row


def _natural(model: credo.BayesByBackprop, step: float, groups: list[dict[str, object]], lr: float) -> NaturalAdam:
    return NaturalAdam(groups, model.posterior.scale_parameters(), lr, step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/convergence.json"))
    arguments = parser.parse_args()
    jobs = [
        (task, prior, step, epochs) for task in TASKS for prior in PRIORS for step in STEPS for epochs in (20, None)
    ]
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        rows = pool.map(run, jobs, chunksize=1)
    content = {
        "name": "convergence",
        "command": "python benchmarks/convergence.py",
        "date": datetime.date.today().isoformat(),
        "hardware": f"{platform.machine()}, 1 thread per run, torch {torch.__version__}",
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
