"""SWAG: its moments are those of the trajectory, its draws have them, and batch norm follows the mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import credo
from credo.posteriors.trajectory import TrajectoryGaussian

ROWS, BATCH, EPOCHS = 40, 10, 5
STEPS = EPOCHS * ROWS // BATCH


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, x.sum(1, keepdim=True).sin()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def recording(steps: list[Tensor]) -> Callable[..., torch.optim.Optimizer]:
    """SGD that keeps the weights after every step."""

    class Recording(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            result = super().step(closure)
            steps.append(torch.cat([p.detach().flatten() for group in self.param_groups for p in group["params"]]))
            return result

    return lambda groups, lr: Recording(groups, lr=lr, momentum=0.9)


def flat(draw: dict[str, Tensor], start: int = 0) -> Tensor:
    return torch.cat([value.flatten(start) for value in draw.values()], dim=start)


@pytest.mark.parametrize(("start", "snapshots", "rank"), [(0.5, 100, 4), (0.0, 7, 20), (0.25, 3, 2), (0.5, 5, 0)])
def test_the_moments_are_those_of_the_trajectory(start: float, snapshots: int, rank: int) -> None:
    """Mean, variance and the deviations from the running mean, computed from the recorded weights."""
    visited: list[Tensor] = []
    model = credo.SWAG(network(), credo.Gaussian(0.5), rank=rank, start=start, snapshots=snapshots)
    model.fit(data(), epochs=EPOCHS, batch_size=BATCH, optimizer=recording(visited), lr=0.05, seed=0, progress=False)
    assert len(visited) == STEPS
    first = int(start * STEPS)
    every = max(1, (STEPS - first) // snapshots)
    chosen = torch.stack([visited[t - 1] for t in range(first + 1, STEPS + 1) if (STEPS - t) % every == 0])
    posterior = model.posterior
    assert int(posterior.count) == len(chosen) >= min(snapshots, STEPS - first)
    torch.testing.assert_close(flat(posterior.mean()), chosen.mean(0))
    torch.testing.assert_close(flat(posterior.variance()), chosen.var(0, correction=0))
    running = chosen.cumsum(0) / torch.arange(1, len(chosen) + 1).double()[:, None]
    deviations = (chosen - running)[max(0, len(chosen) - rank) :] if rank else chosen[:0]
    found = flat(posterior.columns(), 1)
    torch.testing.assert_close(found.mT @ found, deviations.mT @ deviations)


@pytest.mark.parametrize("rank", [0, 3])
def test_draws_have_the_covariance_of_the_paper(rank: int) -> None:
    """4,000 draws; the standard error of a covariance s_ij is √((s_ii·s_jj + s_ij²)/n), of which five are allowed."""
    net = nn.Linear(2, 1).double()
    posterior = TrajectoryGaussian(net, ["weight", "bias"], rank)
    source = torch.Generator().manual_seed(1)
    mixing = torch.randn(3, 3, generator=source).double()
    for _ in range(6):
        moved = mixing @ torch.randn(3, generator=source).double()
        with torch.no_grad():
            net.weight.copy_(moved[None, :2])
            net.bias.copy_(moved[2:])
        posterior.collect()
    posterior.center()
    variance, columns = flat(posterior.variance()), flat(posterior.columns(), 1)
    expected = variance.diag() if rank == 0 else 0.5 * variance.diag() + columns.mT @ columns / (2 * (rank - 1))
    n = 4_000
    draws = flat(posterior.sample(n, seed=0), 1)
    error = ((expected.diagonal()[:, None] * expected.diagonal() + expected.square()) / n).sqrt()
    assert (draws.T.cov() - expected).abs().le(5 * error).all()


def test_batch_norm_is_refreshed_for_the_mean_weights(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "credo")
    x, y = data()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double()
    model = credo.SWAG(net, credo.Gaussian(0.5)).fit((x, y), epochs=4, lr=1e-2, seed=0, progress=False)
    inside = net[0](x).detach()
    torch.testing.assert_close(net[1].running_mean, inside.mean(0))
    torch.testing.assert_close(net[1].running_var, inside.var(0))
    assert net[1].momentum == 0.1
    assert not net[1].training
    assert "batch norm" in caplog.text
    assert model.predict(x, samples=5, seed=0).epistemic.gt(0).all()


@pytest.mark.parametrize("batch_size", [16, 17])
def test_the_statistics_of_batch_norm_do_not_depend_on_the_order_of_the_rows(batch_size: int) -> None:
    """Rows sorted by two clusters, 10 standard deviations apart; the last minibatch of 17 rows has 13.

    The running mean is that of all rows. The variance within a minibatch of n rows, a share p of them of one cluster,
    is 100·p(1 − p)·n/(n − 1): in random order that of all rows in expectation, with a standard error of 3.4 % over four
    minibatches. Sorted ones have 4 % of it.
    """
    torch.manual_seed(0)
    cluster = (torch.arange(64) >= 32).double()
    x = 10.0 * cluster[:, None] + torch.randn(64, 3).double()
    for loaded in (False, True):
        net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
        rows = torch.utils.data.TensorDataset(x, cluster[:, None])
        loader = torch.utils.data.DataLoader(rows, batch_size, shuffle=True, drop_last=True)
        own = loader if loaded else (x, cluster[:, None])
        credo.SWAG(net, credo.Gaussian(0.5)).fit(own, epochs=4, batch_size=batch_size, seed=0, progress=False)
        torch.testing.assert_close(net[0].running_mean, x.mean(0))
        torch.testing.assert_close(net[0].running_var, x.var(0), rtol=4 * 0.034, atol=0.0)


def test_minibatches_of_one_image_have_statistics_and_those_of_one_row_are_left_out() -> None:
    torch.manual_seed(0)
    images, y = 3.0 + torch.randn(5, 1, 4, 4).double(), torch.randn(5, 1, 4, 4).double()
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 1, 1)).double()
    credo.SWAG(net, credo.Gaussian(0.5)).fit((images, y), epochs=2, batch_size=1, seed=0, progress=False)
    torch.testing.assert_close(net[0].running_mean, images.mean((0, 2, 3)))
    torch.testing.assert_close(net[0].running_var, images.flatten(1).var(1).mean()[None])
    flat = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    model = credo.SWAG(flat, credo.Gaussian(0.5)).fit(data(), epochs=2, seed=0, progress=False)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    x, y = data()
    model.fit((x[:1], y[:1]), epochs=0, progress=False)
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    assert flat[0].momentum == 0.1


def test_frozen_batch_norm_keeps_its_statistics() -> None:
    x, y = data()
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double()
    net[1].requires_grad_(False).eval()
    credo.SWAG(net, credo.Gaussian(0.5)).fit((x, y), epochs=2, seed=0, progress=False)
    assert torch.equal(net[1].running_mean, torch.zeros(4).double())


def test_a_second_fit_starts_a_new_trajectory_and_no_epochs_keep_it() -> None:
    model = credo.SWAG(network(), credo.Gaussian(0.5))
    model.fit(data(), epochs=EPOCHS, batch_size=BATCH, seed=0, progress=False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.fit(data(), epochs=0, progress=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.fit(data(), epochs=2, batch_size=BATCH, seed=0, progress=False)
    assert int(model.posterior.count) == 2 * ROWS // BATCH // 2


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def fit(**options: Any) -> credo.SWAG:
        model = credo.SWAG(network(), credo.Gaussian(0.5), rank=3, start=0.2)
        return model.fit(data(), epochs=EPOCHS, batch_size=BATCH, seed=3, progress=False, **options)

    def stop(_: Any, entry: dict[str, float]) -> None:
        if entry["epoch"] == 4:
            raise Interrupted

    with pytest.raises(Interrupted):
        fit(checkpoint=tmp_path / "run", on_epoch_end=stop)
    resumed, whole = fit(checkpoint=tmp_path / "run", resume=True), fit()
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, rtol=0, atol=0)


def test_the_learning_rate_is_constant_while_weights_are_collected() -> None:
    model = credo.SWAG(network(), credo.Gaussian(0.5))
    model.fit(data(), epochs=4, batch_size=ROWS, lr=0.1, seed=0, progress=False)
    assert [entry["lr"] for entry in model.history] == pytest.approx([0.1, 0.06, 0.02, 0.02])


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from zip(*data(), strict=True)


def test_one_set_of_weights_has_no_width_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    x, y = torch.randn(8, 2), torch.randn(8, 1)
    for epochs, expected in ((2, 1), (4, 2)):
        caplog.clear()
        model = credo.SWAG(nn.Linear(2, 1), credo.Gaussian(0.5)).fit((x, y), epochs=epochs, seed=0)
        assert int(model.posterior.count) == expected
        assert ("no width" in caplog.text) == (expected == 1)


def test_what_does_not_apply_is_refused() -> None:
    model = credo.SWAG(network(), credo.Gaussian(0.5))
    with pytest.raises(credo.errors.InputError, match="before fit"):
        model.predict(data()[0])
    with pytest.raises(credo.errors.InputError, match="patience"):
        model.fit(data(), validation=data(), patience=2)
    with pytest.raises(credo.errors.InputError, match="no length"):
        model.fit(DataLoader(Endless(), batch_size=BATCH), n_data=ROWS)
    with pytest.raises(credo.errors.UnsupportedError, match="lower bound"):
        model.elbo(data())
    with pytest.raises(credo.errors.UnsupportedError, match="use it with"):
        credo.SWAG(network(), credo.Gaussian(0.5), credo.AdaptiveNormal()).fit(data(), epochs=1)
    for wrong in ({"rank": 1}, {"rank": -1}, {"start": 1.0}, {"start": "half"}, {"snapshots": 1}):
        with pytest.raises(credo.errors.InputError, match=next(iter(wrong))):
            credo.SWAG(network(), **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("ensemble", [False, True])
def test_a_card_with_another_rank_is_refused(ensemble: bool, tmp_path: Path) -> None:
    """A rank is memory for as many networks, so that it must be that of the saved tensors."""
    single = credo.SWAG(network(), credo.Gaussian(0.5), rank=3)
    model = credo.DeepEnsemble(network(), 2, credo.SWAG, likelihood=credo.Gaussian(0.5), rank=3) if ensemble else single
    model.fit(data(), epochs=1, seed=0, progress=False)
    model.save(tmp_path / "run")
    card = tmp_path / "run" / "card.json"
    card.write_text(card.read_text().replace('"rank": 3', '"rank": 1000000'))
    with pytest.raises(credo.errors.LoadError, match="rank 1000000"):
        credo.load(tmp_path / "run", net=network())
