"""The training loop: reproducible, resumable to the bit, and back at a good state when something goes wrong."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import lightning_fabric  # noqa: F401  (wraps torch.compile, which a test replaces)
import pytest
import rich.console
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import credo
from credo.errors import DivergenceError, InputError
from credo.methods import NetworkMethod
from credo.seeding import seeded
from credo.training import checkpoints

N, BATCH, EPOCHS = 24, 8, 4
STEPS = EPOCHS * N // BATCH
CPU = torch.device("cpu")


def make_net(seed: int = 0, dropout: float = 0.0, norm: bool = False) -> nn.Sequential:
    with seeded(seed, CPU):
        extra = [nn.BatchNorm1d(8)] if norm else []
        return nn.Sequential(nn.Linear(2, 8), *extra, nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))


class PartlyUsed(nn.Module):
    """A network with layers that its forward leaves out."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(0, CPU):
            self.net, self.unused, self.norm = make_net(), nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


METHODS: dict[str, Callable[..., NetworkMethod]] = {
    # a warm-up of the same length for runs of any length
    "bbb": lambda **o: credo.BayesByBackprop(make_net(), credo.Gaussian(0.3), **{"kl_warmup": 6, **o}),
    "dropout": lambda **o: credo.MCDropout(make_net(dropout=0.3), credo.Gaussian(), **o),
    "dropout-p": lambda **o: credo.MCDropout(make_net(), credo.Gaussian(0.3), p=0.2, **o),
    "map": lambda **o: credo.MAP(make_net(norm=True), credo.Gaussian(0.3), **o),
}
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)


def table(n: int = N, seed: int = 7) -> tuple[Tensor, Tensor]:
    with seeded(seed, CPU):
        x = torch.randn(n, 2)
        return x, x.sum(1, keepdim=True).sin() + 0.1 * torch.randn(n, 1)


def fit(model: NetworkMethod, data: Any = None, **options: Any) -> NetworkMethod:
    defaults = {"epochs": EPOCHS, "batch_size": BATCH, "lr": 1e-2, "seed": 3}
    return model.fit(table() if data is None else data, **{**defaults, **options})


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Interruption(Exception):
    """A crash at a moment of our choosing."""


def interrupted_after(epochs: float, total: int = EPOCHS) -> Callable[[float], float]:
    """A schedule that crashes once ``epochs`` are done; equal to the cosine schedule before."""

    def schedule(progress: float) -> float:
        if progress * total >= epochs - 1e-9:
            raise Interruption
        return 0.5 * (1.0 + math.cos(math.pi * progress))

    return schedule


