"""LeNet on MNIST by kinds and rates of dropout: what tells images of something else from digits?

    python benchmarks/other_images.py                                      # all settings, 20,000 digits, 4 epochs
    python benchmarks/other_images.py --names elements-0.3 dense-0.5 --seeds 0 1 --digits 50000

Short runs that choose settings of ``credo reproduce bayesian-cnn``; ``benchmarks/network_tables.py run bayesian-cnn
--hold-out`` confirms them with long ones. Errors are counted on the last 10,000 training digits, and the other images
are printed characters, photographs and digits turned by 90°, so that no choice sees the test digits, Fashion-MNIST or
notMNIST. A row is one setting with one seed, written when it is done; those that are there already are skipped. Needs
CREDO_DATA.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import credo
from credo import metrics
from credo.architectures import LeNet
from credo.experiments.networks._images import Data, load
from credo.methods.base import Method
from credo.predictive import Predictive

OUT = Path(__file__).parent / "results" / "other_images.json"
WEIGHTS = ("features.0.weight", "features.3.weight", "classifier.1.weight", "classifier.3.weight")


@dataclass(frozen=True)
class Setting:
    """A method and its dropout.

    Attributes:
        rates: drop rates before the first and the second convolution, the dense layer and the outputs.
        masks: ``"elements"``: of single activations; ``"maps"``: of whole feature maps after both poolings, otherwise
            single activations; ``"units"``: ``MCDropout(p=...)``, which drops input channels of convolutions;
            ``"connections"``: of single weights.
        method: ``"dropout"``; ``"ensemble"``, two networks without dropout in predictions; or ``"bbb"``, Bayes by
            Backprop at T = 0.1.
        activation: ``"relu"``, with the initial weights of He et al.; ``"relu, torch"``, with those of torch; or
            ``"tanh"``, with those of Glorot.
        weight_noise: σ of ``MCDropout``.
    """

    rates: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    masks: str = "elements"
    method: str = "dropout"
    activation: str = "relu"
    weight_noise: float = 0.0


SETTINGS: dict[str, Setting] = {
    "elements-0.3": Setting((0.0, 0.3, 0.3, 0.3)),
    "input-0.2": Setting((0.2, 0.3, 0.3, 0.3)),
    "dense-0.5": Setting((0.0, 0.0, 0.5, 0.5)),
    "outputs-0.5": Setting((0.0, 0.0, 0.0, 0.5)),
    "convolution-0.5": Setting((0.0, 0.5, 0.0, 0.0)),
    "maps-0.3-0.5": Setting((0.0, 0.0, 0.3, 0.5), "maps"),
    "maps-0.1-0.3-0.5": Setting((0.0, 0.1, 0.3, 0.5), "maps"),
    "units-0.3": Setting((0.0, 0.3, 0.3, 0.3), "units"),
    "units-0.1-0.5": Setting((0.0, 0.1, 0.1, 0.5), "units"),
    "units-0.05-0.2": Setting((0.0, 0.05, 0.0, 0.2), "units"),
    "units-0.2-0.5": Setting((0.0, 0.2, 0.0, 0.5), "units"),
    "units-0.05-0.7": Setting((0.0, 0.05, 0.05, 0.7), "units"),
    "units-0.1-0.3-0.5": Setting((0.0, 0.1, 0.3, 0.5), "units"),
    "units-torch": Setting((0.0, 0.1, 0.1, 0.5), "units", activation="relu, torch"),
    "connections-0.1-0.5": Setting((0.0, 0.1, 0.1, 0.5), "connections"),
    "connections-0.3": Setting((0.1, 0.3, 0.3, 0.3), "connections"),
    "weight-noise-0.05": Setting((0.0, 0.1, 0.1, 0.3), "units", weight_noise=0.05),
    "tanh-elements-0.3": Setting((0.0, 0.3, 0.3, 0.3), activation="tanh"),
    "tanh-outputs-0.5": Setting((0.0, 0.0, 0.0, 0.5), activation="tanh"),
    "ensemble": Setting(method="ensemble"),
    "ensemble-0.3": Setting((0.0, 0.3, 0.3, 0.3), method="ensemble"),
    "bbb": Setting(method="bbb"),
}


def network(setting: Setting) -> nn.Module:
    """LeNet with a ReLU or tanh after each pooling, and its own dropout layers if the masks are elements or maps."""
    first, second, dense, outputs = setting.rates
    own = setting.masks in ("elements", "maps")
    net = LeNet(dropout=0.5 if own else None, relu=True)
    if setting.activation != "relu":
        _reset(net, setting.activation)
    if own:
        maps = setting.masks == "maps"
        net.features[3] = nn.Dropout2d(second) if maps else nn.Dropout(second)
        net.classifier[1] = nn.Dropout(0.0 if maps else dense)
        net.classifier[4] = nn.Dropout(outputs)
        if maps:
            net.features.append(nn.Dropout2d(dense))
    return nn.Sequential(nn.Dropout(first), net) if own and first else net


def _reset(net: LeNet, activation: str) -> None:
    """Other activations and initial weights."""
    for stage in (net.features, net.classifier):
        for i, layer in enumerate(stage):
            if isinstance(layer, nn.ReLU) and activation == "tanh":
                stage[i] = nn.Tanh()
    for layer in net.modules():
        if not isinstance(layer, nn.Conv2d | nn.Linear):
            continue
        if activation == "tanh":
            nn.init.xavier_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        else:
            layer.reset_parameters()


def build(setting: Setting) -> Method:
    """The untrained model."""
    likelihood, make = credo.Categorical(), lambda: network(setting)
    if setting.method == "ensemble":
        return credo.DeepEnsemble(make, members=2, likelihood=likelihood, prior=credo.Normal(0.0, 1.0))
    if setting.method == "bbb":
        net = LeNet(relu=True)
        return credo.BayesByBackprop(
            net, likelihood, credo.Normal(0.0, 1.0), initial_scale=0.01, estimator="flipout", temperature=0.1
        )
    if setting.masks in ("elements", "maps"):
        return credo.MCDropout(make(), likelihood)
    return credo.MCDropout(
        make(),
        likelihood,
        p=dict(zip(WEIGHTS, setting.rates, strict=True)),
        connections=setting.masks == "connections",
        weight_noise=setting.weight_noise,
    )


def measure(setting: Setting, data: Data, seed: int, digits: int, epochs: int, draws: int) -> dict[str, Any]:
    """Train by a setting; its error and NLL on held-out digits, and AUROC by both uncertainties for other images."""
    torch.manual_seed(seed)
    model = build(setting).to(memory_format=torch.channels_last)
    start = time.perf_counter()
    model.fit(
        (data.digits.x_train[:digits], data.digits.y_train[:digits]),
        epochs=epochs,
        batch_size=128,
        lr=2e-3,
        precision="bf16-mixed",
        seed=seed,
        progress=False,
    )
    seconds = time.perf_counter() - start

    def predict(x: torch.Tensor) -> Predictive:
        return model.predict(x, samples=draws, seed=seed)

    tested, y = predict(data.digits.x_test), data.digits.y_test
    others = {name: predict(x) for name, x in data.others.items()}
    return {
        "error_percent": round(100.0 * (tested.mode != y).double().mean().item(), 2),
        "nll": round(metrics.nll(tested, y), 4),
        "auroc_entropy": {name: round(metrics.auroc(tested.entropy, p.entropy), 4) for name, p in others.items()},
        "auroc_mutual_information": {
            name: round(metrics.auroc(tested.mutual_information, p.mutual_information), 4) for name, p in others.items()
        },
        "train_seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--digits", type=int, default=20_000, help="training digits, 50,000 at most")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--draws", type=int, default=15)
    parser.add_argument("--held-out", type=int, default=2500, help="held-out digits, 10,000 at most")
    parser.add_argument("--others", type=int, default=1500, help="other images of each kind, 2,000 at most")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    found = load(hold_out=10_000)
    digits, n = found.digits, arguments.held_out
    data = Data(
        credo.datasets.Images(digits.x_train, digits.y_train, digits.x_test[:n], digits.y_test[:n], digits.classes),
        {name: x[: arguments.others] for name, x in found.others.items()},
    )
    stored = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {"rows": []}
    for seed in arguments.seeds:
        for name in arguments.names:
            key = {"name": name, "seed": seed, "training_digits": arguments.digits, "epochs": arguments.epochs}
            if any(key.items() <= row.items() for row in stored["rows"]):
                continue
            sizes = {"draws": arguments.draws, "held_out_digits": n, "others": arguments.others}
            measured = measure(SETTINGS[name], data, seed, arguments.digits, arguments.epochs, arguments.draws)
            row = {**key, **sizes, **asdict(SETTINGS[name]), **measured}
            print(json.dumps(row, ensure_ascii=False), flush=True)
            stored = {
                "name": "other_images",
                "command": "python benchmarks/other_images.py",
                "date": datetime.date.today().isoformat(),
                "hardware": f"{platform.machine()}, 1 thread, torch {torch.__version__}",
                **{k: v for k, v in stored.items() if k == "note"},
                "rows": [*stored["rows"], row],
            }
            arguments.out.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
