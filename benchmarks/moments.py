"""How far prediction by moments is from sampling, and what it costs beside one plain forward pass.

    CREDO_DATA=... python benchmarks/moments.py [--only cost] [--out benchmarks/results/moments.json]

Regression: networks with one and two hidden layers of 50 units, trained with credo's defaults; the predictive mean and
standard deviation of test rows against 10,000 draws, targets standardized. MNIST: an MLP and LeNet, three epochs on
10,000 images; accuracy and log loss of 1,000 test images against 300 draws. Cost: CPU time of one thread as a ratio to
one forward pass of the plain network, 1,000 rows, interleaved, median of the rounds.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import itertools
import json
import logging
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import credo

SETS = ("diabetes", "bostonHousing", "concrete", "energy", "yacht")
DRAWS, IMAGE_DRAWS, IMAGES, ROUNDS = 10_000, 300, 1_000, 7


def data_folder() -> Path:
    return Path(os.environ.get("CREDO_DATA", "~/.cache/credo")).expanduser()


def table(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Training inputs and targets, and test inputs, all standardized."""
    if name == "diabetes":
        x, y = load_diabetes(return_X_y=True)
        test = np.arange(0, len(y), 10)
    else:
        file = np.load(data_folder() / "uci" / f"{name}.npz")
        x, y, test = file["X"], file["y"], file["test_idx"][0]
    train = np.setdiff1d(np.arange(len(y)), test)
    x = (x - x[train].mean(0)) / x[train].std(0)
    y = (y - y[train].mean()) / y[train].std()
    return torch.tensor(x[train]).float(), torch.tensor(y[train]).float()[:, None], torch.tensor(x[test]).float()


def images(part: str) -> tuple[Tensor, Tensor]:
    folder = data_folder() / "mnist"
    pixels = np.frombuffer(gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    labels = np.frombuffer(gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    x = torch.tensor(pixels.reshape(-1, 1, 28, 28) / 255).float()
    return (x - 0.1307) / 0.3081, torch.tensor(labels).long()


def dense(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def lenet() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def regression(name: str, hidden: int) -> dict[str, object]:
    x, y, x_test = table(name)
    torch.manual_seed(0)
    net = dense([x.shape[1], *[50] * hidden, 1])
    model = credo.BayesByBackprop(net, credo.Gaussian("learned")).fit((x, y), seed=0, progress=False)
    sampled, found = model.predict(x_test, samples=DRAWS, seed=0), model.predict(x_test, samples="moments")
    error = (found.mean - sampled.mean).abs()
    std, epistemic = found.std / sampled.std, (found.epistemic / sampled.epistemic).sqrt()
    return {
        "kind": "regression",
        "task": name,
        "hidden_layers": hidden,
        "mean_error_median": float(error.median()),
        "mean_error_largest": float(error.max()),
        "standard_error": float((sampled.epistemic / DRAWS).sqrt().median()),
        "std_ratio_smallest": float(std.min()),
        "std_ratio_largest": float(std.max()),
        "epistemic_ratio_smallest": float(epistemic.min()),
        "epistemic_ratio_median": float(epistemic.median()),
        "epistemic_ratio_largest": float(epistemic.max()),
    }


def classification(network: str, method: str) -> dict[str, object]:
    x, y = images("train")
    x_test, y_test = (t[:IMAGES] for t in images("t10k"))
    torch.manual_seed(0)
    net = lenet() if network == "LeNet" else dense([784, 400, 400, 10])
    if method == "dropout":
        model: credo.BayesByBackprop | credo.MCDropout = credo.MCDropout(net, credo.Categorical(), p=0.1)
    else:
        prior = credo.Normal(0.0, 0.1 if method == "narrow prior" else 1.0)
        model = credo.BayesByBackprop(net, credo.Categorical(), prior)
    model.fit((x[:10_000], y[:10_000]), epochs=3, seed=0, progress=False)
    row: dict[str, object] = {"kind": "mnist", "task": network, "method": method}
    for name, samples in (("sampled", IMAGE_DRAWS), ("moments", "moments")):
        p = model.predict(x_test, samples=samples, seed=0)
        row[f"accuracy_{name}"] = float((p.mode == y_test).float().mean())
        row[f"nll_{name}"] = float(-p.log_prob(y_test).mean())
        row[f"mutual_information_{name}"] = float(p.mutual_information.mean())
    return row


def cost(name: str, net: nn.Module, x: Tensor, likelihood: credo.likelihoods.Likelihood) -> dict[str, object]:
    """The time of prediction by moments, in forward passes."""
    model = credo.BayesByBackprop(net, likelihood)
    predictor = model._predictor("moments", None)
    calls: dict[str, Callable[[], object]] = {
        "plain": lambda: net(x),
        "moments": lambda: predictor(x),
        "ten draws": lambda: model.predict(x, samples=10, seed=0),
    }
    times: dict[str, list[float]] = {key: [] for key in calls}
    with torch.no_grad():
        for round_ in range(ROUNDS + 1):
            for key, call in calls.items():
                start = time.process_time()
                call()
                if round_:
                    times[key].append(time.process_time() - start)
    plain = statistics.median(times["plain"])
    return {
        "kind": "cost",
        "task": name,
        "rows": len(x),
        "plain_ms": 1e3 * plain,
        "moments": statistics.median(times["moments"]) / plain,
        "ten_draws": statistics.median(times["ten draws"]) / plain,
    }


def costs() -> Iterator[dict[str, object]]:
    torch.manual_seed(0)
    image, row = torch.randn(1000, 1, 28, 28), torch.randn(1000, 13)
    yield cost("784-1200-1200-10", dense([784, 1200, 1200, 10]), image, credo.Categorical())
    yield cost("LeNet", lenet(), image, credo.Categorical())
    yield cost("13-50-50-1", dense([13, 50, 50, 1]), row, credo.Gaussian("learned"))


PARTS: dict[str, Callable[[], Iterator[dict[str, object]]]] = {
    "cost": costs,
    "mnist": lambda: (
        classification(network, method)
        for network in ("784-400-400-10", "LeNet")
        for method in ("narrow prior", "dropout", "wide prior")
    ),
    "regression": lambda: (regression(name, hidden) for name in SETS for hidden in (1, 2)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="measure one part and keep the rows of the others")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/moments.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("credo").setLevel(logging.ERROR)
    before = json.loads(options.out.read_text(encoding="utf-8"))["rows"] if options.only else []
    rows: list[dict[str, object]] = []
    for name, part in PARTS.items():
        if options.only not in (None, name):
            rows += [row for row in before if row["kind"] == name]
            continue
        for row in part():
            print({key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()}, flush=True)
            rows.append(row)
    result = {
        "name": "moments",
        "command": "python benchmarks/moments.py",
        "date": datetime.date.today().isoformat(),
        "hardware": f"{platform.machine()} CPU, 1 thread, torch {torch.__version__}",
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
