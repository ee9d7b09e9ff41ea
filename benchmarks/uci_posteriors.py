"""Posteriors of one small network by every method, on nine UCI regression tables with their standard splits.

    python benchmarks/uci_posteriors.py run --inside --setting wide relevance --seconds 3    # for choices
    python benchmarks/uci_posteriors.py run --setting best --seconds 10                      # for the record
    python benchmarks/uci_posteriors.py run --inside --setting wide short --splits 2 --methods map bbb
    python benchmarks/uci_posteriors.py table

All splits and chains of a table are sampled as one batch: 20 splits times 8 chains are 160 networks behind one
gradient, on a GPU one replayed graph. A gradient takes about 6·K·N·P operations, K networks of P weights on N rows:
1.5e9 for Boston and 1.8e10 for Naval Propulsion, with 2 x 50 units. Samplers get ``--seconds`` per table (1.5 times as
much above 5,000 rows, 2.5 times above 20,000, with half the chains): the time of a gradient is measured, and the length
of trajectories or the number of steps follows.

Settings are chosen with ``--inside``, which holds a tenth of each training fold out and never reads a test fold;
``--setting best`` is, for every table, the one with the highest log likelihood there. The test folds are for one last
run. A result that exists is not computed again.

References: J. M. Hernández-Lobato, R. P. Adams, "Probabilistic backpropagation for scalable learning of Bayesian neural
networks", ICML 2015 (tables and splits).
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import logging
import math
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import credo
from credo import diagnostics
from credo.data import Batch
from credo.methods._fold_chains import fit_folds, joint_target, stack_folds
from credo.stacking import Stack
from credo.training.supervised import SupervisedTask

RESULTS = Path(__file__).parent / "results" / "uci_posteriors"
PUBLISHED = {
    "bostonHousing": -2.40,
    "concrete": -2.83,
    "energy": -0.53,
    "kin8nm": 1.20,
    "naval-propulsion-plant": 6.29,
    "power-plant": -2.60,
    "protein-tertiary-structure": -2.70,
    "wine-quality-red": -0.90,
    "yacht": -0.16,
}
"""The best test log likelihoods that were published without choices on test data."""
CURVATURE_GRADIENTS = 64
"""For the curvature where chains start."""
OVERHEAD = {"hmc": 3e-3, "mclmc": 5e-4}
"""Seconds that a transition or step takes beside its gradients, about."""
PREDICTION_DRAWS, DIAGNOSED_ROWS = 50, 50


class Setting(NamedTuple):
    """What is chosen inside training folds.

    Attributes:
        hidden: units of the hidden layers.
        inputs: the groups of the first layer's weights that share a prior variance.
        shape: a of the inverse Gamma prior of variances.
        rate: b of it.
        noise: of the likelihood: the same for all rows, or an output of the network.
        chains: per split.
        warmup: transitions of HMC.
        draws: per chain.
        acceptance: of HMC.
        init_steps: of the optimizer at the start of chains.
        epochs: of methods that train.
    """

    hidden: tuple[int, ...]
    inputs: str = "layer"
    shape: float = 1.0
    rate: float = 1.0
    noise: str = "learned"
    chains: int = 8
    warmup: int = 200
    draws: int = 200
    acceptance: float = 0.8
    init_steps: int = 500
    epochs: int = 400


SETTINGS = {
    "protocol": Setting((50,)),
    "wide": Setting((50, 50)),
    "short": Setting((50, 50), epochs=40),
    "relevance": Setting((50, 50), inputs="input", rate=0.1),
    "heteroscedastic": Setting((50, 50), noise="heteroscedastic"),
    "both": Setting((50, 50), inputs="input", rate=0.1, noise="heteroscedastic"),
}


class Fold(NamedTuple):
    """A split, standardized by its training rows: ``[N, d]`` and ``[N, 1]``; ``scale`` is the unit of the targets."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    scale: float