class Recorder(torch.optim.SGD):
    """SGD that notes its learning rates."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[list[float]] = []

    def step(self, closure: Any = None) -> Any:
        self.seen.append([group["lr"] for group in self.param_groups])
        return super().step(closure)


@every_method
def test_fit_returns_the_model_ready_to_predict(make):
    model = make()
    assert fit(model) is model
    assert not model.training
    assert model.n_data == N
    assert model.predict(table()[0], samples=3).mean.shape == (N, 1)


@every_method
def test_history_has_an_entry_an_epoch(make):
    model = fit(make(), validation=table(8, seed=8))
    keys = {"epoch", "nll", "kl", "elbo", "lr", "seconds", "validation_elbo", "validation_log_likelihood"}
    assert all(entry.keys() == keys for entry in model.history)
    assert [entry["epoch"] for entry in model.history] == [1, 2, 3, 4]
    for entry in model.history:
        assert entry["elbo"] == pytest.approx(-N * entry["nll"] - entry["kl"], rel=1e-12)


@every_method
def test_a_callback_sees_every_epoch_and_does_not_change_the_training(make):
    seen = []

    def note(model: NetworkMethod, entry: dict[str, float]) -> None:
        seen.append((model.training, entry["epoch"]))
        entry["drawn"] = float(torch.rand(()))
        model.predict(table()[0], samples=2)

    model, without = fit(make(), on_epoch_end=note), fit(make())
    assert seen == [(False, epoch) for epoch in range(1, EPOCHS + 1)]
    assert all("drawn" in entry for entry in model.history)
    assert equal(weights(model), weights(without))


def test_a_callback_must_be_callable():
    with pytest.raises(InputError, match="on_epoch_end must be a callable"):
        fit(METHODS["map"](), on_epoch_end="print")


def test_history_is_of_the_last_fit():
    model = fit(METHODS["map"]())
    assert [entry["epoch"] for entry in fit(model, epochs=2).history] == [1, 2]


@every_method
def test_same_seed_gives_the_same_weights_and_another_seed_others(make):
    first, second, other = fit(make()), fit(make()), fit(make(), seed=4)
    assert equal(weights(first), weights(second))
    assert not equal(weights(first), weights(other))


@every_method
def test_trap_15_fit_with_a_seed_leaves_the_random_state(make):
    model, state = make(), torch.get_rng_state()
    fit(model, DataLoader(TensorDataset(*table()), batch_size=BATCH, shuffle=True), validation=table())
    assert torch.equal(torch.get_rng_state(), state)


def test_trap_15_a_failing_fit_leaves_the_random_state_too():
    model, state = METHODS["bbb"](), torch.get_rng_state()
    with pytest.raises(DivergenceError):
        fit(model, lr=1e30)
    assert torch.equal(torch.get_rng_state(), state)


def test_without_a_seed_every_fit_is_different_but_follows_torch_manual_seed():
    results = []
    with torch.random.fork_rng(devices=[]):
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            results.append(weights(fit(METHODS["bbb"](), seed=None)))
    assert equal(results[0], results[1])
    assert not equal(results[0], results[2])


def test_noise_is_drawn_anew_every_epoch():
    """With rows that are all alike and a vanishing learning rate, nothing but the noise can change the loss."""
    history = fit(METHODS["bbb"](), (torch.ones(N, 2), torch.ones(N, 1)), lr=1e-12).history
    assert len({entry["nll"] for entry in history}) == EPOCHS


def test_generator_of_a_users_loader_is_left_as_it_was():
    loader = LOADERS["loader with generator"]()
    before = loader.generator.get_state()
    first = fit(METHODS["map"](), loader)
    assert torch.equal(loader.generator.get_state(), before)
    list(loader)
    assert equal(weights(fit(METHODS["map"](), loader)), weights(first))


def test_fit_learns_also_where_gradients_are_switched_off():
    with torch.no_grad():
        model = fit(METHODS["bbb"]())
    assert equal(weights(model), weights(fit(METHODS["bbb"]())))


@pytest.mark.parametrize(
    "convert",
    [
        lambda x, y: (x.numpy(), y.numpy()),
        lambda x, y: (x.double().numpy(), y.double().numpy()),
        lambda x, y: (x, y, torch.ones(N)),
        lambda x, y: TensorDataset(x, y),
        lambda x, y: TensorDataset(x, y, torch.ones(N)),
    ],
    ids=["arrays", "float64 arrays", "weights of one", "dataset", "dataset with weights"],
)
def test_every_form_of_data_trains_to_the_same_weights(convert):
    assert equal(weights(fit(METHODS["bbb"](), convert(*table()))), weights(fit(METHODS["bbb"]())))


def test_loader_keeps_its_own_batches():
    recorder: list[Recorder] = []
    loader = DataLoader(TensorDataset(*table()), batch_size=6)
    fit(METHODS["map"](), loader, epochs=1, optimizer=lambda g, lr: recorder.append(Recorder(g, lr)) or recorder[0])
    assert len(recorder[0].seen) == N // 6


def test_mapping_inputs_are_keyword_arguments():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.a(left) + self.b(right)

    x, y = table()
    model = credo.BayesByBackprop(Named(), credo.Gaussian(0.3)).fit(({"left": x, "right": x}, y), epochs=1, seed=0)
    assert model.predict({"left": x, "right": x}, samples=2).mean.shape == (N, 1)


def test_learning_rate_falls_to_zero_along_a_cosine():
    made: list[Recorder] = []
    fit(METHODS["map"](), optimizer=lambda groups, lr: made.append(Recorder(groups, lr)) or made[0])
    expected = [1e-2 * 0.5 * (1 + math.cos(math.pi * k / STEPS)) for k in range(STEPS)]
    assert [rates[0] for rates in made[0].seen] == pytest.approx(expected, rel=1e-12)
    assert made[0].seen[-1][0] < 1e-2 * (math.pi / STEPS) ** 2 / 3.9  # 1 − cos ε ≈ ε²/2


def test_schedule_may_be_constant_or_a_function_of_progress():
    made: list[Recorder] = []

    def build(groups: Any, lr: float) -> Recorder:
        made.append(Recorder(groups, lr))
        return made[-1]

    fit(METHODS["map"](), optimizer=build, schedule="constant")
    model = fit(METHODS["map"](), optimizer=build, schedule=lambda progress: 1 - progress)
    assert [rates[0] for rates in made[0].seen] == [1e-2] * STEPS
    assert [rates[0] for rates in made[1].seen] == pytest.approx([1e-2 * (1 - k / STEPS) for k in range(STEPS)])
    assert model.history[-1]["lr"] == pytest.approx(1e-2 / STEPS)


def test_groups_with_their_own_learning_rates_keep_their_ratio():
    made: list[Recorder] = []

    def build(groups: list[dict[str, Any]], lr: float) -> Recorder:
        first, *rest = [p for group in groups for p in group["params"]]
        made.append(Recorder([{"params": [first]}, {"params": rest, "lr": 10 * lr}], lr))
        return made[0]

    fit(METHODS["bbb"](), optimizer=build)
    assert all(rates[1] == pytest.approx(10 * rates[0]) for rates in made[0].seen)


@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_gradient_clip_bounds_the_norm_of_the_whole_gradient(clip):
    """One step of plain gradient descent at rate 1 moves the weights by the gradient itself."""
    model = METHODS["map"]()
    parameters = list(model.parameters())
    before = [p.detach().clone() for p in parameters]
    options = {"lr": 1.0, "schedule": "constant", "optimizer": torch.optim.SGD, "epochs": 1, "batch_size": N}
    free = copy.deepcopy(model)
    fit(free, **options)
    fit(model, gradient_clip=clip, **options)

    def moved(after: Any) -> float:
        return float(sum((p.detach() - q).square().sum() for p, q in zip(after, before, strict=True)).sqrt())

    gradient = moved(free.parameters())
    assert gradient > 0.05
    assert moved(parameters) == pytest.approx(min(clip, gradient), rel=1e-4)


def test_weight_decay_reaches_the_network_and_never_the_scales():
    seen: list[tuple[set[int], float]] = []

    def build(groups: list[dict[str, Any]], lr: float) -> torch.optim.Optimizer:
        seen.extend(({id(p) for p in group["params"]}, group["weight_decay"]) for group in groups)
        return torch.optim.AdamW(groups, lr=lr)

    model = fit(METHODS["bbb"](), epochs=1, optimizer=build, weight_decay=0.1)
    assert seen[0] == ({id(p) for p in model.net.parameters()}, 0.1)
    assert all(decay == 0.0 for _, decay in seen[1:])
    assert {id(p) for p in model.posterior.parameters()} <= set().union(*(ids for ids, _ in seen[1:]))


@every_method
def test_mixed_precision_computes_in_bfloat16_and_keeps_float32_weights(make):
    seen: set[torch.dtype] = set()

    def forward(net: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = net(x)
        if torch.is_grad_enabled():
            seen.add(out.dtype)
        return out

    model = fit(make(forward=forward), precision="bf16-mixed")
    assert torch.bfloat16 in seen
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(math.isfinite(entry["elbo"]) for entry in model.history)


def test_training_continues_batch_norm_statistics_and_prediction_does_not():
    model = METHODS["map"]()
    before = model.net[1].running_mean.clone()
    fit(model)
    assert not torch.equal(model.net[1].running_mean, before)
    assert int(model.net[1].num_batches_tracked) == STEPS


def test_pruned_weights_stay_zero_through_training():
    model = fit(METHODS["bbb"]())
    model.prune(0.5)
    masks = {name: kept.clone() for name, kept in model.posterior.kept.named_buffers()}
    fit(model)
    for name, kept in masks.items():
        parameter = model.net.get_parameter(name.replace("/", "."))
        assert not bool(parameter.detach()[~kept].any())


@every_method
def test_rows_of_weight_zero_have_no_influence(make):
    x, y = table()
    weight = torch.ones(N)
    weight[::3] = 0.0
    spoilt = y.clone()
    spoilt[::3] += 100.0
    assert equal(weights(fit(make(), (x, y, weight))), weights(fit(make(), (x, spoilt, weight))))


def test_whole_weights_are_repeated_rows():
    """N·loss is the negative ELBO of all data, so it must not matter whether a row is repeated or weighted."""
    x, y = table()
    count = torch.arange(N) % 4
    model = METHODS["map"]().eval()
    weighted = N * model.loss(x, y, n_data=N, sample_weight=count.float())
    total = int(count.sum())
    repeated = total * model.loss(x.repeat_interleave(count, 0), y.repeat_interleave(count, 0), n_data=total)
    torch.testing.assert_close(weighted, repeated, rtol=1e-5, atol=0)


def test_validation_weights_are_repeated_rows():
    x, y = table(6, seed=9)
    count = torch.tensor([2, 1, 1, 3, 1, 2])
    weighted = fit(METHODS["bbb"](), validation=(x, y, count))
    repeated = fit(METHODS["bbb"](), validation=(x.repeat_interleave(count, 0), y.repeat_interleave(count, 0)))
    for key in ("validation_elbo", "validation_log_likelihood"):
        assert weighted.history[-1][key] == pytest.approx(repeated.history[-1][key], rel=1e-5)


@pytest.mark.parametrize("m", [1, 2, 7, 5000])
def test_blundell_weights_sum_to_the_number_of_batches(m):
    model = METHODS["bbb"](kl_weighting="blundell")
    total = math.fsum(model._kl_weight((i, m)) for i in range(1, m + 1))
    assert total == pytest.approx(m, rel=1e-12)


@pytest.mark.parametrize("weighting", ["blundell", lambda i, m: 2 * i / (m * (m + 1))], ids=["blundell", "callable"])
def test_kl_weight_of_each_minibatch_reaches_the_loss(weighting, monkeypatch):
    model = METHODS["bbb"](kl_weighting=weighting)
    seen: list[float] = []
    original = type(model).forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        seen.append(float(kwargs["kl_weight"]))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", forward)
    fit(model, epochs=2)
    m = N // BATCH
    expected = [model._kl_weight((i, m)) for i in range(1, m + 1)] * 2
    assert seen == pytest.approx(expected, rel=1e-6)
    assert sum(seen) == pytest.approx(2 * m, rel=1e-6)


def test_trap_24_step_counter_is_saved(tmp_path):
    model = fit(METHODS["bbb"](kl_warmup=1000))
    assert int(model._warmup.steps) == STEPS
    model.save(tmp_path / "run")
    assert int(credo.load(tmp_path / "run", make_net())._warmup.steps) == STEPS


@pytest.mark.parametrize("monitor", ["elbo", "log_likelihood"])
def test_early_stopping_returns_to_the_best_weights(monitor):
    """Held-out targets are a third of the others: the score rises until the net has learned too much."""
    x, y = table()
    options = {"validation": (x, 0.3 * y), "monitor": monitor, "epochs": 40, "schedule": "constant"}
    model = fit(METHODS["map"](), patience=3, **options)
    scores = [entry[f"validation_{monitor}"] for entry in model.history]
    best = max(range(len(scores)), key=scores.__getitem__)
    assert best > 0
    assert len(scores) == best + 1 + 3 < 40
    assert equal(weights(model), weights(fit(METHODS["map"](), **{**options, "epochs": best + 1})))


def test_validation_alone_does_not_stop_or_change_training():
    assert equal(weights(fit(METHODS["bbb"](), validation=table(5))), weights(fit(METHODS["bbb"]())))


RESUMABLE: dict[str, tuple[Callable[[], NetworkMethod], dict[str, Any]]] = {
    **{name: (make, {}) for name, make in METHODS.items()},
    "warm-up": (lambda: METHODS["bbb"](kl_warmup=9), {}),
    "early stopping": (METHODS["map"], {"validation": table(8, seed=8), "patience": 2}),
    "blundell": (lambda: METHODS["bbb"](kl_weighting="blundell"), {}),
    "momentum": (METHODS["map"], {"optimizer": lambda g, lr: torch.optim.SGD(g, lr=lr, momentum=0.9)}),
    "every second epoch": (METHODS["bbb"], {"checkpoint_every": 2}),
    "trap 24, unused parameters": (lambda: credo.BayesByBackprop(PartlyUsed(), credo.Gaussian(0.3)), {}),
}
LOADERS: dict[str, Callable[[], Any]] = {
    "tensors": table,
    "loader": lambda: DataLoader(TensorDataset(*table()), batch_size=BATCH, shuffle=True),
    "loader with generator": lambda: DataLoader(
        TensorDataset(*table()), batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(5)
    ),
}


@pytest.mark.parametrize("data", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize(("make", "options"), RESUMABLE.values(), ids=RESUMABLE)
def test_resumed_run_ends_in_the_weights_of_an_uninterrupted_one(make, options, data, tmp_path):
    whole = fit(make(), data(), **options)
    folder = {"checkpoint": tmp_path / "run", **options}
    with pytest.raises(Interruption):
        fit(make(), data(), schedule=interrupted_after(2 + 1 / 3), **folder)
    resumed = fit(make(), data(), resume=True, **folder)
    assert equal(weights(resumed), weights(whole))
    assert [e["nll"] for e in resumed.history] == [e["nll"] for e in whole.history]


def test_resumed_without_a_seed_takes_the_seed_of_the_checkpoint(tmp_path):
    whole = fit(METHODS["bbb"]())
    with pytest.raises(Interruption):
        fit(METHODS["bbb"](), checkpoint=tmp_path / "run", schedule=interrupted_after(2))
    assert equal(weights(fit(METHODS["bbb"](), checkpoint=tmp_path / "run", resume=True, seed=None)), weights(whole))


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    options = {"checkpoint": tmp_path / "run", "validation": (table()[0], -table()[1]), "patience": 1, "epochs": 30}
    whole = fit(METHODS["map"](), **options)
    assert len(whole.history) < 30
    again = fit(METHODS["map"](), resume=True, **options)
    assert equal(weights(again), weights(whole))
    assert again.history == whole.history


def test_resuming_without_a_checkpoint_starts_afresh(tmp_path):
    fresh = fit(METHODS["bbb"](), checkpoint=tmp_path / "none", resume=True)
    assert equal(weights(fresh), weights(fit(METHODS["bbb"]())))


def test_checkpoint_is_a_run_that_can_be_loaded(tmp_path):
    model = fit(METHODS["bbb"](), checkpoint=tmp_path / "run")
    loaded = credo.load(tmp_path / "run", make_net())
    x = table()[0]
    assert torch.equal(loaded.predict(x, seed=0).mean, model.predict(x, seed=0).mean)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 9}, "from a run of 4 epochs, but epochs=9"),
        ({"seed": 8}, "made with seed 3, not 8"),
        ({"optimizer": torch.optim.SGD}, "written with the optimizer 'NaturalAdam', not 'SGD'"),
        ({"data": table(16)}, "made with 24 data, not 16"),
    ],
)
def test_checkpoint_of_another_run_is_refused_and_nothing_changes(options, message, tmp_path):
    fit(METHODS["bbb"](), checkpoint=tmp_path / "run")
    model = METHODS["bbb"]()
    before = weights(model)
    with pytest.raises(ValueError, match=message):
        fit(model, checkpoint=tmp_path / "run", resume=True, **options)
    assert equal(weights(model), before)
    assert model.history == []


def exploding_after(epochs: int) -> Callable[[float], float]:
    """A schedule whose learning rate is absurd from the end of epoch ``epochs`` on."""
    return lambda progress: 1.0 if progress * EPOCHS < epochs - 1e-9 else 1e30


@every_method
def test_divergence_names_the_step_and_returns_to_the_last_good_epoch(make, tmp_path):
    good = fit(make(), schedule="constant", epochs=2)
    model = make()
    with pytest.raises(DivergenceError, match=r"step 8 \(epoch 3\).*back at the end of epoch 2"):
        fit(model, schedule=exploding_after(2), checkpoint=tmp_path / "run")
    assert equal(weights(model), weights(good))
    assert [entry["epoch"] for entry in model.history] == [1, 2]
    assert not model.training
    on_disk = make()
    optimizers = {"model": on_disk._training_task().default_optimizer(on_disk.parameter_groups(), lr=1e-2)}
    restored = checkpoints.read(tmp_path / "run", on_disk, optimizers)
    assert restored.state.epochs_done == 2
    assert all(torch.equal(weights(good)[name], value) for name, value in restored.model.items())


def test_divergence_from_the_start_leaves_the_model_as_it_was():
    model = METHODS["bbb"](kl_warmup=None)
    before = weights(model)
    with pytest.raises(DivergenceError, match=r"step 2 \(epoch 1\).*back at its start"):
        fit(model, lr=1e30)
    assert equal(weights(model), before)


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_an_epoch_whose_last_step_explodes_is_not_a_good_one(with_checkpoint, tmp_path):
    """With one batch an epoch the loss of epoch 3 is still finite, and only the weights it leads to are not."""
    good = fit(METHODS["map"](), schedule="constant", epochs=2, batch_size=N)
    model = METHODS["map"]()
    options = {"checkpoint": tmp_path / "run"} if with_checkpoint else {}
    with pytest.raises(DivergenceError, match="back at the end of epoch 2"):
        fit(model, schedule=exploding_after(2), batch_size=N, **options)
    assert equal(weights(model), weights(good))
    assert len(model.history) == 2
    if with_checkpoint:
        assert len(credo.load(tmp_path / "run", make_net(norm=True)).history) == 2


def test_explosion_in_the_very_last_step_is_noticed():
    model = METHODS["map"]()
    with pytest.raises(DivergenceError, match="back at the end of epoch 3"):
        fit(model, schedule=exploding_after(3), batch_size=N)


def test_gradient_that_is_not_finite_is_divergence_also_under_clipping():
    class Cusp(nn.Module):
        """√|w·x| has an infinite slope at w = 0, but a finite value."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1, 2))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weight.T).abs().sqrt()

    model = credo.MAP(Cusp(), credo.Gaussian(0.3))
    with pytest.raises(DivergenceError):
        fit(model, gradient_clip=1.0)
    assert not bool(model.net.weight.detach().any())


