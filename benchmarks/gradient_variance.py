"""The variance of stochastic gradients by estimator, and by the time it takes: which one should be the default?

    python benchmarks/gradient_variance.py [--out benchmarks/results/gradient_variance.json]

At a fixed posterior and on a fixed minibatch, the gradient of the negative log likelihood is computed again and again
with fresh noise, once per estimator. What differs from run to run is the noise of the estimator. Its variance, summed
over all parameters of a kind (means or scales), halves with twice the work, so that variance × seconds per step is what
an estimator costs at equal accuracy; ``cost`` has it relative to ``"weight"``, smaller is better. ``gradient_squared``
is the squared length of the mean gradient, without the bias of a finite number of draws.

A minibatch has noise of its own, from the choice of its rows, which no estimator removes: ``minibatch_variance`` is
what its choice adds, and ``total_cost`` compares (variance of the estimator + that of the minibatch) × seconds.

Rows of kind ``elbo`` are the verdict: the ELBO after training for about the same CPU time.

The networks are LeNet, a wider CNN and an MLP on scikit-learn's digits, enlarged to 28×28. ``"local, flipout"`` is
local reparameterization in Linear layers and Flipout in convolutions, which ``"auto"`` was before; now it draws the
weights of convolutions. Time is the process's CPU time of loss and gradient, on one thread, interleaved, median.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import logging
import platform
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import credo

BATCH_SIZE = 64
SCALES = (0.01, 0.03, 0.1)
ESTIMATORS = ("weight", "flipout", "local, flipout", "auto")
MIXED = "local, flipout"
EPOCHS = {"LeNet": {"auto": 28, MIXED: 20}, "CNN 32-64-fc128": {"auto": 13, MIXED: 9}}
"""About equal in CPU time."""
Row = dict[str, object]


def lenet() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def wide_cnn() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def mlp() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU()), nn.Linear(400, 10)
    )


NETWORKS = {"LeNet": lenet, "CNN 32-64-fc128": wide_cnn, "784-400-400-10": mlp}


def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    images = torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8) / 16.0
    return F.interpolate(images, size=28, mode="bilinear") - 0.3, torch.tensor(y)


class Mixed(credo.BayesByBackprop):
    """Flipout in convolutions, and in Linear layers what ``"auto"`` does."""

    def _plan_noise(self, x: Tensor) -> None:
        super()._plan_noise(x)
        linear = [path for path in self._hooks.plan if isinstance(self.net.get_submodule(path), nn.Linear)]
        self._hooks.set_plan({**self._hooks.plan, **dict.fromkeys(linear, "auto")})


def model_of(net: nn.Module, estimator: str, scale: float = 0.01) -> credo.BayesByBackprop:
    """The network's own weights as means, and σ for every weight."""
    prior = credo.Normal(0.0, 0.1)
    if estimator == MIXED:
        return Mixed(net, credo.Categorical(), prior, initial_scale=scale, estimator="flipout")
    return credo.BayesByBackprop(net, credo.Categorical(), prior, initial_scale=scale, estimator=estimator)


