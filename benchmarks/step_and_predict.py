"""Train step and prediction of 784-1200-1200-10 as ratios to the deterministic network, in one run.

    python benchmarks/step_and_predict.py [--device cuda] [--out benchmarks/results/step_and_predict_cpu.json]

Rounds are interleaved, so that every contestant meets the same machine; a ratio is a median of per-round ratios.
On a GPU every step is compiled and captured in a CUDA graph, the deterministic one too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path

import racing
import torch
import torch.nn.functional as F
from racing import Step, hardware, mlp, race, ratios
from torch import Tensor

import credo


def train_step(
    loss: Callable[[Tensor, Tensor], Tensor], parameters: list[dict[str, object]], device: torch.device
) -> Step:
    """A step on a batch of 128; on a GPU compiled and replayed as a CUDA graph."""
    batch = torch.randn(128, 784, device=device), torch.randint(0, 10, (128,), device=device)
    gpu = device.type == "cuda"
    return racing.train_step(loss, parameters, batch, captured=gpu, compiled=gpu)


def step_contestants(device: torch.device) -> dict[str, Step]:
    plain = mlp().to(device)
    contestants = {
        "deterministic": train_step(
            lambda x, y: F.cross_entropy(plain(x), y), [{"params": list(plain.parameters())}], device
        )
    }
    recipes: dict[str, dict[str, object]] = {
        "BayesByBackprop": {},
        "BayesByBackprop, weight": {"estimator": "weight"},
        "BayesByBackprop, flipout": {"estimator": "flipout"},
        "BayesByBackprop, scale mixture": {"prior": credo.ScaleMixture()},
    }
    for name, options in recipes.items():
        model = credo.BayesByBackprop(mlp().to(device), credo.Categorical(), **options)  # type: ignore[arg-type]

        def loss(x: Tensor, y: Tensor, model: credo.BayesByBackprop = model) -> Tensor:
            return model(x, y, 60_000)

        contestants[name] = train_step(loss, model.parameter_groups(), device)
    dropout = credo.MCDropout(mlp().to(device), credo.Categorical(), p=0.5)
    contestants["MCDropout"] = train_step(lambda x, y: dropout(x, y, 60_000), dropout.parameter_groups(), device)
    return contestants


def predict_contestants(device: torch.device, samples: int) -> dict[str, Step]:
    x = torch.randn(1000, 784, device=device)
    plain = mlp().to(device)
    model = credo.BayesByBackprop(mlp().to(device), credo.Categorical())
    dropout = credo.MCDropout(mlp().to(device), credo.Categorical(), p=0.5)

    @torch.no_grad()
    def forwards() -> None:
        for _ in range(samples):
            plain(x)

    return {
        f"{samples} plain forwards": forwards,
        "BayesByBackprop.predict": lambda: model.predict(x, samples=samples, seed=0),
        "MCDropout.predict": lambda: dropout.predict(x, samples=samples, seed=0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--predict-rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--matmul-precision", default="highest", help="'high' allows TF32")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision(arguments.matmul_precision)
    times = race(step_contestants(device), "deterministic", arguments.rounds, device)
    rows = [{"task": "train step, batch 128", **row} for row in ratios(times)]
    predictions = predict_contestants(device, arguments.samples)
    times = race(predictions, next(iter(predictions)), arguments.predict_rounds, device)
    task = f"predict, batch 1000, {arguments.samples} draws"
    rows += [{"task": task, **row} for row in ratios(times)]
    result = {
        "name": "step_and_predict",
        "command": "python " + " ".join(sys.argv),
        "date": datetime.date.today().isoformat(),
        "hardware": hardware(device),
        "matmul_precision": arguments.matmul_precision,
        "rows": rows,
    }
    for row in rows:
        print(f"{row['task']:<36} {row['name']:<34} {row['ratio']:>7.2f}× {row['milliseconds']:>10.3f} ms")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