@pytest.mark.parametrize("part", ["x", "y", "weight"])
def test_missing_values_in_a_later_minibatch_are_named_by_their_step(part):
    x, y, weight = *table(), torch.ones(N)
    {"x": x, "y": y, "weight": weight}[part][17] = torch.nan
    model = METHODS["bbb"]()
    before = weights(model)
    with pytest.raises(InputError, match="minibatch at step 3 holds NaN"):
        fit(model, DataLoader(TensorDataset(x, y, weight), batch_size=BATCH))
    assert equal(weights(model), before)


def test_failure_in_the_middle_of_an_epoch_returns_to_its_start():
    model = METHODS["bbb"]()
    with pytest.raises(Interruption):
        fit(model, schedule=interrupted_after(2 + 1 / 3))
    assert equal(weights(model), weights_after(2))
    assert len(model.history) == 2
    assert not model.training


def weights_after(epochs: int) -> dict[str, Tensor]:
    """The weights at the end of epoch ``epochs`` of a run of EPOCHS, by way of its progress."""
    snapshots: list[dict[str, Tensor]] = []
    model = METHODS["bbb"]()

    def schedule(progress: float) -> float:
        if abs(progress * EPOCHS - epochs) < 1e-9:
            snapshots.append(weights(model))
        return 0.5 * (1.0 + math.cos(math.pi * progress))

    fit(model, schedule=schedule)
    return snapshots[0]


