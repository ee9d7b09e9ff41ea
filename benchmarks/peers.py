"""Bayesian networks by credo and by other libraries, side by side in one run, as ratios to the deterministic network.

    make peers                        # the libraries, into the ignored folder peers/; see the Makefile
    python benchmarks/peers.py        # [--device cuda] [--only step-mlp memory] [--out results.json]

On a machine where nothing can be installed, take the folders ``peers/cp312`` or ``peers/cp311`` of its Python along.
With ``--out`` the races that were run replace those in the file, so that a long race can be run in parts.

* ``step-mlp``: a training step of 784-1200-1200-10 on 128 rows, with the KL over 60,000 data, the gradient and the
  update. ``step-cnn``: the same for two 3×3 convolutions of 32 and 64 filters with 2×2 max pooling and 128 units, on 64
  images of 28×28.
* ``predict-mlp``: the mean class probabilities of 1,000 rows by 100 draws, over the time of 100 plain forwards;
  ``predict-cnn``: of 256 images by 30 draws. laplace-torch, which has no training step here, is added.
* ``dropout``: MC dropout of the network's own dropout layers, 1,000 rows by 100 draws, over 100 plain forwards.
* ``captured``: the steps again, replayed as CUDA graphs (CUDA only); with ``--compile`` compiled before, where that is
  possible. ``fit``: seconds per epoch of ``fit`` (CUDA, unless it is asked for by name).
* ``memory``: the peak of each of these, with the network: torch's allocator on a GPU, the resident set on a CPU.
* ``checks``: facts about what is computed, as ratios to exact values: the KL inside the loss; the variance in training
  of the mean over positions of a convolution's and of a linear layer's output; whether the rows of a dropout draw share
  its masks, so that a draw is a function; whether batch norm is left as it was.

Rounds are interleaved; a ratio is the median of per-round ratios, with quartiles; in predictions the reference is timed
before and after every contestant. Where a library loops over draws, 10 of them are run and the time is scaled.
Everything is in float32, without TF32 unless ``--tf32`` is given. On a CPU ``cpu_ratio``, shown in the tables, compares
CPU times: they suffer less from other processes than ``ratio`` does.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.metadata
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from contestants import CONTESTANTS, LIBRARIES, N_DATA, NOT_RACED, REFERENCE, Contestant
from dropout_contestants import DROPOUT
from fit_epoch import seconds_per_epoch
from peer_checks import check_dropout, check_posterior
from racing import Pair, Step, cnn, hardware, mlp, peak_memory, race, ratios, train_step
from torch import Tensor

import credo

TASKS = {
    "step-mlp": "train step, MLP",
    "step-cnn": "train step, CNN",
    "predict-mlp": "predict, MLP",
    "predict-cnn": "predict, CNN",
    "dropout": "MC dropout, MLP",
}
RACES = (*TASKS, "memory", "checks", "captured", "fit")
DRAWS = {"predict-mlp": 100, "predict-cnn": 30, "dropout": 100}
LOOPED = 10
Row = dict[str, object]


def names_of(task: str) -> list[str]:
    if task == "dropout":
        return [REFERENCE, *DROPOUT]
    kind = task.split("-")[0]
    return [name for name, entry in CONTESTANTS.items() if getattr(entry, kind)]


def library_of(task: str, name: str) -> str:
    return DROPOUT[name].library if task == "dropout" and name in DROPOUT else CONTESTANTS[name].library


def inputs_of(task: str, device: torch.device) -> Tensor:
    rows = {"step-mlp": 128, "step-cnn": 64, "predict-cnn": 256}.get(task, 1000)
    return torch.randn(rows, *((1, 28, 28) if task.endswith("cnn") else (784,)), device=device)


@dataclass(frozen=True)
class Job:
    """What is timed: one training step, or a share of the draws of one prediction."""

    run: Step
    share: float = 1.0

    def __call__(self) -> object:
        return self.run()


def build(task: str, name: str, device: torch.device, captured: bool = False, compiled: bool = False) -> Job:
    torch.manual_seed(0)
    net = (cnn() if task.endswith("cnn") else mlp(0.5 if task == "dropout" else 0.0)).to(device)
    x = inputs_of(task, device)
    if task == "dropout" and name in DROPOUT:
        draws = DROPOUT[name].build(net)
        return prediction(task, lambda samples: draws(x, samples).mean(0), DROPOUT[name].loops)
    contestant = CONTESTANTS[name].build(net.eval() if task == "dropout" else net)
    if task in DRAWS:
        return prediction(task, lambda samples: contestant.predict(x, samples), contestant.loops)
    return Job(step_of(contestant, (x, torch.randint(0, 10, (len(x),), device=device)), captured, compiled))


def prediction(task: str, predict: Callable[[int], object], loops: bool) -> Job:
    run = LOOPED if loops else DRAWS[task]
    return Job(lambda: predict(run), run / DRAWS[task])


def step_of(contestant: Contestant, batch: tuple[Tensor, Tensor], captured: bool, compiled: bool) -> Step:
    own, loss = contestant.step, contestant.loss
    if own is not None:
        if captured:
            raise ValueError("its optimizer gives the parameters new memory at every step, which a replay does not see")
        return partial(own, *batch)
    assert loss is not None
    return train_step(lambda x, y: loss(x, y, N_DATA), list(contestant.parameters), batch, captured, compiled)


def find_libraries() -> tuple[dict[str, str], dict[str, str]]:
    """The versions of the libraries that can be imported here, and why others cannot."""
    versions, absent = {"credo": credo.__version__, "torch": torch.__version__}, {}
    for library, module in LIBRARIES.items():
        try:
            importlib.import_module(module)
            versions[library] = importlib.metadata.version(library)
        except Exception as error:
            absent[library] = first_line(error)
            print(f"{library} is left out: {absent[library]}", file=sys.stderr)
    return versions, absent


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def timed(task: str, names: list[str], device: torch.device, rounds: int) -> Iterator[Row]:
    """Rows of a race; on a CPU, predictions are long, and the median of rounds leaves out a slow first one."""
    gpu = device.type == "cuda"
    jobs: dict[str, Job] = {}
    for name in names:
        try:
            job = build(task, name, device)
            if gpu:
                job()
            jobs[name] = job
        except Exception as error:
            yield {"race": TASKS[task], "name": name, "reason": first_line(error)}
    if task in DRAWS:
        times = race(jobs, REFERENCE, max(3, rounds // 10), device, warmups=int(gpu), repeats=2, paired=True)
    else:
        times = race(jobs, REFERENCE, rounds, device, warmups=min(3, rounds))
    base = 1.0 / jobs[REFERENCE].share
    for name, pairs in times.items():
        factor = 1.0 / jobs[name].share
        times[name] = [Pair(pair.own.times(factor), pair.reference.times(base)) for pair in pairs]
    for row in ratios(times):
        yield {"race": TASKS[task], **row}


def replayed(task: str, names: list[str], device: torch.device, rounds: int, compiles: bool) -> Iterator[Row]:
    """Rows of a race of steps that are replayed as CUDA graphs, compiled if asked for; others have a reason."""
    torch._dynamo.config.recompile_limit = 100  # the losses share their code
    steps: dict[str, Job] = {}
    title = f"{TASKS[task]}, {'compiled and ' * compiles}captured"
    failures: dict[str, list[str]] = {name: [] for name in names}
    for name in names:
        for compiled in (True, False) if compiles else (False,):
            try:
                steps[name] = build(task, name, device, captured=True, compiled=compiled)
                break
            except Exception as error:
                failures[name].append(first_line(error))
        else:
            yield {"race": title, "name": name, "reason": failures[name][-1]}
    for row in ratios(race(steps, REFERENCE, rounds, device)):
        yield {"race": title, **row, "compiled": compiles and not failures[str(row["name"])]}


def remembered(task: str, names: list[str], device: torch.device) -> Iterator[Row]:
    """Rows of peak memory."""
    reference, title = 0.0, f"{TASKS[task]}, memory"
    for name in names:
        try:
            megabytes = peak_memory(partial(build, task, name, device), 1 if task in DRAWS else 3, device)
        except Exception as error:
            yield {"race": title, "name": name, "reason": first_line(error)}
            continue
        reference = reference or megabytes
        ratio = round(megabytes / reference, 3)
        yield {"race": title, "name": name, "megabytes": round(megabytes, 1), "ratio": ratio}


def checked(versions: dict[str, str]) -> Iterator[Row]:
    for name in names_of("step"):
        if name != REFERENCE and CONTESTANTS[name].library in versions:
            yield {"race": "posterior checks", "name": name, **check_posterior(name)}
    for name, entry in DROPOUT.items():
        if entry.library in versions:
            yield {"race": "dropout checks", "name": name, **check_dropout(name)}


def run(only: list[str], device: torch.device, rounds: int, compiles: bool, versions: dict[str, str]) -> Iterator[Row]:
    """The rows of all races; memory comes first, because forked processes need a parent that has not computed."""

    def present(task: str) -> list[str]:
        return [name for name in names_of(task) if library_of(task, name) in versions]

    if "memory" in only:
        for task in TASKS:
            yield from remembered(task, present(task), device)
    for task in (task for task in TASKS if task in only):
        yield from timed(task, present(task), device, rounds)
    if "checks" in only:
        yield from checked(versions)
    if "captured" in only and device.type == "cuda":
        for task in ("step-mlp", "step-cnn"):
            yield from replayed(task, present(task), device, rounds, compiles)
    if "fit" in only:
        yield from seconds_per_epoch(device, max(1, rounds // 10))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=20, help="of steps; predictions have a tenth, and at least 3")
    parser.add_argument("--threads", type=int, help="of a CPU; one is best beside other processes")
    parser.add_argument("--only", nargs="+", choices=RACES, metavar="RACE", help=", ".join(RACES))
    parser.add_argument("--tf32", action="store_true", help="allow TF32, for everybody")
    parser.add_argument(
        "--compile", action="store_true", help="compile the steps of the race captured, half a minute each"
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = arguments.tf32
    only = arguments.only or [name for name in RACES if name != "fit" or device.type == "cuda"]
    versions, absent = find_libraries()
    threads = f" --threads {arguments.threads}" if arguments.threads else ""
    result = {
        "name": "peers",
        "command": f"python benchmarks/peers.py --device {device.type}{threads}{' --tf32' * arguments.tf32}",
        "date": datetime.date.today().isoformat(),
        "hardware": hardware(device),
        "versions": versions,
        "absent": {**absent, **NOT_RACED},
        "rows": [],
    }
    rows: list[Row] = []
    for row in run(only, device, arguments.rounds, arguments.compile, versions):
        rows.append(row)
        print("  ".join(f"{value}" for value in row.values()), flush=True)
        if arguments.out:
            write(arguments.out, result, rows)
    return 0


def write(path: Path, result: dict[str, object], rows: list[Row]) -> None:
    """Write the rows, and those of races that the file has and this run has not."""
    done = {row["race"] for row in rows}
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    rows = [row for row in kept if row.get("race") not in {None, *done}] + rows
    path.write_text(json.dumps({**result, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
