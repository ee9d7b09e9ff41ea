"""Seconds per epoch of ``fit`` on data of MNIST's size, 469 steps of 128 rows, beside plain loops.

    python benchmarks/peers.py --device cuda --only fit

An epoch is the difference between a fit of four epochs and one of a single epoch, divided by three: what happens once,
such as compiling and capturing a step, is reported as ``first_epoch``. The data are random; they are on the device
before the loops and the fits begin.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from racing import capture, mlp
from torch import Tensor, nn

import credo
from credo.architectures import LeNet

BATCH = 128
Fit = Callable[[int], object]


def plain_loop(net: nn.Module, x: Tensor, y: Tensor, captured: bool) -> Fit:
    """Fused Adam on shuffled minibatches; ``captured``: full ones by a step that is replayed as a CUDA graph."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, capturable=captured)
    static_x, static_y = x[:BATCH].clone(), y[:BATCH].clone()

    def step(batch_x: Tensor, batch_y: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(net(batch_x), batch_y).backward()
        optimizer.step()

    def fit(epochs: int) -> None:
        replay = capture(partial(step, static_x, static_y)) if captured else None
        for _ in range(epochs):
            for rows in torch.randperm(len(x), device=x.device).split(BATCH):
                if replay is None or len(rows) < BATCH:
                    step(x[rows], y[rows])
                else:
                    static_x.copy_(x[rows])
                    static_y.copy_(y[rows])
                    replay()

    return fit


def credo_fit(model: credo.MAP | credo.BayesByBackprop | credo.IVON, x: Tensor, y: Tensor, precision: str) -> Fit:
    return lambda epochs: model.fit(
        (x, y), epochs=epochs, batch_size=BATCH, device=x.device, precision=precision, progress=False, seed=0
    )


def fits(network: Callable[[], nn.Module], x: Tensor, y: Tensor) -> dict[str, Callable[[], Fit]]:
    """What is timed, by name; each call builds it anew."""

    def net() -> nn.Module:
        return network().to(x.device)

    def bayes(precision: str = "32-true", **options: str) -> Callable[[], Fit]:
        return lambda: credo_fit(credo.BayesByBackprop(net(), credo.Categorical(), **options), x, y, precision)  # type: ignore[arg-type]

    found = {
        "plain loop": lambda: plain_loop(net(), x, y, captured=False),
        "MAP": lambda: credo_fit(credo.MAP(net(), credo.Categorical()), x, y, "32-true"),
        "IVON": lambda: credo_fit(credo.IVON(net(), credo.Categorical()), x, y, "32-true"),
        "BayesByBackprop": bayes(),
        "BayesByBackprop, weight": bayes(estimator="weight"),
        "BayesByBackprop, bf16-mixed": bayes("bf16-mixed"),
    }
    if x.is_cuda:
        found["plain loop, captured"] = lambda: plain_loop(net(), x, y, captured=True)
    return found


def seconds_per_epoch(device: torch.device, rounds: int, n_data: int = 60_000) -> list[dict[str, object]]:
    """Rows of the table: MLP and LeNet, plain and by ``fit``; rounds are interleaved."""
    y = torch.randint(0, 10, (n_data,), device=device)
    networks: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
        "MLP": (mlp, torch.randn(n_data, 784, device=device)),
        "LeNet": (LeNet, torch.randn(n_data, 1, 28, 28, device=device)),
    }
    rows: list[dict[str, object]] = []
    for title, (network, x) in networks.items():
        builders = fits(network, x, y)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in builders}
        for build in builders.values():  # finds and compiles kernels
            build()(1)
        for _ in range(rounds):
            for name, build in builders.items():
                times[name].append((_seconds(build(), 1, device), _seconds(build(), 4, device)))
        for name, pairs in times.items():
            row = {
                "name": name,
                "seconds": round(statistics.median((four - one) / 3 for one, four in pairs), 4),
                "first_epoch": round(statistics.median(one for one, _ in pairs), 4),
            }
            rows.append({"race": f"fit, {title}", **row})
    return rows


def _seconds(fit: Fit, epochs: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    fit(epochs)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin
