"""What ``credo serve`` holds under load, beside a plain FastAPI server of the same network without uncertainty.

    python benchmarks/serve_load.py [--seconds 60] [--clients 64] [--rounds 4] [--cores 0,1]

Needs the extra ``serve``. A table of 1,000 rows and 8 columns of numbers is fitted by Bayes by Backprop (100 draws per
prediction), distilled from that into one network by ``credo.distill``, and fitted as one network (``map``). Three
servers run at once, in processes of their own with one thread of torch, on the same cores: credo with each of the first
two models, and FastAPI with the third, which reads rows through pydantic, scales them with numpy and returns the mean.
The load goes to one server at a time, in turns, so that what else happens on the machine meets all of them: each client
sends one row, waits for the answer and sends the next. The clients share the cores with the servers, unless
--client-cores names others.

Reported: requests per second, p50 and p99 of the latency, errors, CPU time of the server per request, resident memory
after the first turn and at the end, mean rows per batch; and the ratios to the plain server.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import datetime
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import credo
from credo.tabular.runs import fit_run, load_model

RESULT = Path(__file__).parent / "results" / "serve_load.json"
COLUMNS = [f"x{j}" for j in range(8)]
KINDS = {"bbb": "credo, 100 draws", "distilled": "credo, distilled", "plain": "plain FastAPI"}
EPOCHS = 40
DISTILLATION_EPOCHS = 20  # what a prediction costs does not depend on it


def table() -> pd.DataFrame:
    random = np.random.default_rng(0)
    x = random.normal(size=(1000, len(COLUMNS)))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * random.normal(size=1000)
    return pd.DataFrame(x, columns=COLUMNS).assign(y=y)


def serve_plain(folder: str, port: int) -> None:
    """The plain server: the network's mean, without draws, noise, flags, limits or batches."""
    import uvicorn
    from fastapi import FastAPI
    from pydantic import create_model

    model = load_model(folder)
    network, scaling, target = model.model_.net.float().eval(), model.columns_.scaling, model.target_
    row = create_model("Row", **dict.fromkeys(COLUMNS, (float, ...)))
    app = FastAPI()

    async def predict(rows: Any) -> list[float]:
        values = np.array([[getattr(each, name) for name in COLUMNS] for each in rows])
        with torch.no_grad():
            z = network(torch.from_numpy(scaling.encode(values)))[:, 0]
        return (z * target.scale + target.mean).tolist()

    predict.__annotations__["rows"] = list[row]
    app.post("/predict")(predict)
    uvicorn.run(app, port=port, http="h11", loop="asyncio", ws="none", access_log=False, log_level="warning")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@dataclass
