"""An ensemble of 8 members as Ray tasks on 1 and on 2 workers, against one process.

    python benchmarks/ray_ensemble.py --out benchmarks/results/ray_ensemble.json

Wall time, of one run; on a machine that others use it is a rough estimate. Workers have started and imported torch
before the clock does. Members are compared to the bit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import tempfile
import time
from pathlib import Path

import ray
import torch
from torch import nn

import credo
from credo.seeding import seeded

CPU = torch.device("cpu")


def make_ensemble() -> credo.DeepEnsemble:
    with seeded(0, CPU):
        net = nn.Sequential(nn.Linear(8, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))
        return credo.DeepEnsemble(net, members=8, members_at_once=False)


def _meet(folder: str, workers: int) -> None:
    """Return once all workers have imported torch and credo: a task on each of them waits for the others."""
    torch.set_num_threads(1)
    Path(folder, str(os.getpid())).touch()
    while len(os.listdir(folder)) < workers:
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(4_000, 8, generator=torch.Generator().manual_seed(0))
    data, options = (x, x.sin().sum(1, keepdim=True)), {"epochs": 20, "seed": 0, "progress": False}
    begin = time.perf_counter()
    alone = make_ensemble().fit(data, **options)
    result = {
        "name": "ray_ensemble",
        "command": "python benchmarks/ray_ensemble.py",
        "date": datetime.date.today().isoformat(),
        "hardware": f"{platform.machine()}, 2 cores, load {os.getloadavg()[0]:.1f}",
        "members": 8,
        "table_rows": len(x),
        "rows": [{"workers": 0, "seconds": time.perf_counter() - begin}],
    }
    for workers in (1, 2):
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
        with tempfile.TemporaryDirectory() as folder:
            credo.ray.run_tasks(_meet, [(folder, workers)] * workers)
        begin = time.perf_counter()
        found = credo.ray.fit_ensemble(make_ensemble(), data, **options)
        seconds = time.perf_counter() - begin
        is_equal = all(torch.equal(value, found.state_dict()[name]) for name, value in alone.state_dict().items())
        result["rows"].append({"workers": workers, "seconds": seconds, "is_equal": is_equal})
        ray.shutdown()
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(result)


if __name__ == "__main__":
    main()