DESCENT = {"optimizer": torch.optim.SGD, "lr": 1e-3}
"""Adam divides by the gradient's size, so that the rounding of a small gradient can become a large step."""


@pytest.fixture
def traced(monkeypatch):
    """Compilation that traces, but leaves out the minutes of generating code."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


@pytest.mark.slow
def test_compiled_training_equals_eager_training():
    """MAP draws no noise, so only rounding separates the two, and plain gradient descent does not magnify it."""
    torch._dynamo.reset()
    compiled, eager = (fit(METHODS["map"](), compile=option, **DESCENT) for option in (True, False))
    for name, value in weights(eager).items():
        torch.testing.assert_close(weights(compiled)[name], value, rtol=1e-4, atol=1e-5)


@every_method
def test_traced_training_equals_eager_training(make, traced):
    """Traced but run by torch's own kernels, every method draws the same noise as without compilation."""
    model = make()
    model.net.eval()  # a flag that the compiled step must not inherit
    fit(model, compile=True, **DESCENT)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0
    expected = fit(make(), **DESCENT)
    assert model.history[-1]["nll"] == pytest.approx(expected.history[-1]["nll"], rel=1e-5)
    for name, value in weights(expected).items():
        torch.testing.assert_close(weights(model)[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bbb", "dropout", "dropout-p"])
def test_compiled_training_of_stochastic_methods_learns(name):
    torch._dynamo.reset()
    model = fit(METHODS[name](), compile=True, epochs=30)
    assert model.history[-1]["elbo"] > model.history[0]["elbo"]


def test_pruned_weights_stay_zero_through_compiled_training(traced):
    compiled, eager = METHODS["bbb"](), METHODS["bbb"]()
    for model, option in ((compiled, True), (eager, False)):
        model.prune(0.5)
        fit(model, compile=option, **DESCENT)
    for name, value in weights(eager).items():
        torch.testing.assert_close(weights(compiled)[name], value, rtol=1e-5, atol=1e-6)


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 120 columns that remembers what was shown."""
    console = rich.console.Console(force_terminal=True, width=120, record=True, file=StringIO())
    monkeypatch.setattr(rich.console, "Console", lambda **_: console)
    return console


def test_progress_shows_epoch_terms_and_time_left(terminal):
    model = fit(METHODS["bbb"](), validation=table(5), progress=True)
    last, shown = model.history[-1], terminal.export_text()
    for text in ("4/4", f"NLL {last['nll']:.4g}", f"KL {last['kl']:.4g}", f"ELBO {last['elbo']:.5g}", "held-out ELBO"):
        assert text in shown
    assert "0:00:00" in shown


def test_progress_appears_by_itself_on_a_terminal(terminal):
    fit(METHODS["map"]())
    assert "4/4" in terminal.export_text()


def test_progress_can_be_switched_off(terminal):
    fit(METHODS["map"](), progress=False)
    assert terminal.export_text() == ""


def test_progress_is_silent_without_a_terminal(capsys):
    fit(METHODS["map"]())
    assert capsys.readouterr() == ("", "")


def test_progress_can_be_asked_for_without_a_terminal(capsys):
    fit(METHODS["map"](), progress=True)
    assert "NLL" in capsys.readouterr().err


def test_checkpoint_folder_stays_the_only_thing_written(tmp_path: Path):
    fit(METHODS["map"](), checkpoint=tmp_path / "run")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    names = {"card.json", "model.safetensors", "optimizer.safetensors", "training.json"}
    assert {p.name for p in (tmp_path / "run").iterdir()} == names


def test_frozen_parts_in_evaluation_mode_keep_their_statistics():
    """A pretrained backbone that is frozen and resting stays what it was, running means included."""
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)).requires_grad_(False).eval()
    net = nn.Sequential(backbone, nn.Linear(4, 1))
    before = copy.deepcopy(backbone.state_dict())
    credo.BayesByBackprop(net, credo.Gaussian(0.1), bayesian="1.*").fit(
        (torch.randn(20, 2), torch.randn(20, 1)), epochs=2
    )
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


@pytest.mark.parametrize("shuffle", [False, True])
def test_data_in_whole_minibatches_are_counted_by_rows(
    shuffle: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by minibatches, among which the KL would be shared too little; a resumed run counts the same."""
    cuts = [(torch.randn(3, 2), torch.randn(3, 1)) for _ in range(4)]
    options: dict[str, Any] = {"seed": 0, "progress": False, "checkpoint": tmp_path, "epochs": 1}
    for resume in (False, True):
        model = credo.BayesByBackprop(nn.Linear(2, 1), credo.Gaussian(0.5))
        model.fit(DataLoader(cuts, batch_size=None, shuffle=shuffle), resume=resume, **options)
        assert model.n_data == 12
    assert "4 of 3 rows are 12 data" in caplog.text
    told = credo.BayesByBackprop(nn.Linear(2, 1), credo.Gaussian(0.5))
    told.fit(DataLoader(cuts, batch_size=None, shuffle=shuffle), n_data=10, epochs=1, progress=False)
    assert told.n_data == 10
    rows = TensorDataset(torch.randn(12, 2), torch.randn(12, 1))
    by_sampler = DataLoader(rows, sampler=BatchSampler(SequentialSampler(rows), 3, drop_last=False), batch_size=None)
    told.fit(by_sampler, epochs=1, progress=False)
    assert told.n_data == 12
