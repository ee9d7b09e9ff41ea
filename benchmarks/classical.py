"""The classical models beside scikit-learn's (and hmmlearn's), in one process: seconds to fit, and what was reached.

    python benchmarks/classical.py [--out benchmarks/results/classical_cpu.json]
    python benchmarks/classical.py --device cuda --alone --out benchmarks/results/classical_gpu.json
    python benchmarks/classical.py --quick

Rounds alternate between the two, and so does who goes first; a ratio is a median of per-round ratios. With ``--only``
the rows of other tasks in ``--out`` are kept. Both compute with
as many threads as they choose by themselves. Objectives are judged by one function for both: a log likelihood, a log
evidence or minus an inertia. Rows that start from the same numbers and take the same number of iterations do the same
work; rows at defaults are what a user waits for, and start from another seed in every round, since a single start may
end in a poor optimum: their objective is the best of all rounds. With ``--device cuda`` ours fits there, from an array
in main memory; ``--alone`` leaves the others out, which have no use for that device.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import sklearn.cluster
import sklearn.decomposition
import sklearn.gaussian_process
import sklearn.linear_model
import sklearn.mixture
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

Array = NDArray[np.float64]
LARGEST_DIFFERENCE = 1e-3
SHORT = 0.1
"""Seconds of both fits together below which there are five times as many rounds: a median of few would be chance."""


@dataclass(frozen=True)
class Contest:
    """One model twice.

    Attributes:
        task: the model and how it is run.
        ours: fits ours, from the seed of the round.
        theirs: fits theirs.
        objective: what either reached; more is better.
        limit: the largest ratio of the times that is aimed for; ``None`` where there is no aim.
    """

    task: str
    ours: Callable[[int], Any]
    theirs: Callable[[int], Any]
    objective: Callable[[Any], float]
    limit: float | None = 1.0


@dataclass(frozen=True)
class Size:
    """How large the tables are."""

    rows: int = 200_000
    columns: int = 20
    components: int = 10
    iterations: int = 10
    process_rows: int = 2_000
    sequence_rows: int = 20_000


QUICK = Size(rows=3_000, columns=5, components=3, iterations=3, process_rows=100, sequence_rows=500)


@dataclass(frozen=True)
class Data:
    """Overlapping Gaussians with covariances of their own, and targets that are linear in them."""

    X: Array
    y: Array
    labels: NDArray[np.int64]
    start: Array

    @staticmethod
    def draw(size: Size) -> Data:
        random = np.random.default_rng(0)
        labels = random.integers(size.components, size=size.rows)
        mixing = np.eye(size.columns) + 0.1 * random.normal(size=(size.components, size.columns, size.columns))
        X = random.normal(size=(size.rows, size.columns))
        for k in range(size.components):
            X[labels == k] = X[labels == k] @ mixing[k] + 0.9 * random.normal(size=size.columns)
        y = X @ random.normal(size=size.columns) + random.normal(size=size.rows)
        start = np.stack([X[labels == k][:50].mean(0) for k in range(size.components)])
        return Data(X, y, labels, start)


def contests(size: Size, device: str) -> Iterator[Contest]:
    """Those whose models are there."""
    data = Data.draw(size)
    for family in (linear, decomposition, clusters, mixtures, variational, sequences, gaussian_process):
        try:
            yield from family(size, data, device)
        except ImportError as error:
            print(f"skipped {family.__name__}: {error}")


def linear(size: Size, data: Data, device: str) -> Iterator[Contest]:
    ours = importlib.import_module("credo.linear")
    X, y = data.X, data.y
    yield Contest(
        "Bayesian linear regression",
        lambda _: ours.BayesianLinearRegression(device=device).fit(X, y),
        lambda _: sklearn.linear_model.BayesianRidge().fit(X, y),
        lambda model: log_evidence(X, y, *precisions(model)),
    )
    classes = (y > np.median(y)).astype(int)
    yield Contest(
        "logistic regression, with its posterior",
        lambda _: ours.BayesianLogisticRegression(device=device).fit(X, classes),
        lambda _: sklearn.linear_model.LogisticRegression(tol=1e-6).fit(X, classes),
        lambda model: penalized_log_likelihood(X, classes, model),
        limit=None,
    )


def decomposition(size: Size, data: Data, device: str) -> Iterator[Contest]:
    ours = importlib.import_module("credo.decomposition")
    X, n = data.X, size.columns // 2

    def theirs(_: int) -> Any:
        return sklearn.decomposition.PCA(n).fit(X)

    yield Contest(
        f"PCA, {n} components",
        lambda _: ours.PCA(n, device=device).fit(X),
        theirs,
        lambda model: float(model.explained_variance_.sum()),
    )
    yield Contest(
        f"probabilistic PCA, {n} components",
        lambda _: ours.ProbabilisticPCA(n, device=device).fit(X),
        theirs,
        lambda model: float(model.score(X)),
    )


def clusters(size: Size, data: Data, device: str) -> Iterator[Contest]:
    ours = importlib.import_module("credo.mixture")
    X, start = data.X, data.X[: size.components]
    k, steps = size.components, {"max_iter": 2 * size.iterations, "tol": 0.0}
    yield Contest(
        f"k-means, same start, {steps['max_iter']} iterations",
        lambda _: ours.KMeans(k, init=start, device=device, **steps).fit(X),
        lambda _: sklearn.cluster.KMeans(k, init=start, n_init=1, **steps).fit(X),
        lambda model: -float(model.inertia_),
        limit=1.3,
    )
    yield Contest(
        "k-means++, one start",
        lambda seed: ours.KMeans(k, random_state=seed, device=device).fit(X),
        lambda seed: sklearn.cluster.KMeans(k, n_init=1, random_state=seed).fit(X),
        lambda model: -float(model.inertia_),
        limit=1.3,
    )


def mixtures(size: Size, data: Data, device: str) -> Iterator[Contest]:
    ours = importlib.import_module("credo.mixture")
    k, identity = size.components, np.eye(size.columns)
    units = {"full": np.stack([identity] * k), "diag": np.ones((k, size.columns))}
    for kind, precisions_init in units.items():
        same = {
            "covariance_type": kind,
            "weights_init": np.full(k, 1.0 / k),
            "means_init": data.start,
            "precisions_init": precisions_init,
            "max_iter": size.iterations,
            "tol": 0.0,
        }
        yield Contest(
            f"Gaussian mixture, {kind}, same start, {size.iterations} iterations",
            lambda _, same=same: ours.GaussianMixture(k, device=device, **same).fit(data.X),
            lambda _, same=same: sklearn.mixture.GaussianMixture(k, **same, init_params="random_from_data").fit(data.X),
            lambda model: log_density(model, data.X),
        )
        yield Contest(
            f"Gaussian mixture, {kind}, defaults",
            lambda seed, kind=kind: ours.GaussianMixture(k, covariance_type=kind, random_state=seed, device=device).fit(
                data.X
            ),
            lambda seed, kind=kind: sklearn.mixture.GaussianMixture(k, covariance_type=kind, random_state=seed).fit(
                data.X
            ),
            lambda model: log_density(model, data.X),
        )


def variational(size: Size, data: Data, device: str) -> Iterator[Contest]:
    ours = importlib.import_module("credo.mixture")
    same = {
        "weight_concentration_prior_type": "dirichlet_distribution",
        "max_iter": size.iterations,
        "tol": 0.0,
    }
    k = size.components
    yield Contest(
        f"variational Gaussian mixture, {size.iterations} iterations",
        lambda seed: ours.VariationalGaussianMixture(k, random_state=seed, device=device, **same).fit(data.X),
        lambda seed: sklearn.mixture.BayesianGaussianMixture(n_components=k, random_state=seed, **same).fit(data.X),
        lambda model: log_density(model, data.X),
    )


def sequences(size: Size, data: Data, device: str) -> Iterator[Contest]:
    ours = importlib.import_module("credo.sequence")
    random = np.random.default_rng(1)
    states = np.cumsum(random.random(size.sequence_rows) < 0.05) % 4
    X = 2.0 * random.normal(size=(4, 3))[states] + random.normal(size=(size.sequence_rows, 3))
    iterations = size.iterations

    def theirs(seed: int) -> Any:
        hmm = importlib.import_module("hmmlearn.hmm")
        return hmm.GaussianHMM(4, n_iter=iterations, tol=-np.inf, random_state=seed).fit(X)

    yield Contest(
        f"hidden Markov model, {size.sequence_rows:,} × 3, 4 states, {iterations} iterations",
        lambda seed: ours.GaussianHMM(4, max_iter=iterations, tol=0.0, random_state=seed, device=device).fit(X),
        theirs,
        lambda model: float(model.score(X)),
        limit=None,
    )


def gaussian_process(size: Size, data: Data, device: str) -> Iterator[Contest]:
    ours = importlib.import_module("credo.gaussian_process")
    kernels = importlib.import_module("credo.gaussian_process.kernels")
    random = np.random.default_rng(2)
    X = random.uniform(-3.0, 3.0, size=(size.process_rows, 2))
    y = np.sin(2.0 * X[:, 0]) * np.cos(X[:, 1]) + 0.2 * random.normal(size=size.process_rows)

    def fit(_: int) -> Any:
        kernel = kernels.Constant(1.0) * kernels.RBF(1.0)
        noise = kernels.White(0.5)
        return ours.GaussianProcessRegressor(kernel, noise=noise, normalize_y=False, device=device).fit(X, y)

    theirs = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.25)
    yield Contest(
        f"Gaussian process, {size.process_rows:,} × 2",
        fit,
        lambda _: sklearn.gaussian_process.GaussianProcessRegressor(theirs).fit(X, y),
        lambda model: float(getattr(model, "log_evidence_", None) or model.log_marginal_likelihood_value_),
        limit=None,
    )


def precisions(model: Any) -> tuple[float, float]:
    """α of the weights and β of the noise, which scikit-learn calls λ and α."""
    if hasattr(model, "noise_precision_"):
        return float(model.weight_precision_), float(model.noise_precision_)
    return float(model.lambda_), float(model.alpha_)


def log_evidence(X: Array, y: Array, alpha: float, beta: float) -> float:
    """log p(y | α, β) of centered data (Bishop 2006, equation 3.86)."""
    gram = np.cov(X.T, bias=True) * len(X)
    A = alpha * np.eye(X.shape[1]) + beta * gram
    centered = y - y.mean()
    projection = (X - X.mean(0)).T @ centered
    fit = beta * centered @ centered - beta**2 * projection @ np.linalg.solve(A, projection)
    sizes = X.shape[1] * np.log(alpha) + len(X) * np.log(beta / (2.0 * np.pi)) - np.linalg.slogdet(A)[1]
    return float(0.5 * (sizes - fit))


def penalized_log_likelihood(X: Array, classes: NDArray[np.int64], model: Any) -> float:
    """log p(y | w) − ‖w‖²/2 at the mode."""
    logits = X @ model.coef_[0] + model.intercept_[0]
    signs = 2.0 * classes - 1.0
    return float(-np.logaddexp(0.0, -signs * logits).sum() - 0.5 * model.coef_[0] @ model.coef_[0])


def log_density(model: Any, X: Array) -> float:
    """The mean log density of the mixture with the weights, means and covariances of ``model``, by scikit-learn."""
    judge = sklearn.mixture.GaussianMixture(len(model.weights_), covariance_type=model.covariance_type)
    for name in ("weights_", "means_", "covariances_", "precisions_cholesky_"):
        setattr(judge, name, getattr(model, name))
    return float(judge.score(X))


def race(contest: Contest, rounds: int, device: torch.device, alone: bool) -> dict[str, Any]:
    """Fit both in turns, after one round that does not count."""
    names = ["ours"] if alone else ["ours", "theirs"]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    models: dict[str, list[Any]] = {name: [] for name in names}
    first = sum(_time(getattr(contest, name), 0, device)[0] for name in names)  # also warms up
    for turn in range(rounds if first > SHORT else 5 * rounds):
        for name in names if turn % 2 else reversed(names):
            taken, model = _time(getattr(contest, name), turn, device)
            seconds[name].append(taken)
            models[name].append(model)
    row: dict[str, Any] = {"task": contest.task}
    for name, prefix in zip(names, ("", "their_"), strict=False):
        row[f"{prefix}seconds"] = round(statistics.median(seconds[name]), 4)
        row[f"{prefix}objective"] = max(map(contest.objective, models[name]))
        row[f"{prefix}iterations"] = list(map(_iterations, models[name]))
    if not alone:
        ratios = [a / b for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]
        row["ratio"] = round(statistics.median(ratios), 3)
        row["ratio_of_fastest"] = round(min(seconds["ours"]) / min(seconds["theirs"]), 3)
        row["limit"] = contest.limit
        row["difference"] = abs(row["objective"] - row["their_objective"]) / abs(row["their_objective"])
    return row


def _time(fit: Callable[[int], Any], seed: int, device: torch.device) -> tuple[float, Any]:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a fixed number of iterations is the point
        model = fit(seed)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin, model


def _iterations(model: Any) -> int | None:
    found = getattr(model, "n_iter_", None)
    return None if found is None else int(np.max(found))


def hardware(device: torch.device) -> str:
    libraries = f"torch {torch.__version__}, scikit-learn {sklearn.__version__}"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {libraries}"
    return f"{platform.machine()}, {torch.get_num_threads()} threads, {libraries}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="where ours fits")
    parser.add_argument("--alone", action="store_true", help="fit ours only")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="tasks whose names hold these words")
    parser.add_argument("--quick", action="store_true", help="small tables and one round, to see that everything runs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    rows = []
    for contest in contests(QUICK if arguments.quick else Size(), arguments.device):
        if arguments.only not in contest.task:
            continue
        try:
            rows.append(race(contest, 1 if arguments.quick else arguments.rounds, device, arguments.alone))
        except ImportError as error:
            print(f"skipped {contest.task}: {error}")
        else:
            print(line(rows[-1]), flush=True)
    if arguments.out:
        if arguments.only and arguments.out.exists():  # the other rows stay as they are
            fresh = {row["task"]: row for row in rows}
            rows = [fresh.get(row["task"], row) for row in json.loads(arguments.out.read_text())["rows"]]
        result = {
            "name": "classical",
            "command": f"python benchmarks/classical.py{' --device cuda --alone' if arguments.alone else ''}",
            "date": datetime.date.today().isoformat(),
            "hardware": hardware(device),
            "rows": rows,
        }
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    apart = [row["task"] for row in rows if row.get("difference", 0.0) > LARGEST_DIFFERENCE]
    if apart:
        print(f"objectives differ by more than {LARGEST_DIFFERENCE:g}: {'; '.join(apart)}")
    return int(bool(apart))


def line(row: dict[str, Any]) -> str:
    start = f"{row['task']:<62} {row['seconds']:>8.3f} s"
    if "ratio" not in row:
        return f"{start}, objective {row['objective']:.8g}"
    aim = "" if row["limit"] is None else f" (aim {row['limit']:.1f}×)"
    return (
        f"{start} {row['their_seconds']:>8.3f} s {row['ratio']:>6.2f}×{aim:<11} "
        f"objective {row['objective']:.8g} and {row['their_objective']:.8g}, apart {row['difference']:.1e}"
    )


if __name__ == "__main__":
    sys.exit(main())
