"""Gradient accumulation: the step of a larger minibatch in the memory of a smaller one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import credo
from credo.data import Batch
from credo.errors import InputError
from credo.seeding import seeded
from credo.training.accumulation import gather, pieces

CPU = torch.device("cpu")


def make_net(inputs: int = 2) -> nn.Sequential:
    with seeded(0, CPU):
        return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def table(n: int = 22) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True).sin()


def fit_map(data, **options) -> credo.MAP:
    model = credo.MAP(make_net(), credo.Gaussian(0.3), prior=credo.Normal(0, 1.0))
    return model.fit(data, **{"epochs": 3, "seed": 0, "lr": 0.05, **options})


def assert_same_run(first: credo.MAP, second: credo.MAP) -> None:
    """Equal to the rounding of sums in float64, over a few steps of Adam."""
    for name, value in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], value, rtol=1e-9, atol=1e-10)
    for one, other in zip(first.history, second.history, strict=True):
        assert {k: v for k, v in one.items() if k != "seconds"} == pytest.approx(
            {k: v for k, v in other.items() if k != "seconds"}, rel=1e-9
        )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_steps_are_those_of_the_larger_minibatch(weighted, clip):
    """22 rows in steps of 8: the last step has 6, in parts of 4 and 2 rows, whose shares must be weighted."""
    data = (*table(), torch.linspace(0.1, 3.0, 22, dtype=torch.float64)) if weighted else table()
    small = fit_map(data, batch_size=4, accumulate=2, gradient_clip=clip)
    assert_same_run(fit_map(data, batch_size=8, gradient_clip=clip), small)


def test_minibatches_of_a_loader_are_put_together():
    data = TensorDataset(*table())
    whole = fit_map(DataLoader(data, batch_size=12))
    assert_same_run(whole, fit_map(DataLoader(data, batch_size=4), accumulate=3))
    assert len(whole.history) == 3


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(*table(), strict=True)


def test_a_stream_without_a_length_accumulates():
    options = {"n_data": 22, "schedule": "constant"}
    small = fit_map(Stream(), batch_size=2, accumulate=4, **options)
    assert_same_run(fit_map(Stream(), batch_size=8, **options), small)


def test_nested_inputs_are_cut_by_rows():
    x, y = table()

    def first_and_second(net, x):
        return net(torch.cat([x["a"], x["b"]], 1))

    def fit(**options):
        model = credo.MAP(make_net(), credo.Gaussian(0.3), forward=first_and_second)
        return model.fit(({"a": x[:, :1], "b": x[:, 1:]}, y), epochs=2, seed=0, **options)

    assert_same_run(fit(batch_size=8), fit(batch_size=4, accumulate=2))


def test_warm_up_counts_steps_not_parts():
    model = credo.BayesByBackprop(make_net(), credo.Gaussian(0.3), kl_warmup=100)
    model.fit(table(), epochs=3, batch_size=4, accumulate=2, seed=0)
    assert int(model._warmup.steps) == 9


def test_gradient_of_a_stochastic_loss_has_the_same_mean():
    """Over 400 draws, each entry of the mean gradient within 5 standard errors of that of whole minibatches.

    1 of 1.7 million Gaussian entries is further away; the network has 66 parameters with a posterior.
    """
    x, y = table(8)
    model = credo.BayesByBackprop(make_net(), credo.Gaussian(0.3), kl_warmup=0, estimator="weight")

    def gradient(size: int) -> Tensor:
        model.zero_grad()
        for piece in pieces(Batch(x, y, None), size):
            (model(piece.x, piece.y, 8) * len(piece.y) / 8).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    with seeded(3, CPU):
        whole, parts = (torch.stack([gradient(size) for _ in range(400)]) for size in (8, 2))
    error = ((whole.var(0) + parts.var(0)) / 400).sqrt()
    assert bool(((whole.mean(0) - parts.mean(0)).abs() <= 5 * error + 1e-12).all())


def test_loss_of_a_part_that_is_not_finite_ends_the_run():
    x, y = table()
    with pytest.raises(credo.errors.DivergenceError):
        fit_map((x, y), batch_size=4, accumulate=2, lr=1e200, schedule="constant")


def test_minibatches_of_different_shapes_are_refused():
    ragged = [Batch(torch.zeros(2, length), torch.zeros(2), None) for length in (3, 4)]
    with pytest.raises(InputError, match="pad them to one shape"):
        list(gather(ragged, 2))
    with pytest.raises(InputError, match="cut into rows"):
        pieces(Batch((torch.zeros(4, 1), torch.zeros(3, 1)), torch.zeros(4), None), 2)


@pytest.mark.parametrize("model", [credo.IVON(make_net()), credo.MAP(make_net())], ids=["ivon", "zero"])
def test_what_cannot_accumulate_says_so(model):
    is_ivon = isinstance(model, credo.IVON)
    with pytest.raises(InputError, match="leave accumulate out" if is_ivon else "accumulate must be an integer"):
        model.fit(table(), accumulate=2 if is_ivon else 0)
