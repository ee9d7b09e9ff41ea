"""Classical models on Dask: 1 against 2 workers, against one process, and the bytes that travel.

Rows are generated in partitions, more of them than the memory limit of a worker. Run as

    python benchmarks/dask_scale.py --rows 20000000 --out benchmarks/results/dask_scale.json

Seconds are wall time and the CPU time of all workers; on a machine that others use only the latter can be compared. The
result is compared with one process that reads the same partitions as chunks (rounding), and with a fit of the first
tenth of the rows (Monte Carlo error).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path

import dask
import dask.array as da
import distributed
import numpy as np

from credo.decomposition import PCA
from credo.linear import BayesianLinearRegression

COLUMNS = 20
WEIGHTS = np.linspace(-1.0, 1.0, COLUMNS)


def part(i: int, rows: int) -> np.ndarray:
    """Partition ``i``: inputs and, last, the target."""
    rng = np.random.Generator(np.random.SFC64(i))
    table = rng.standard_normal((rows, COLUMNS + 1))
    table[:, -1] += table[:, :COLUMNS] @ WEIGHTS
    return table


def arrays(rows: int, chunk: int):
    parts = [
        da.from_delayed(dask.delayed(part, pure=True)(i, chunk), (chunk, COLUMNS + 1), np.float64)
        for i in range(rows // chunk)
    ]
    table = da.concatenate(parts)
    return table[:, :COLUMNS], table[:, COLUMNS]


def cpu_seconds() -> float:
    return sum(os.times()[:2])


def fit(rows: int, chunk: int, workers: int, memory: str) -> dict:
    with (
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, memory_limit=memory, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        before, begin = sum(client.run(cpu_seconds).values()), time.perf_counter()
        model = BayesianLinearRegression().fit(*arrays(rows, chunk))
        middle, between = sum(client.run(cpu_seconds).values()), time.perf_counter()
        pca = PCA(5).fit(arrays(rows, chunk)[0])
        after, end = sum(client.run(cpu_seconds).values()), time.perf_counter()
    return {
        "workers": workers,
        "regression": {"wall_s": between - begin, "cpu_s": middle - before},
        "pca": {"wall_s": end - between, "cpu_s": after - middle},
        "coef": model.coef_.tolist(),
        "coef_std": np.sqrt(np.diag(model.sigma_)).tolist(),
        "noise_precision": model.noise_precision_,
        "variances": pca.explained_variance_.tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--chunk", type=int, default=250_000)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    runs = [fit(given.rows, given.chunk, workers, given.memory) for workers in (1, 2)]

    def chunks(rows: int):
        def read():
            for i in range(rows // given.chunk):
                table = part(i, given.chunk)
                yield table[:, :COLUMNS], table[:, COLUMNS]

        return read

    begin = time.process_time()
    alone = BayesianLinearRegression().fit(chunks(given.rows))
    alone_cpu = time.process_time() - begin
    sample = BayesianLinearRegression().fit(chunks(given.rows // 10))
    coef = np.array(runs[1]["coef"])
    z = (coef - sample.coef_) / np.sqrt(np.diag(sample.sigma_))
    result = {
        "rows": given.rows,
        "columns": COLUMNS,
        "bytes": given.rows * (COLUMNS + 1) * 8,
        "worker_memory": given.memory,
        "partitions": given.rows // given.chunk,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
        "runs": runs,
        "one_process": {"cpu_s": alone_cpu},
        "largest_difference_from_one_process": float(np.abs(coef / alone.coef_ - 1.0).max()),
        "equal_for_1_and_2_workers": runs[0]["coef"] == runs[1]["coef"],
        "largest_difference_from_a_tenth_in_standard_errors": float(np.abs(z).max()),
        "bytes_of_one_partition_result": 8 * (COLUMNS + 1) * (COLUMNS + 2),
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k != "runs"}, indent=1))
    for run in runs:
        print(run["workers"], run["regression"], run["pca"])


if __name__ == "__main__":
    main()
