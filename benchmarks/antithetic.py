"""Antithetic draws μ ± σε against independent ones: error at equal numbers of draws, and time.

    python benchmarks/antithetic.py [--out benchmarks/results/antithetic.json]

Errors are root mean squares over rows and repetitions against 20,000 independent draws: of the predictive mean, in
units of the epistemic standard deviation, and of the epistemic variance (classes: mutual information), relative to it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import credo

REFERENCE, REPETITIONS = 20_000, 100


def regression() -> tuple[credo.BayesByBackprop, Tensor]:
    x = torch.linspace(-1.0, 1.0, 100).unsqueeze(1)
    y = torch.sin(4.0 * x) + 0.1 * torch.randn_like(x)
    net = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1))
    model = credo.BayesByBackprop(net, credo.Gaussian(0.1)).fit((x, y), seed=0, progress=False)
    return model, torch.linspace(-1.5, 1.5, 32).unsqueeze(1)


def classification() -> tuple[credo.BayesByBackprop, Tensor]:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    model = credo.BayesByBackprop(net, credo.Categorical())
    model.fit((x[:1200], y[:1200]), epochs=60, batch_size=128, seed=0, progress=False)
    return model, x[1200:1264]


def estimates(model: credo.BayesByBackprop, x: Tensor, samples: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Predictive mean and epistemic uncertainty of ``count`` predictions with ``samples`` draws each."""
    outputs = model._predictor(samples * count, seed).outputs(x)
    groups = [model.likelihood.predictive(group) for group in outputs.split(samples)]
    return torch.stack([p.mean for p in groups]).double(), torch.stack([p.epistemic for p in groups]).double()


def errors(name: str, model: credo.BayesByBackprop, x: Tensor) -> list[dict[str, object]]:
    mean, epistemic = (value[0] for value in estimates(model, x, REFERENCE, 1, seed=1))
    outputs = model._predictor(2000, 1).outputs(x)
    spread = model.likelihood.predictive(outputs).draws.double().var(0).mean().sqrt()
    rows: list[dict[str, object]] = []
    for samples in (10, 30, 100):
        row: dict[str, object] = {"task": name, "samples": samples}
        for kind in (False, True):
            model.posterior.antithetic = kind
            means, parts = estimates(model, x, samples, REPETITIONS, seed=2)
            label = "antithetic" if kind else "independent"
            row[f"mean_error_{label}"] = round(float((means - mean).square().mean().sqrt() / spread), 4)
            row[f"epistemic_error_{label}"] = round(
                float((parts - epistemic).square().mean().sqrt() / epistemic.mean()), 4
            )
            row[f"epistemic_ratio_{label}"] = round(float(parts.mean() / epistemic.mean()), 4)
        model.posterior.antithetic = False
        rows.append(row)
        print(row)
    return rows


def times(rounds: int, samples: int = 10) -> dict[str, object]:
    """CPU time of a prediction of 784-1200-1200-10 for 1000 rows, as a ratio to as many plain forwards."""
    net = nn.Sequential(nn.Linear(784, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.ReLU(), nn.Linear(1200, 10))
    model, x = credo.BayesByBackprop(net, credo.Categorical()), torch.randn(1000, 784)
    found: dict[str, list[float]] = {"plain": [], "independent": [], "antithetic": []}
    for _ in range(rounds + 1):
        for name, measured in found.items():
            model.posterior.antithetic = name == "antithetic"
            start = time.process_time()
            if name == "plain":
                with torch.no_grad():
                    for _ in range(samples):
                        net(x)
            else:
                model.predict(x, samples=samples, seed=0)
            measured.append(time.process_time() - start)
    row: dict[str, object] = {"task": "time, 784-1200-1200-10", "samples": samples}
    for name in ("independent", "antithetic"):
        ratios = [a / b for a, b in zip(found[name][1:], found["plain"][1:], strict=True)]
        row[f"ratio_{name}"] = round(statistics.median(ratios), 3)
    print(row)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = [*errors("regression", *regression()), *errors("classification", *classification())]
    rows.append(times(arguments.rounds))
    result = {
        "name": "antithetic",
        "command": "python " + " ".join(sys.argv),
        "date": datetime.date.today().isoformat(),
        "hardware": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "rows": rows,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