def gradients(model: credo.BayesByBackprop, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of the negative log likelihood by the means and by the scales, with fresh noise."""
    means = [model.net.get_parameter(name) for name in model.posterior.names()]
    rhos = list(model.posterior.rho.parameters())
    found = torch.autograd.grad(model.nll(x, y), means + rhos)
    parts = [gradient.flatten() for gradient in found]
    return torch.cat(parts[: len(means)]), torch.cat(parts[len(means) :])


class Spread:
    """The sum over elements of the variance of vectors, and the squared length of their mean."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, torch.zeros(()), 0.0

    def add(self, vector: Tensor) -> None:
        self.count += 1
        self.total = self.total + vector.double()
        self.squares += float(vector.double().square().sum())

    @property
    def variance(self) -> float:
        return (self.squares - float(self.total.square().sum()) / self.count) / (self.count - 1)

    @property
    def mean_squared(self) -> float:
        return float(self.total.square().sum()) / self.count**2 - self.variance / self.count


def seconds_per_step(models: dict[str, credo.BayesByBackprop], x: Tensor, y: Tensor, rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(-2, rounds):
        for name, model in models.items():
            begin = time.process_time()
            model.loss(x, y, n_data=60_000).backward()
            if turn >= 0:
                times[name].append(time.process_time() - begin)
            model.zero_grad(set_to_none=True)
    return {name: statistics.median(of_model) for name, of_model in times.items()}


def measure(network: str, draws: int, rounds: int) -> Iterator[Row]:
    x, y = digits()
    torch.manual_seed(0)
    net = NETWORKS[network]()
    credo.MAP(net, credo.Categorical()).fit((x, y), epochs=3, seed=0, progress=False)
    rows = torch.arange(BATCH_SIZE)
    for scale in SCALES:
        models = {name: model_of(net, name, scale).train() for name in ESTIMATORS}
        seconds = seconds_per_step(models, x[rows], y[rows], rounds)
        spreads = {name: (Spread(), Spread()) for name in models}
        for name, model in models.items():
            torch.manual_seed(1)
            for _ in range(draws):
                for spread, vector in zip(spreads[name], gradients(model, x[rows], y[rows]), strict=True):
                    spread.add(vector)
        batches = (Spread(), Spread())
        generator = torch.Generator().manual_seed(2)
        for _ in range(draws // 4):  # their variance contains that of the estimator, which is known from above
            some = torch.randint(len(x), (BATCH_SIZE,), generator=generator)
            for spread, vector in zip(batches, gradients(models["flipout"], x[some], y[some]), strict=True):
                spread.add(vector)
        for kind, of in (("means", 0), ("scales", 1)):
            of_batch = max(0.0, batches[of].variance - spreads["flipout"][of].variance)
            base = spreads["weight"][of].variance, seconds["weight"]
            for name, both in spreads.items():
                variance = both[of].variance
                yield {
                    "kind": "variance",
                    "network": network,
                    "scale": scale,
                    "gradient": kind,
                    "estimator": name,
                    "milliseconds": round(1e3 * seconds[name], 3),
                    "variance": variance,
                    "gradient_squared": both[of].mean_squared,
                    "minibatch_variance": of_batch,
                    "cost": round(variance * seconds[name] / (base[0] * base[1]), 3),
                    "total_cost": round((variance + of_batch) * seconds[name] / ((base[0] + of_batch) * base[1]), 3),
                }


def elbos(network: str) -> Iterator[Row]:
    """The ELBO of 1,400 digits after training for about the same CPU time."""
    x, y = (t[:1400] for t in digits())
    for seed in (0, 1):
        for name, epochs in EPOCHS.get(network, {}).items():
            torch.manual_seed(seed)
            model = model_of(NETWORKS[network](), name)
            begin = time.process_time()
            model.fit((x, y), epochs=epochs, batch_size=BATCH_SIZE, seed=seed, progress=False)
            seconds = time.process_time() - begin
            elbo = model.elbo((x, y), samples=30, seed=0)
            yield {
                "kind": "elbo",
                "network": network,
                "estimator": name,
                "seed": seed,
                "epochs": epochs,
                "seconds": round(seconds, 1),
                "elbo": round(elbo, 1),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=NETWORKS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("credo").setLevel(logging.ERROR)
    rows = []
    for network in [arguments.only] if arguments.only else NETWORKS:
        for row in itertools.chain(measure(network, arguments.draws, arguments.rounds), elbos(network)):
            rows.append(row)
            print("  ".join(f"{v:.3g}" if isinstance(v, float) else f"{v}" for v in row.values()), flush=True)
    result = {
        "name": "gradient_variance",
        "command": "python benchmarks/gradient_variance.py",
        "date": datetime.date.today().isoformat(),
        "hardware": f"{platform.machine()} CPU, 1 thread, torch {torch.__version__}",
        "rows": rows,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
