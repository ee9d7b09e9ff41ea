"""Exported and distilled models beside Python: differences, milliseconds per row, nats lost.

    python benchmarks/export.py corpus --out benchmarks/results/export_cpu.json
    python benchmarks/export.py latency --out benchmarks/results/export_cpu.json
    CREDO_DATA=... python benchmarks/export.py distill --tables concrete power-plant --out ...
    CREDO_DATA=... python benchmarks/export.py mnist --members 3 --epochs 2 --passes 5 --lr 0.002 --out ...

``corpus``: every file of ``tests/tabular`` that is accepted, with gaps and a category that training did not have in its
first rows; the largest difference of features, and of predictions for some files, between ONNX Runtime and Python.
``latency``: CPU time per row of a regressor with 100 draws, medians of interleaved rounds. ``distill`` and ``mnist``:
KL(teacher ‖ student) and the change of log likelihood on test rows, with their standard errors, and CPU time of a
forward pass of 1,000 rows against that of the plain network. Tables are distilled with the defaults, which were chosen
on held-out training rows. Rows of earlier parts in the file of results are kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import credo

_LARGEST_FILE = 2**20
TESTS = Path(__file__).parent.parent / "tests"


def cpu_times(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median CPU seconds of each function, in interleaved rounds after a first one."""
    found: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name, function in functions.items():
            start = time.process_time()
            function()
            found[name].append(time.process_time() - start)
    return {name: statistics.median(values[1:]) for name, values in found.items()}