class Predictions(NamedTuple):
    """A mixture of Gaussians for every test row of a split: means and log standard deviations, ``[S, B]``."""

    mean: Tensor
    log_scale: Tensor


def load_folds(name: str, inside: bool, limit: int | None, device: torch.device) -> list[Fold]:
    """The splits of a table; with ``inside``, a tenth of each training fold in place of its test fold."""
    table = credo.datasets.load(f"uci/{name}")
    x, y = np.asarray(table.x, dtype=np.float64), np.asarray(table.y, dtype=np.float64).reshape(-1, 1)
    folds = []
    for split, rows in enumerate(table.test_rows[:limit]):
        test = np.asarray(rows)
        train = np.setdiff1d(np.arange(len(y)), test)
        if inside:
            shuffled = np.random.default_rng(split).permutation(train)
            test, train = shuffled[: len(train) // 10], shuffled[len(train) // 10 :]
        parts = []
        for values in (x, y):
            spread = values[train].std(0)
            spread = np.where(spread > 0.0, spread, 1.0)  # constant columns
            scaled = (values - values[train].mean(0)) / spread
            parts += [torch.tensor(scaled[chosen], dtype=torch.float32, device=device) for chosen in (train, test)]
        folds.append(Fold(parts[0], parts[2], parts[1], parts[3], float(y[train].std())))
    return folds


def network(features: int, setting: Setting) -> nn.Sequential:
    sizes = (features, *setting.hidden)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 2 if setting.noise == "heteroscedastic" else 1))


def prior(setting: Setting) -> dict[str, credo.HierarchicalNormal]:
    """Unknown variances for every layer; per input in the first, and per output in the last, if asked for."""
    last = f"{2 * len(setting.hidden)}.weight"
    groups = {"0.weight": setting.inputs, last: "unit", "*": "layer"}
    return {pattern: credo.HierarchicalNormal(g, setting.shape, setting.rate) for pattern, g in groups.items()}


