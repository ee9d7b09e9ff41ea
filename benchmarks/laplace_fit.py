"""Fitting a Laplace approximation of 784-1200-1200-10 beside laplace-torch: CPU seconds and memory, in one run.

    pip install --no-deps --target peers laplace-torch curvlinops-for-pytorch backpack-for-pytorch asdfghjkl==0.1a4 \\
        torchmetrics lightning-utilities tqdm opt_einsum einops einconv unfoldNd linear_operator jaxtyping wadler-lindig
    PYTHONPATH=peers python benchmarks/laplace_fit.py [--out benchmarks/results/laplace_cpu.json]

The network is not trained; 2,000 rows of standard normal numbers with random labels are passed in batches of 128. Every
fit runs in a process of its own, on one thread. Rounds are interleaved; seconds are medians of the process's CPU time,
without imports. Memory is the peak of the resident memory during a fit, less what was resident before it, in a process
of its own in which malloc returns buffers of 64 KiB and more to the system as soon as they are freed. By default it
keeps them: memory that an earlier fit left then counts for none or for a later one, and results differ by tens of MB.

What a fit cannot do without. Diagonal: the 2.4 million numbers of the result, 9.1 MB; per row one forward pass, nine
backward passes to the output of the first layer (the Hessian of a softmax over ten classes has rank nine) and one
product per layer, 4.8 + 26.1 + 4.8 = 35.7 million operations. Kronecker factors: the eigenvectors, 785² + 2·1201² +
2·1200² + 10² numbers, 24.3 MB, which are not symmetric and cannot be packed, and the workspace of LAPACK's ssyevd for
the largest of them, 2n² + 6n + 1 numbers, 11.0 MB: 35.4 MB together. MB are 2²⁰ bytes.

laplace-torch is measured with each of its backends that can do the job. Its default for the diagonal forms the Jacobian
of every row, 96 MB, and is measured on ``--few`` rows in batches of 4; its seconds are scaled to all rows.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from racing import hardware, mlp
from torch import Tensor

import credo

ROWS, BATCH = 2000, 128
STRUCTURES = ("diag", "kron")
BACKENDS = ("CurvlinopsGGN", "BackPackGGN", "AsdlGGN")
FORMS_JACOBIANS = ("CurvlinopsGGN", "diag")


def fit_credo(structure: str, x: Tensor, y: Tensor, batch: int) -> Callable[[], object]:
    """Fit without training."""
    model = credo.Laplace(mlp(), credo.Categorical(), structure=structure)
    return lambda: model.fit((x, y), epochs=0, batch_size=batch, progress=False)


def fit_peer(backend: str, structure: str, x: Tensor, y: Tensor, batch: int) -> Callable[[], object]:
    """The same by laplace-torch."""
    import laplace
    import laplace.curvature
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(x, y), batch_size=batch)
    model = laplace.Laplace(
        mlp(),
        "classification",
        subset_of_weights="all",
        hessian_structure=structure,
        backend=getattr(laplace.curvature, backend),
    )
    return lambda: model.fit(loader)


def resident(key: str) -> int:
    """Bytes of resident memory: ``VmRSS`` now, ``VmHWM`` at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def measure(library: str, structure: str, rows: int) -> dict[str, float]:
    """CPU seconds and peak memory of one fit, in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch = 4 if (library, structure) == FORMS_JACOBIANS else BATCH
    x, y = torch.randn(rows, 784), torch.randint(10, (rows,))
    few = slice(0, 8)
    for part in (few, slice(None)):  # the first to import and allocate what a process does once
        fit = fit_credo if library == "credo" else lambda *a: fit_peer(library, *a)
        run = fit(structure, x[part], y[part], batch)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        before, begin = resident("VmRSS"), time.process_time()
        run()
        seconds = time.process_time() - begin
    return {"seconds": seconds, "megabytes": (resident("VmHWM") - before) / 2**20}


def in_processes(library: str, structure: str, rows: int) -> dict[str, float]:
    """CPU seconds in one process, peak memory in another one that keeps no memory that is freed."""
    command = [sys.executable, "-W", "ignore", __file__, "--measure", library, structure, str(rows)]
    plain = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    measured = {}
    for key, environment in (("seconds", plain), ("megabytes", plain | {"MALLOC_MMAP_THRESHOLD_": "65536"})):
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        measured[key] = json.loads(result.stdout.splitlines()[-1])[key]
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--few", type=int, default=16, help="rows where every row's Jacobian is formed")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        warnings.simplefilter("ignore")
        library, structure, rows = arguments.measure
        print(json.dumps(measure(library, structure, int(rows))))
        return
    torch.set_num_threads(1)
    libraries = ["credo", *(BACKENDS if importlib.util.find_spec("laplace") else ())]
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for turn in range(arguments.rounds):
        for structure in STRUCTURES:
            for library in libraries:
                slow = (library, structure) == FORMS_JACOBIANS
                if slow and turn:
                    continue
                rows = arguments.few if slow else ROWS
                measured = in_processes(library, structure, rows)
                measured["seconds"] *= ROWS / rows
                found.setdefault((structure, library), []).append(measured)
    table = [
        {
            "structure": structure,
            "library": library if library == "credo" else f"laplace-torch, {library}",
            "rows": arguments.few if (library, structure) == FORMS_JACOBIANS else ROWS,
            "seconds": round(statistics.median(m["seconds"] for m in measured), 3),
            "seconds_of_rounds": [round(m["seconds"], 3) for m in measured],
            "megabytes": round(statistics.median(m["megabytes"] for m in measured), 1),
        }
        for (structure, library), measured in found.items()
    ]
    for row in table:
        print(row)
    if arguments.out:
        peer = importlib.metadata.version("laplace-torch") if len(libraries) > 1 else None
        result = {
            "what": "CPU seconds and peak memory of a fit of 784-1200-1200-10 on 2,000 rows",
            "machine": hardware(torch.device("cpu")),
            "laplace-torch": peer,
            "rounds": arguments.rounds,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "rows": table,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