def damaged(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with a gap and an unseen word in the first two rows of every column of text."""
    frame = frame.copy()
    for name in frame.columns:
        if not pd.api.types.is_numeric_dtype(frame[name].dtype):
            column = frame[name].astype(object).copy()
            column.iloc[0], column.iloc[1] = None, "a word that training did not have"
            frame[name] = column
        elif pd.api.types.is_float_dtype(frame[name].dtype):
            frame.loc[frame.index[0], name] = np.nan
    return frame


def difference(found: Any, wanted: Any) -> float:
    """The largest difference, relative where numbers exceed 1."""
    found, wanted = np.asarray(found, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    return float((np.abs(found - wanted) / np.maximum(1.0, np.abs(wanted))).max(initial=0.0))


def corpus(every: int, limit: float) -> list[dict[str, object]]:
    """Differences over the files of the tests."""
    import onnxruntime
    from onnx import TensorProto, helper

    from credo.export.builder import Builder
    from credo.export.columns import add_preprocessing
    from credo.tabular.files import read_table

    sys.path.insert(0, str(TESTS))
    from tabular.hostile import CORPUS, good_columns, to_csv
    from tabular.test_messy_files import LABELS, NUMBERS

    accepted = [case for case in CORPUS if case.outcome != "refused"]
    files: list[tuple[str, bytes, dict[str, Any], str]] = [(c.name, c.content(), {}, c.task) for c in accepted]
    for column in (*NUMBERS, *LABELS):
        cells = [column.cells[i % len(column.cells)] for i in range(len(good_columns()["x"]))]
        table = {**good_columns(), "v": cells}
        text = to_csv(table, column.delimiter).decode().encode(column.encoding)
        files.append((column.name, text, dict(column.options), "regression"))
    start, features, predictions, compared, exported, failed = time.process_time(), 0.0, 0.0, 0, 0, []
    with tempfile.TemporaryDirectory() as folder:
        for i, (name, content, options, task) in enumerate(files):
            if len(content) > _LARGEST_FILE or time.process_time() - start > 2 * limit:
                failed.append(f"{name}: not run, too large or out of time")
                continue
            path = Path(folder) / f"{i}.csv"
            path.write_bytes(content)
            try:
                frame = read_table(path, **options).dropna(subset=["y"])
                estimator = credo.Regressor if task == "regression" else credo.Classifier
                model = estimator("map", epochs=1, random_state=0, samples=5)
                if task == "regression":
                    model.set_params(likelihood="gaussian")
                model.fit(frame.drop(columns="y"), frame["y"])
            except Exception as error:  # a file that is refused
                failed.append(f"{name}: {str(error)[:80]}")
                continue
            new = damaged(frame.drop(columns="y"))
            b = Builder(np.float64, "columns/")
            nodes = add_preprocessing(b, model.columns_)
            b.nodes.append(helper.make_node("Identity", [nodes.features], ["features"]))
            output = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", None])
            graph = helper.make_graph(b.nodes, "columns", nodes.inputs, [output], list(b.constants.values()))
            opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
            session = onnxruntime.InferenceSession(
                helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
            )
            inputs = credo.export.column_inputs(model, new)
            gap = difference(session.run(None, inputs)[0], model.columns_.encode(new))
            features, compared = max(features, gap), compared + 1
            if i % every or time.process_time() - start > limit:
                continue
            model.export(Path(folder) / "model.onnx")
            session = onnxruntime.InferenceSession(Path(folder) / "model.onnx")
            names = [value.name for value in session.get_outputs()]
            found = dict(zip(names, session.run(None, inputs), strict=True))
            p = model.predict_dist(new)
            wanted = (
                {"probabilities": p.mean, "entropy": p.entropy}
                if task == "classification"
                else {"mean": p.mean, "std": p.std, "quantiles": p.quantile((0.05, 0.5, 0.95)).movedim(0, -1)}
            )
            gap = max(difference(found[key], value.numpy()) for key, value in wanted.items())
            predictions, exported = max(predictions, gap), exported + 1
            print(i, name, gap, flush=True)
    row = {
        "part": "corpus",
        "files": len(files),
        "compared": compared,
        "largest_difference_of_features": features,
        "exported": exported,
        "largest_difference_of_predictions": predictions,
        "not_trained": failed,
    }
    print(row)
    return [row]


def latency(rounds: int) -> list[dict[str, object]]:
    """CPU milliseconds per row."""
    import onnxruntime

    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(1000, 8)), columns=[f"c{j}" for j in range(8)])
    frame["word"] = rng.choice(["red", "green", "blue"], 1000)
    y = frame["c0"] * frame["c1"] + 0.1 * rng.normal(size=1000)
    model = credo.Regressor("bbb", epochs=3, random_state=0, likelihood="gaussian", noise="heteroscedastic")
    model.fit(frame, y)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sessions = {}
        for precision in ("float64", "float32"):
            model.export(Path(folder) / f"{precision}.onnx", precision=precision, quantiles=(), level=0.95)
            sessions[precision] = onnxruntime.InferenceSession(Path(folder) / f"{precision}.onnx", options)
        for batch in (1, 1000):
            part = frame.iloc[:batch]
            inputs = credo.export.column_inputs(model, part)

            def python(part: pd.DataFrame = part) -> None:
                p = model.predict_dist(part)
                _ = p.mean, p.std, p.epistemic, p.aleatoric, p.interval(0.95)

            functions: dict[str, Callable[[], object]] = {"python": python}
            for name, session in sessions.items():
                functions[f"onnx_{name}"] = lambda session=session, inputs=inputs: session.run(None, inputs)
            found = cpu_times(functions, rounds)
            row: dict[str, object] = {"part": "latency", "batch": batch, "draws": model.samples}
            row |= {f"ms_per_row_{name}": round(1000 * seconds / batch, 5) for name, seconds in found.items()}
            print(row, flush=True)
            rows.append(row)
    return rows


def distill(tables: list[str], method: str, epochs: int | None, rounds: int) -> list[dict[str, object]]:
    """Distilled tables of UCI, on their first split."""
    rows = []
    for name in tables:
        table = credo.datasets.load(f"uci/{name}")
        X, y = np.asarray(table.x, dtype=np.float64), np.asarray(table.y, dtype=np.float64).ravel()
        test = np.asarray(table.test_rows[0])
        train = np.setdiff1d(np.arange(len(X)), test)
        teacher = credo.Regressor(method, epochs=epochs, random_state=0, likelihood="gaussian").fit(X[train], y[train])
        start = time.process_time()
        student = credo.distill(teacher, X[train])
        seconds = time.process_time() - start
        features = torch.from_numpy(teacher.columns_.encode(X[:1000])).double()
        plain = teacher.model_.members[0].net  # of the same layers, with mean and log variance as outputs
        p, q = (_column(model.predict_dist(X[test])) for model in (teacher, student))
        row = {"part": "distill", "table": name, "teacher": f"{method} of {len(teacher.model_.members)} networks"}
        row |= lost(p, q, torch.from_numpy(y[test])[:, None], student.model_)
        row |= forward_ratio(plain, student.model_.net, features, rounds)
        row["distillation_cpu_seconds"] = round(seconds, 1)
        print(row, flush=True)
        rows.append(row)
    return rows


def lost(teacher: Any, student: Any, y: torch.Tensor, model: Any) -> dict[str, object]:
    """What distillation lost on test rows, in nats per row, with standard errors."""
    kl = model.likelihood.kl(teacher, student)
    both = teacher.log_prob(y), student.log_prob(y)
    change = both[0] - both[1]
    return {
        "kl_held_out_training_rows": round(model.distillation["kl"], 4),
        "kl_test_rows": round(float(kl.mean()), 4),
        "kl_standard_error": round(float(kl.std()) / len(kl) ** 0.5, 4),
        "log_likelihood_teacher": round(float(both[0].mean()), 4),
        "log_likelihood_student": round(float(both[1].mean()), 4),
        "nats_lost": round(float(change.mean()), 4),
        "nats_lost_standard_error": round(float(change.std()) / len(change) ** 0.5, 4),
    }


def forward_ratio(plain: nn.Module, student: nn.Module, x: torch.Tensor, rounds: int) -> dict[str, object]:
    """CPU time of one forward pass of the student over that of the plain network."""
    with torch.no_grad():
        times = cpu_times({"plain": lambda: plain(x).cpu(), "student": lambda: student(x).cpu()}, rounds)
    return {"forward_ratio": round(times["student"] / times["plain"], 3)}


def _column(p: Any) -> Any:
    """A prediction ``[B]`` as one of ``[B, 1]``."""
    import dataclasses

    return dataclasses.replace(p, components=p.components.map(lambda t: t.unsqueeze(-1)))


def mnist(epochs: int, members: int, passes: int | None, lr: float, rounds: int) -> list[dict[str, object]]:
    """A LeNet of MNIST, distilled in so many ``passes`` over the training images."""
    images = credo.datasets.load("mnist")
    x, y, x_test, y_test = images.x_train, images.y_train, images.x_test, images.y_test
    teacher = credo.DeepEnsemble(lambda: credo.architectures.LeNet(), members=members, likelihood=credo.Categorical())
    start = time.process_time()
    teacher.fit((x, y), epochs=epochs, batch_size=256, seed=0, progress=False)
    training = time.process_time() - start
    start = time.process_time()
    student = credo.distill(teacher, x, epochs=passes, lr=lr)
    seconds = time.process_time() - start
    p, q = teacher.predict(x_test).cpu(), student.predict(x_test).cpu()
    row: dict[str, object] = {
        "part": "distill",
        "table": "mnist lenet",
        "teacher": f"ensemble of {members} networks, {epochs} epochs",
        "student": f"{student.distillation['epochs']} epochs, learning rate {lr:g}",
        "accuracy_teacher": round(float((p.mode == y_test).double().mean()), 4),
        "accuracy_student": round(float((q.mode == y_test).double().mean()), 4),
    }
    row |= lost(p, q, y_test, student)
    net = student.net
    device = next(net.parameters()).device
    row |= forward_ratio(credo.architectures.LeNet().to(device), net, x_test[:1000].to(device), rounds)
    row |= {"teacher_cpu_seconds": round(training, 1), "distillation_cpu_seconds": round(seconds, 1)}
    print(row)
    return [row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("corpus", "latency", "distill", "mnist"))
    parser.add_argument("--tables", nargs="+", default=["concrete", "power-plant"])
    parser.add_argument("--method", default="ensemble")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--passes", type=int, help="epochs of the student of mnist; default: that of credo.distill")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of the student of mnist")
    parser.add_argument("--members", type=int, default=5, help="of the ensemble of mnist")
    parser.add_argument("--every", type=int, default=1, help="export every so many files of the corpus")
    parser.add_argument(
        "--limit", type=float, default=150.0, help="CPU seconds for exports of the corpus; twice as many for all"
    )
    parser.add_argument("--rounds", type=int, default=99)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if arguments.part == "corpus":
        rows = corpus(arguments.every, arguments.limit)
    elif arguments.part == "latency":
        rows = latency(arguments.rounds)
    elif arguments.part == "distill":
        rows = distill(arguments.tables, arguments.method, arguments.epochs, arguments.rounds)
    else:
        rows = mnist(arguments.epochs or 10, arguments.members, arguments.passes, arguments.lr, arguments.rounds)
    if arguments.out:
        names = {(row["part"], row.get("table")) for row in rows}
        old = json.loads(arguments.out.read_text())["rows"] if arguments.out.exists() else []
        result = {
            "name": arguments.out.stem,
            "command": "python benchmarks/export.py corpus | latency | distill | mnist",
            "date": datetime.date.today().isoformat(),
            "hardware": f"{platform.machine()}, {torch.get_num_threads()} thread, torch {torch.__version__}",
            "rows": [*(row for row in old if (row["part"], row.get("table")) not in names), *rows],
        }
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