def seconds_per_gradient(model: Any, folds: list[Fold]) -> float:
    """Of all chains of all splits, after the capture."""
    batches = [model._load((fold.x, fold.y), SupervisedTask(model)) for fold in folds]
    target = joint_target([model] * len(folds), batches)
    position = torch.cat([model._first_positions(target, 0)] * len(folds))

    def evaluate(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            value = target(position)
        float(value.log_density.sum())  # waits for the device
        return (time.perf_counter() - start) / times

    evaluate(15)
    return evaluate(20)


def run_sampler(
    method: str, folds: list[Fold], setting: Setting, end: float
) -> tuple[list[Predictions], dict[str, Any]]:
    """Predictions by HMC or MCLMC, all splits at once, and notes; the time until ``end`` is spent on gradients."""
    net, device = network(folds[0].x.shape[1], setting), folds[0].x.device
    common: dict[str, Any] = {"chains": setting.chains, "init_steps": setting.init_steps}
    common["noise_prior"] = credo.Normal(-1.0, 2.0)

    def build(cls: Any, **options: Any) -> Any:
        return cls(net, credo.Gaussian(setting.noise), prior(setting), **common, **options).to(device)

    each = seconds_per_gradient(build(credo.HMC), folds)
    remaining = end - time.perf_counter() - (setting.init_steps + CURVATURE_GRADIENTS) * each
    transitions = setting.warmup + setting.draws
    if method == "hmc":
        gradients = max((remaining - transitions * OVERHEAD["hmc"]) / each, 500.0)
        steps = max(8, min(256, int(2.0 * gradients / transitions) - 1))
        share = min(1.0, gradients / (transitions * 0.5 * (steps + 1)))
        plan = {"warmup": round(share * setting.warmup), "draws": round(share * setting.draws)}
        model = build(credo.HMC, **plan, leapfrog_steps=steps, acceptance=setting.acceptance)
    else:
        gradients = max(remaining / (each + OVERHEAD["mclmc"]), 500.0)
        thinning = max(1, int(0.6 * gradients / setting.draws))
        plan = {"warmup": int(0.4 * gradients), "draws": setting.draws, "thinning": thinning}
        model = build(credo.MCLMC, **plan)
        steps = 1
    models = fit_folds(model, [(f.x, f.y) for f in folds], range(len(folds)), device=device, diagnose=False)
    outputs = [predict_draws(models, folds, setting, of_training_rows) for of_training_rows in (False, True)]
    flat = [Predictions(*(part.flatten(0, 1) for part in p)) for p in outputs[0]]
    notes = {
        **convergence(outputs[1]),
        "divergences": sum(sum(m._report.divergences) for m in models),
        "draws_divergences_refer_to": len(models) * setting.chains * plan["draws"] * plan.get("thinning", 1),
        "networks": len(models) * setting.chains,
        "weights": sum(p.numel() for p in net.parameters()),
        "milliseconds_per_gradient": round(1e3 * each, 3),
        "leapfrog_steps": steps,
        **plan,
    }
    return flat, notes


@torch.no_grad()
def predict_draws(models: list[Any], folds: list[Fold], setting: Setting, training_rows: bool) -> list[Predictions]:
    """Outputs ``[chains, draws, B]`` of every split for its test rows, or for some of its training rows."""
    rows = [f.x[:DIAGNOSED_ROWS] if training_rows else f.x_test for f in folds]
    x = stack_folds([Batch(own, own[:, :1], None) for own in rows], setting.chains)
    every = max(1, models[0].posterior.shape[1] // PREDICTION_DRAWS)
    draws = [m.posterior.by_chain() for m in models]
    weights = {name: torch.cat([own[name][:, ::every] for own in draws]) for name in draws[0]}
    stack = Stack(models[0].net, len(models) * setting.chains)
    count = next(iter(weights.values())).shape[1]
    parts = [
        torch.cat([stack({n: w[:, i] for n, w in weights.items()}, part.x, per_copy=True) for part in x], 1)
        for i in range(count)
    ]
    outputs = torch.stack(parts, 1).unflatten(0, (len(models), setting.chains))
    predictions = []
    for model, output, own in zip(models, outputs, rows, strict=True):
        mean = output[..., : len(own), 0]
        if setting.noise == "heteroscedastic":
            log_scale = 0.5 * output[..., : len(own), 1]
        else:
            log_scale = model.likelihood_posterior.by_chain()["log_scale"][:, ::every, None].expand_as(mean)
        predictions.append(Predictions(mean, log_scale))
    return predictions


def convergence(predictions: list[Predictions]) -> dict[str, float]:
    """R-hat and effective draws of the means for training rows, over all splits."""
    draws = torch.cat([p.mean for p in predictions], 2)
    r_hat, size = diagnostics.r_hat(draws), diagnostics.effective_sample_size(draws)
    return {
        "r_hat_median": round(float(r_hat.nanmedian()), 4),
        "r_hat_95": round(float(r_hat.nanquantile(0.95)), 4),
        "effective_draws_median": round(float(size.nanmedian()), 1),
        "effective_draws_5": round(float(size.nanquantile(0.05)), 1),
    }


TRAINED: dict[str, Callable[[nn.Module, credo.Gaussian], Any]] = {
    "map": lambda net, likelihood: credo.MAP(net, likelihood),
    "bbb": lambda net, likelihood: credo.BayesByBackprop(net, likelihood, credo.HierarchicalNormal()),
    "dropout": lambda net, likelihood: credo.MCDropout(net, likelihood, p=0.05, length_scale=0.1),
    "ensemble": lambda net, likelihood: credo.DeepEnsemble(net, members=8, init="fresh", likelihood=likelihood),
    "laplace": lambda net, likelihood: credo.Laplace(net, likelihood),
    "swag": lambda net, likelihood: credo.SWAG(net, likelihood),
    "ivon": lambda net, likelihood: credo.IVON(net, likelihood, credo.HierarchicalNormal()),
    "concrete_dropout": lambda net, likelihood: credo.ConcreteDropout(net, likelihood),
    "last_layer": lambda net, likelihood: credo.VariationalLastLayer(net, likelihood),
    "sgld": lambda net, likelihood: credo.SGLD(net, likelihood, credo.HierarchicalNormal()),
    "sghmc": lambda net, likelihood: credo.SGHMC(net, likelihood, credo.HierarchicalNormal()),
}
"""Methods that see minibatches, one split after the other."""


def run_trained(method: str, folds: list[Fold], setting: Setting) -> list[dict[str, Any]]:
    """Scores of one of the methods of ``TRAINED`` on every split."""
    options: dict[str, Any] = {} if method in ("sgld", "sghmc") else {"epochs": setting.epochs}
    if options and method != "ivon":
        options["lr"] = 0.01
    scores = []
    for split, fold in enumerate(folds):
        torch.manual_seed(split)
        model = TRAINED[method](network(fold.x.shape[1], setting), credo.Gaussian(setting.noise))
        model.fit((fold.x, fold.y), seed=split, device=fold.x.device, progress=False, **options)
        p = model.predict(fold.x_test, samples=200, seed=split)
        scores.append(
            {
                "log_likelihood": -credo.metrics.nll(p, fold.y_test) - math.log(fold.scale),
                "rmse": credo.metrics.rmse(p, fold.y_test) * fold.scale,
                "coverage": credo.metrics.coverage(p, fold.y_test),
            }
        )
    return scores


def score(fold: Fold, prediction: Predictions) -> dict[str, float]:
    """Log likelihood, RMSE and coverage of the central 95 % interval of the mixture, in the units of the table."""
    mean, scale, y = prediction.mean.double(), prediction.log_scale.double().exp(), fold.y_test.squeeze(1).double()
    z = (y - mean) / scale
    log_p = -0.5 * z.square() - scale.log() - 0.5 * math.log(2.0 * math.pi)
    below = torch.special.ndtr(z).mean(0)
    return {
        "log_likelihood": float((log_p.logsumexp(0) - math.log(len(z))).mean()) - math.log(fold.scale),
        "rmse": float((mean.mean(0) - y).square().mean().sqrt()) * fold.scale,
        "coverage": float(((below > 0.025) & (below < 0.975)).double().mean()),
    }


def best_setting(name: str, method: str, folder: Path) -> str:
    """The setting with the highest log likelihood of a method inside the training folds of a table."""
    paths = [folder / f"inside_{setting}" / f"{name}_{method}.json" for setting in SETTINGS]
    rows = [json.loads(path.read_text("utf-8"))["rows"][0] for path in paths if path.exists()]
    if not rows:
        raise SystemExit(f"no results of --inside for {name} by {method} in {folder}")
    return str(max(rows, key=lambda row: row["log_likelihood"])["setting"])


def run_table(name: str, method: str, chosen: str, arguments: argparse.Namespace, out: Path) -> None:
    """Run a method on all splits of a table and write the result."""
    device = torch.device(arguments.device)
    setting = SETTINGS[chosen]
    start, cpu, seconds = time.perf_counter(), time.process_time(), arguments.seconds
    folds = load_folds(name, arguments.inside, arguments.splits, device)
    if len(folds[0].y) > 5_000:
        setting = setting._replace(chains=setting.chains // 2)
        seconds *= 2.5 if len(folds[0].y) > 20_000 else 1.5
    if name.startswith("protein"):  # as in the protocol
        setting = setting._replace(hidden=tuple(2 * units for units in setting.hidden))
    setting = setting._replace(**arguments.change)
    notes: dict[str, Any] = {}
    if method in TRAINED:
        scores = run_trained(method, folds, setting)
    else:
        predictions, notes = run_sampler(method, folds, setting, start + 0.9 * seconds)
        scores = [score(*pair) for pair in zip(folds, predictions, strict=True)]
    row: dict[str, Any] = {"set": name, "method": method, "setting": chosen, "splits": len(folds)}
    for key in scores[0]:
        values = np.array([s[key] for s in scores])
        row[key] = round(float(values.mean()), 5)
        row[f"{key}_se"] = round(float(values.std(ddof=1) / math.sqrt(len(values))), 5) if len(values) > 1 else None
    row |= {"published_log_likelihood": PUBLISHED[name], "seconds": round(time.perf_counter() - start, 2)}
    row |= {"cpu_seconds": round(time.process_time() - cpu, 2), **notes}
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    report = {
        "name": f"uci_posteriors_{name}_{method}",
        "command": f"python benchmarks/uci_posteriors.py {' '.join(sys.argv[1:])}",
        "date": datetime.date.today().isoformat(),
        "hardware": f"{hardware}, torch {torch.__version__}",
        "setting": setting._asdict(),
        "rows": [row],
        "raw": [{"split": i, **s} for i, s in enumerate(scores)],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(row), flush=True)


def show_table(folder: Path) -> None:
    """Print log likelihood, RMSE, coverage and seconds of every method, one line per table."""
    print(folder.name)
    rows = [json.loads(path.read_text("utf-8"))["rows"][0] for path in sorted(folder.glob("*.json"))]
    methods = sorted({row["method"] for row in rows})
    found = {(row["set"], row["method"]): row for row in rows}
    print("| table | published | " + " | ".join(f"{m}: log likelihood, RMSE, coverage, s" for m in methods) + " |")
    print("|---" * (len(methods) + 2) + "|")
    for name, published in PUBLISHED.items():
        cells = []
        for method in methods:
            row = found.get((name, method))
            if row is None:
                cells.append("")
                continue
            error = "" if row["log_likelihood_se"] is None else f" ± {row['log_likelihood_se']:.3f}"
            mark = "**" if row["log_likelihood"] > published else ""
            first = f"{mark}{row['log_likelihood']:.3f}{mark}{error}"
            cells.append(f"{first}, {row['rmse']:.4g}, {row['coverage']:.3f}, {row['seconds']:.0f}")
        print(f"| {name} | {published:.2f} | " + " | ".join(cells) + " |")


def warm_up(device: torch.device) -> None:
    """Start the device before any clock."""
    float(torch.ones(2, 3, 3, device=device).bmm(torch.ones(2, 3, 3, device=device)).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--sets", nargs="+", default=list(PUBLISHED), choices=list(PUBLISHED))
    parser.add_argument("--methods", nargs="+", default=["hmc", "mclmc"], choices=["hmc", "mclmc", *TRAINED])
    parser.add_argument("--setting", nargs="+", default=["wide"], choices=[*SETTINGS, "best"])
    parser.add_argument("--change", type=json.loads, default={}, help="fields of the setting to replace, as JSON")
    parser.add_argument("--seconds", type=float, default=10.0, help="per table, of a sampler")
    parser.add_argument("--splits", type=int, help="only the first so many")
    parser.add_argument("--inside", action="store_true", help="score held-out parts of the training folds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.command == "table":
        for folder in sorted(arguments.out.glob("inside_*")) if arguments.inside else [arguments.out]:
            show_table(folder)
        return 0
    logging.getLogger("credo").setLevel(logging.ERROR)
    warm_up(torch.device(arguments.device))
    for name in arguments.sets:
        for method in arguments.methods:
            for setting in arguments.setting:
                chosen = best_setting(name, method, arguments.out) if setting == "best" else setting
                folder = arguments.out / f"inside_{chosen}" if arguments.inside else arguments.out
                out = folder / f"{name}_{method}.json"
                if not out.exists():
                    run_table(name, method, chosen, arguments, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
