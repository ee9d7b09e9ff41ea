"""Captured training: the mechanics, on the CPU, with a graph that runs the recorded step again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import credo
from credo.errors import DivergenceError, InputError
from credo.training import capture

ROWS, BATCH, EPOCHS = 70, 16, 3
"""Four minibatches of 16 rows and one of 6 per epoch."""


class FakeGraph:
    """Keeps the step instead of its kernels: as on a GPU, what is replayed reads the tensors of the capture."""

    made: list[FakeGraph]

    def __init__(self) -> None:
        self.warm_ups = self.replays = 0
        self.made.append(self)

    def warm_up(self, step: Callable[[], None]) -> None:
        self.warm_ups += 1
        step()

    def capture(self, step: Callable[[], None]) -> None:
        self.step = step

    def replay(self) -> None:
        self.replays += 1
        self.step()


class FailingGraph(FakeGraph):
    """A capture that an operation does not permit."""

    def capture(self, step: Callable[[], None]) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore about it")


def install(monkeypatch: pytest.MonkeyPatch, graph: type[FakeGraph]) -> list[FakeGraph]:
    graph.made = []
    monkeypatch.setattr(capture, "find_obstacle", lambda fabric, optimizers: None)
    monkeypatch.setattr(capture, "make_graph", lambda device: graph())
    return graph.made


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[FakeGraph]:
    return install(monkeypatch, FakeGraph)


def net(norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8) if norm else nn.Tanh(), nn.Linear(8, 1))


def table() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 2, generator=generator)
    return x, x.sum(1, keepdim=True).sin()


def fit(model: Any, data: Any = None, **options: Any) -> Any:
    defaults = {"epochs": EPOCHS, "batch_size": BATCH, "lr": 1e-2, "seed": 5, "capture": False}
    return model.fit(table() if data is None else data, **{**defaults, **options})


def assert_same(a: nn.Module, b: nn.Module) -> None:
    """Equal weights, scales, buffers and histories, to the bit; only the times differ."""
    for (name, left), right in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(left, right), name
    for left, right in zip(a.history, b.history, strict=True):
        assert {**left, "seconds": 0} == pytest.approx({**right, "seconds": 0}, rel=1e-12)


METHODS: dict[str, Callable[[], Any]] = {
    "map": lambda: credo.MAP(net(), credo.Gaussian(0.3)),
    "batch norm": lambda: credo.MAP(net(norm=True), credo.Gaussian(0.3)),
    "bbb": lambda: credo.BayesByBackprop(net(), credo.Gaussian(0.3)),
    "blundell": lambda: credo.BayesByBackprop(net(), credo.Gaussian(0.3), kl_weighting="blundell", kl_warmup=7),
    "dropout": lambda: credo.MCDropout(net(), credo.Gaussian(0.3), p=0.1),
    "last layer": lambda: credo.VariationalLastLayer(net(norm=True), credo.Gaussian("learned")),
    "sngp": lambda: credo.SNGP(net(), credo.Gaussian(0.3), features=8, spectral_bound=0.5),
}


@pytest.mark.parametrize("options", [{}, {"gradient_clip": 0.1}, {"optimizer": torch.optim.SGD}], ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_captured_training_equals_eager_training(name: str, options: dict[str, Any], graphs: list[FakeGraph]) -> None:
    """Learning rates, KL weights and warm-up change at every step, and each replay has to see them."""
    captured = fit(METHODS[name](), capture=True, **options)
    assert_same(captured, fit(METHODS[name](), **options))
    assert captured.summary().endswith("trained by captured steps")


@pytest.mark.parametrize("noise", [0.3, "learned"])
def test_captured_steps_of_ivon_equal_eager_ones(noise: Any, graphs: list[FakeGraph]) -> None:
    """The noise of a forward pass meets its gradient inside the step, and the steps are counted there."""
    captured = fit(credo.IVON(net(norm=True), credo.Gaussian(noise)), capture=True)
    assert_same(captured, fit(credo.IVON(net(norm=True), credo.Gaussian(noise))))
    assert captured.summary().endswith("trained by captured steps")


def test_weights_are_collected_between_replays(graphs: list[FakeGraph]) -> None:
    captured = fit(credo.SWAG(net(), credo.Gaussian(0.3), rank=4), capture=True)
    assert_same(captured, fit(credo.SWAG(net(), credo.Gaussian(0.3), rank=4)))
    assert captured.summary().endswith("trained by captured steps")


def test_only_full_minibatches_are_replayed(graphs: list[FakeGraph]) -> None:
    fit(METHODS["map"](), capture=True)
    (graph,) = graphs
    assert graph.warm_ups == 3
    assert graph.replays == EPOCHS * (ROWS // BATCH) - 3


def test_row_weights_mappings_and_loaders_are_copied_too(graphs: list[FakeGraph]) -> None:
    x, y = table()
    weighted = (x, y, torch.linspace(0.5, 1.5, ROWS))
    assert_same(fit(METHODS["bbb"](), weighted, capture=True), fit(METHODS["bbb"](), weighted))
    loader = DataLoader(TensorDataset(*weighted), batch_size=BATCH, shuffle=True)
    assert_same(fit(METHODS["bbb"](), loader, capture=True), fit(METHODS["bbb"](), loader))
    assert all(graph.replays for graph in graphs)


def test_every_player_has_a_graph_of_its_own(graphs: list[FakeGraph]) -> None:
    def train(option: bool) -> Any:
        torch.manual_seed(0)
        model = credo.generative.GAN(nn.Linear(3, 2), nn.Linear(2, 1), latent=3)
        return model.fit(table()[0], epochs=4, batch_size=BATCH, seed=2, capture=option)

    assert_same(train(True), train(False))
    assert len(graphs) == 2
    assert all(graph.replays for graph in graphs)


def test_a_failing_capture_falls_back_to_eager_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made = install(monkeypatch, FailingGraph)
    model = fit(METHODS["bbb"](), capture=True)
    assert_same(model, fit(METHODS["bbb"]()))
    assert made[0].replays == 0
    assert "capture failed: operation not permitted when stream is capturing)" in model.summary()


def test_early_stopping_and_resuming_are_as_in_eager_training(graphs: list[FakeGraph], tmp_path: Any) -> None:
    held_out = {"validation": table(), "patience": 1}
    assert_same(fit(METHODS["map"](), capture=True, **held_out), fit(METHODS["map"](), **held_out))

    def stop(progress: float) -> float:
        if progress * EPOCHS >= 2:
            raise KeyboardInterrupt
        return 1.0

    run = {"checkpoint": tmp_path / "run", "capture": True}
    with pytest.raises(KeyboardInterrupt):
        fit(METHODS["bbb"](), schedule=stop, **run)
    resumed = fit(METHODS["bbb"](), schedule=lambda progress: 1.0, resume=True, **run)
    assert_same(resumed, fit(METHODS["bbb"](), schedule=lambda progress: 1.0))


def test_a_diverging_replay_returns_to_the_last_good_epoch(graphs: list[FakeGraph]) -> None:
    def explode(progress: float) -> float:
        return 1e30 if progress * EPOCHS >= 2 else 1.0

    model = METHODS["map"]()
    with pytest.raises(DivergenceError, match="epoch 3"):
        fit(model, schedule=explode, capture=True)
    assert len(model.history) == 2
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_buffers_that_a_step_replaces_are_written_in_place() -> None:
    class Counter(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def advance(self) -> None:
            self.count = self.count + 1

    counter = Counter()
    kept = counter.count
    capture._with_buffers_in_place(counter, counter.advance)
    capture._with_buffers_in_place(counter, counter.advance)
    assert counter.count is kept
    assert float(kept) == 2.0


def test_auto_is_eager_and_true_says_why_it_is(caplog: pytest.LogCaptureFixture) -> None:
    assert fit(METHODS["map"](), capture="auto").summary().endswith("trained by eager steps")
    assert "captured" not in caplog.text
    assert fit(METHODS["map"](), capture=True).summary().endswith("trained by eager steps")
    assert "training steps are not captured: that needs a CUDA GPU" in caplog.text
    with pytest.raises(InputError, match="capture must be True, False or 'auto', got 'yes'"):
        fit(METHODS["map"](), capture="yes")


@pytest.mark.parametrize("pays", [True, False])
def test_mixed_precision_is_kept_where_it_pays(
    pays: bool, graphs: list[FakeGraph], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the measurement nor its result may leave a trace but the precision of later steps."""
    caplog.set_level("INFO", logger="credo")
    times = iter([1.0] * 3 + [2.0 if pays else 0.5] * 3)

    def seconds(run: Callable[[], None], device: torch.device) -> float:
        run()
        return next(times)

    monkeypatch.setattr(capture, "make_graph", lambda device: FakeGraph())
    monkeypatch.setattr(capture, "seconds", seconds)
    seen: list[bool] = []
    original = nn.Linear.forward

    def forward(layer: nn.Linear, x: Tensor) -> Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        return original(layer, x)

    monkeypatch.setattr(nn.Linear, "forward", forward)
    fit(credo.MAP(net(norm=True), credo.Gaussian(1.0)), capture=True, precision="bf16-mixed")
    assert any(seen[-10:]) is pays, "the last pass looks at the loss after training, in float32"
    assert ("training computes in float32" in caplog.text) is not pays


def test_measuring_the_precision_changes_nothing_else(graphs: list[FakeGraph], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "make_graph", lambda device: FakeGraph())
    times = iter([1.0] * 3 + [2.0] * 3)

    def seconds(run: Callable[[], None], device: torch.device) -> float:
        run()
        return next(times)

    monkeypatch.setattr(capture, "seconds", seconds)
    models = [
        fit(credo.BayesByBackprop(net(norm=True), credo.Gaussian(1.0)), capture=capture, precision="bf16-mixed")
        for capture in (True, False)
    ]
    assert_same(*models)
