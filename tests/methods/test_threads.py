"""Several threads in one process: a seed fixes a run, whatever runs beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import credo
from credo.probing import eager

X = torch.randn(48, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)
THREADS = 4


def _network(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))


METHODS: dict[str, Callable[[nn.Module], credo.methods.Method]] = {
    "bbb": lambda net: credo.BayesByBackprop(net, credo.Gaussian(0.5)),
    "mc-dropout": lambda net: credo.MCDropout(net, credo.Gaussian(0.5)),
    "map": lambda net: credo.MAP(net, credo.Gaussian(0.5)),
}


def _fit(model: credo.methods.Method, seed: int, data: type[TensorDataset] = TensorDataset) -> Tensor:
    """All weights after training on shuffled batches."""
    model.fit(DataLoader(data(X, Y), batch_size=16, shuffle=True), epochs=6, seed=seed)
    model.predict(X, samples=4, seed=seed)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("method", METHODS)
def test_fits_in_threads_are_those_of_one_after_the_other(method: str) -> None:
    expected = [_fit(METHODS[method](_network(seed)), seed) for seed in range(THREADS)]
    models = [METHODS[method](_network(seed)) for seed in range(THREADS)]
    start = threading.Barrier(THREADS)

    def fit(seed: int) -> Tensor:
        start.wait()
        return _fit(models[seed], seed)

    torch.manual_seed(7)
    before = torch.get_rng_state()
    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(fit, range(THREADS)))
    for weights, alone in zip(found, expected, strict=True):
        assert torch.equal(weights, alone)
    assert torch.equal(torch.get_rng_state(), before), "the user's random state was disturbed"


def test_a_prediction_neither_waits_for_a_fit_nor_disturbs_it() -> None:
    """Also without a seed, which is drawn from the user's own stream while the fit has torch's generator."""
    expected = _fit(METHODS["bbb"](_network(0)), 0)
    training, predicting = METHODS["bbb"](_network(0)), METHODS["bbb"](_network(1))
    torch.manual_seed(3)
    seeds = [credo.seeding.check_seed(None) for _ in range(2)]
    entered, leave = threading.Event(), threading.Event()

    class Watched(TensorDataset):
        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            entered.set()
            assert leave.wait(60)
            return super().__getitem__(index)

    torch.manual_seed(3)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(_fit, training, 0, Watched)
        assert entered.wait(60)
        assert credo.seeding.check_seed(None) == seeds[0]
        predicting.predict(X, samples=4, seed=1)
        leave.set()
        assert torch.equal(running.result(), expected)
    assert credo.seeding.check_seed(None) == seeds[1]


def test_looking_at_networks_in_two_threads_leaves_compilation_on() -> None:
    """Blocks that overlap would restore each other's stance, and torch.compile would do nothing from then on."""
    import torch._dynamo

    entered, leave = threading.Event(), threading.Event()

    def second() -> None:
        with eager():
            entered.set()
            leave.wait()

    with ThreadPoolExecutor(1) as pool:
        with eager():
            waiting = pool.submit(second)
            entered.wait(0.1)  # it must not enter, so there is nothing else to wait for
        leave.set()
        waiting.result()
    assert torch._dynamo.eval_frame._stance.stance == "default"