class Server:
    """A server process and what was measured of it."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    latencies: list[list[float]] = field(default_factory=list)  # per turn
    errors: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    memory: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, name: str, folder: Path, cores: set[int]) -> Server:
        port = free_port()
        command = [sys.executable, "-m", "credo", "serve", str(folder), "--port", str(port), "--quiet"]
        if name == "plain":
            command = [sys.executable, __file__, "--plain", str(folder), "--port", str(port)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, env=environment)
        os.sched_setaffinity(process.pid, cores)
        return cls(name, process, port)

    def wait(self) -> None:
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self.process.poll() is None, f"{self.name} ended"
                time.sleep(0.2)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024

    async def load(self, clients: int, seconds: float, body: bytes) -> None:
        """Send requests for some seconds."""
        request = (
            b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        start, cpu, latencies = time.perf_counter(), self.cpu_seconds(), []

        async def client() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            while time.perf_counter() - start < seconds:
                sent = time.perf_counter()
                try:
                    writer.write(request)
                    header = await reader.readuntil(b"\r\n\r\n")
                    length = int(re.search(rb"content-length: (\d+)", header, re.IGNORECASE).group(1))
                    await reader.readexactly(length)
                except (OSError, asyncio.IncompleteReadError):
                    self.errors += 1
                    writer.close()
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    continue
                latencies.append(time.perf_counter() - sent)
                self.errors += not header.startswith(b"HTTP/1.1 200")
            writer.close()

        await asyncio.gather(*(client() for _ in range(clients)))
        self.seconds += time.perf_counter() - start
        self.cpu += self.cpu_seconds() - cpu
        self.latencies.append(latencies)
        self.memory.append(self.resident())

    def summary(self) -> dict[str, Any]:
        every = [latency for turn in self.latencies for latency in turn]
        p50, p99 = np.quantile(every, [0.5, 0.99]) * 1000
        found = {
            "server": KINDS[self.name],
            "requests": len(every),
            "requests_per_s": round(len(every) / self.seconds, 1),
            "p50_ms": round(float(p50), 1),
            "p99_ms": round(float(p99), 1),
            "errors": self.errors,
            "cpu_ms_per_request": round(1000 * self.cpu / len(every), 3),
            "memory_first_mib": round(self.memory[0], 1),
            "memory_last_mib": round(self.memory[-1], 1),
        }
        if self.name != "plain":
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
                text = answer.read().decode()
            total, count = (
                float(re.search(rf"credo_batch_rows_{what} (\S+)", text).group(1)) for what in ("sum", "count")
            )
            found["rows_per_batch"] = round(total / count, 1)
        return found


def ratios(servers: dict[str, Server], name: str) -> dict[str, float]:
    """Ratios to the plain server, medians over the turns."""
    pairs = list(zip(servers[name].latencies, servers["plain"].latencies, strict=True))
    found = {
        f"p{q}_ratio": round(statistics.median(float(np.percentile(a, q) / np.percentile(b, q)) for a, b in pairs), 2)
        for q in (50, 99)
    }
    cpu = {key: server.cpu / sum(map(len, server.latencies)) for key, server in servers.items()}
    return found | {"cpu_ratio": round(cpu[name] / cpu["plain"], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load per server")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=4, help="turns per server")
    parser.add_argument("--cores", default="0,1", help="of the servers")
    parser.add_argument("--client-cores", default=None)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        serve_plain(options.plain, options.port)
        return
    warnings.simplefilter("ignore", UserWarning)
    cores = {int(core) for core in options.cores.split(",")}
    if options.client_cores:
        os.sched_setaffinity(0, {int(core) for core in options.client_cores.split(",")})
    body = json.dumps([{name: 0.1 * (j + 1) for j, name in enumerate(COLUMNS)}]).encode()
    with tempfile.TemporaryDirectory() as folder:
        for name, method in (("bbb", "bbb"), ("plain", "map")):
            print(f"fitting {method}", file=sys.stderr)
            run = fit_run(table(), "y", method=method, holdout=0.0, epochs=EPOCHS, source="made up")
            run.save(Path(folder, name))
            if name == "bbb":
                student = credo.distill(run.model, table()[COLUMNS], epochs=DISTILLATION_EPOCHS)
                dataclasses.replace(run, model=student).save(Path(folder, "distilled"))
        servers = {name: Server.start(name, Path(folder, name), cores) for name in KINDS}
        try:
            for server in servers.values():
                print(f"starting {server.name}", file=sys.stderr)
                server.wait()
                asyncio.run(server.load(2, 1.0, body))  # what is done once
                server.latencies, server.memory, server.seconds, server.cpu = [], [], 0.0, 0.0
            for turn in range(options.rounds):
                print(f"turn {turn + 1}", file=sys.stderr)
                order = list(servers.values())
                for server in order[turn % 3 :] + order[: turn % 3]:
                    asyncio.run(server.load(options.clients, options.seconds / options.rounds, body))
            rows = [server.summary() for server in servers.values()]
            for row, name in zip(rows, servers, strict=True):
                row |= ratios(servers, name)
        finally:
            for server in servers.values():
                server.process.terminate()
                server.process.wait()
    for row in rows:
        print(row)
    shared = "shared with the clients" if options.client_cores is None else "of their own"
    record = {
        "name": "serve_load",
        "command": f"python benchmarks/serve_load.py --seconds {options.seconds:g} --clients {options.clients} "
        f"--rounds {options.rounds}",
        "date": datetime.date.today().isoformat(),
        "hardware": f"{platform.machine()} CPU, {len(cores)} cores {shared}, load average "
        f"{os.getloadavg()[2]:.1f} in the 15 minutes before the end, torch {torch.__version__}",
        "rows": rows,
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
