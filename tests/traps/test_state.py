"""Traps 22–24 of docs/traps.md: one copy of every parameter, complete copies and files, no traces of an error."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.methods.network import NetworkMethod


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 2))


BUILD: dict[str, Callable[[nn.Module], NetworkMethod]] = {
    "bbb": lambda net: credo.BayesByBackprop(net, credo.Gaussian("learned"), initial_scale=0.1),
    "bbb-mixture": lambda net: credo.BayesByBackprop(
        net, credo.Gaussian(0.5), credo.ScaleMixture(0.3, 1.5, 0.1), estimator="flipout", initial_scale=0.1
    ),
    "mc-dropout": lambda net: credo.MCDropout(net, credo.Gaussian(0.5), p=0.2, length_scale=0.5),
    "own-dropout": lambda net: credo.MCDropout(net, credo.Gaussian(0.5)),
    "map": lambda net: credo.MAP(net, credo.Gaussian(0.5), credo.LaplacePrior(0.0, 2.0)),
}
X, Y = (torch.randn(8, 3 if k == 0 else 2, generator=torch.Generator().manual_seed(k)) for k in range(2))


def built(method: str, seed: int = 0) -> NetworkMethod:
    torch.manual_seed(seed)
    return BUILD[method](network())


def loss_of(model: NetworkMethod, x: Tensor = X, y: Tensor = Y, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return model.loss(x, y, n_data=20)


def step(model: NetworkMethod, x: Tensor = X, y: Tensor = Y, seed: int = 0) -> None:
    loss_of(model, x, y, seed).backward()
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    model.zero_grad()


@pytest.mark.parametrize("method", BUILD)
def test_trap_22_every_parameter_is_registered_once(method: str) -> None:
    model = built(method)
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert len(names) == len({id(p) for _, p in model.named_parameters()})
    assert all(model.net.get_parameter(name) is model.get_parameter(f"net.{name}") for name in _names(model.net))
    tensors = [p for group in model.parameter_groups(0.1) for p in group["params"]]
    assert {id(p) for p in tensors} == {id(p) for p in model.parameters()}
    assert len(tensors) == len(names)


def _names(net: nn.Module) -> list[str]:
    return [name for name, _ in net.named_parameters()]


@pytest.mark.parametrize("method", BUILD)
def test_trap_22_a_move_takes_everything_along(method: str) -> None:
    """After ``.double()`` a step and a prediction are those of a model that was double from the start.

    The start is the same float32 numbers, the random numbers are those of float64: they agree to float64 rounding,
    except for a learned or stored scalar that was rounded to float32 once: 1e-6.
    """
    moved = built(method)
    loss_of(moved)
    moved.load_state_dict(built(method).state_dict())
    moved.double()
    torch.manual_seed(0)
    born = BUILD[method](network().double())
    born.double().load_state_dict(moved.state_dict())
    assert {p.dtype for p in moved.parameters()} == {torch.float64}
    for model in (moved, born):
        step(model, X.double(), Y.double())
    for (name, a), b in zip(moved.named_parameters(), born.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6, msg=name)
    p, q = (model.predict(X.double(), samples=3, seed=0) for model in (moved, born))
    assert p.draws.dtype == torch.float64
    torch.testing.assert_close(p.draws, q.draws, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", BUILD)
def test_trap_22_a_method_is_an_ordinary_module(method: str) -> None:
    """What every module can do, this one can: ``apply`` reaches all parts, flags and gradients reach all parameters."""
    model = built(method)
    seen: list[nn.Module] = []
    assert model.apply(seen.append) is model
    assert {id(part) for part in seen} == {id(part) for part in model.modules()}
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in model.parameters())
    model.requires_grad_(True)
    loss_of(model).backward()
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    assert model.eval().net.training is False
    assert model.train().net.training is True
    model.share_memory()
    assert bool(loss_of(model).isfinite())


FITTED: dict[str, Callable[[nn.Module], NetworkMethod]] = {
    **{
        f"laplace-{kind}": partial(credo.Laplace, likelihood=credo.Gaussian(0.01), structure=kind)
        for kind in ("full", "kron", "diag", "low_rank")
    },
    "sngp": partial(credo.SNGP, likelihood=credo.Gaussian(0.01), features=20),
    "swag": partial(credo.SWAG, likelihood=credo.Gaussian(0.01)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("method", FITTED)
def test_trap_22_sums_over_data_keep_their_bits(method: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """A curvature of 1e8 beside a prior precision of 1: in 16 bits their sum would not be positive definite."""
    torch.manual_seed(0)
    x, y = torch.randn(500, 3), torch.randn(500, 2)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    model = FITTED[method](net).fit((x, y), epochs=1, progress=False)
    before = {name: value.clone() for name, value in model.posterior.named_buffers()}
    moved = copy.deepcopy(model).to(dtype)
    after = dict(moved.posterior.named_buffers())
    assert all(torch.equal(after[name], value) and after[name].dtype == value.dtype for name, value in before.items())
    prediction = moved.predict(x[:5].to(dtype), samples=3, seed=0).mean
    assert bool(prediction.isfinite().all())
    moved.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", net=copy.deepcopy(net).to(dtype))
    assert torch.equal(loaded.predict(x[:5].to(dtype), samples=3, seed=0).mean, prediction)
    wide = moved.double()
    assert all(value.dtype in (torch.float64, torch.int64) for value in wide.posterior.buffers())


def test_trap_22_moves_there_and_back_change_nothing() -> None:
    model = built("bbb")
    expected, loss = model.predict(X, samples=3, seed=0).draws, loss_of(model.eval())
    model.double().float()
    assert torch.equal(model.predict(X, samples=3, seed=0).draws, expected)
    torch.testing.assert_close(loss_of(model), loss)
    model.to("cpu").to(torch.float32)
    assert torch.equal(model.predict(X, samples=3, seed=0).draws, expected)


def _assign(net: nn.Module, values: dict[str, Tensor]) -> None:
    net.load_state_dict(values, assign=True)


def _copy(net: nn.Module, values: dict[str, Tensor]) -> None:
    net.load_state_dict(values)


def _replace(net: nn.Module, values: dict[str, Tensor]) -> None:
    for name in _names(net):
        path, _, attribute = name.rpartition(".")
        setattr(net.get_submodule(path), attribute, nn.Parameter(values[name].clone()))


@pytest.mark.parametrize("load", [_copy, _assign, _replace])
@pytest.mark.parametrize("method", BUILD)
def test_trap_22_new_weights_in_the_network_are_the_models_weights(method: str, load: Callable[..., None]) -> None:
    """However they got there: a copy that a forward keeps using would diverge without a word."""
    model = built(method)
    loss_of(model)
    other = built(method, seed=1)
    load(model.net, copy.deepcopy(other.net.state_dict()))
    model.net.load_state_dict(other.net.state_dict())  # the running statistics too, which the first loss moved
    for part in (model, other):
        part.train()
    torch.testing.assert_close(loss_of(model), loss_of(other))
    assert torch.equal(model.predict(X, samples=3, seed=0).draws, other.predict(X, samples=3, seed=0).draws)
    step(model)
    step(other)
    for (name, a), b in zip(model.net.named_parameters(), other.net.parameters(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def _deepcopy(model: NetworkMethod, path: Path) -> NetworkMethod:
    return copy.deepcopy(model)


def _pickle(model: NetworkMethod, path: Path) -> NetworkMethod:
    thawed = pickle.loads(pickle.dumps(model))
    assert isinstance(thawed, NetworkMethod)
    return thawed


def _torch_save(model: NetworkMethod, path: Path) -> NetworkMethod:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    thawed = torch.load(file, weights_only=False)
    assert isinstance(thawed, NetworkMethod)
    return thawed


def _safetensors(model: NetworkMethod, path: Path) -> NetworkMethod:
    model.save(path / "run")
    loaded = credo.load(path / "run", net=network())
    assert isinstance(loaded, NetworkMethod)
    return loaded.train(model.training)


@pytest.mark.parametrize("duplicate", [_deepcopy, _pickle, _torch_save, _safetensors])
@pytest.mark.parametrize("method", BUILD)
def test_trap_23_a_copy_is_the_model_and_shares_nothing(
    method: str, duplicate: Callable[[NetworkMethod, Path], NetworkMethod], tmp_path: Path
) -> None:
    model = built(method)
    for seed in range(3):
        step(model, seed=seed)
    twin = duplicate(model, tmp_path)
    assert repr(getattr(twin, "prior", None)) == repr(getattr(model, "prior", None))
    torch.manual_seed(0)
    kl = model.kl()
    torch.manual_seed(0)
    torch.testing.assert_close(twin.kl(), kl, rtol=0, atol=0)
    expected = model.predict(X, samples=4, seed=3).draws
    assert torch.equal(twin.predict(X, samples=4, seed=3).draws, expected)
    torch.testing.assert_close(loss_of(twin), loss_of(model), rtol=1e-6, atol=1e-6)
    shared = {id(t) for t in (*model.parameters(), *model.buffers())}
    assert not any(id(t) in shared for t in (*twin.parameters(), *twin.buffers()))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    step(twin)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    moved = [name for name, value in twin.named_parameters() if not torch.equal(value, state[name])]
    assert moved == [name for name, _ in twin.named_parameters()], "the copy's own parameters must train"


@pytest.mark.parametrize("method", BUILD)
def test_trap_23_a_state_dict_survives_torch_save_and_a_frozen_network(method: str) -> None:
    model = built(method)
    step(model)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = built(method, seed=1)
    other.requires_grad_(False)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.predict(X, samples=3, seed=0).draws, model.predict(X, samples=3, seed=0).draws)


def test_trap_23_a_plain_checkpoint_of_the_network_still_loads() -> None:
    """Wrapping renames nothing: what was saved from the bare network loads into the wrapped one, and back."""
    torch.manual_seed(0)
    bare, wrapped = network(), network()
    credo.BayesByBackprop(wrapped, credo.Gaussian(1.0))
    wrapped.load_state_dict(bare.state_dict())
    bare.load_state_dict(wrapped.state_dict())


class Fragile(nn.Module):
    """Raises in the middle of its forward, when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(3, 6), nn.Dropout(0.3), nn.Linear(6, 2)
        self.norm = nn.BatchNorm1d(6)
        self.unused = nn.Linear(4, 4)
        self.broken = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x))
        if self.broken:
            raise KeyError("broken on purpose")
        y: Tensor = self.second(self.drop(h.tanh()))
        return y


@pytest.mark.parametrize("when", ["loss", "predict"])
@pytest.mark.parametrize("method", BUILD)
def test_trap_24_an_exception_leaves_the_network_clean(method: str, when: str) -> None:
    torch.manual_seed(0)
    net = Fragile()
    model = BUILD[method](net)
    reference = copy.deepcopy(model)
    identities = [id(t) for t in (*net.parameters(), *net.buffers())]
    before = {name: value.clone() for name, value in net.named_parameters()}
    flags = [part.training for part in net.modules()]
    for _ in range(2):
        net.broken = True
        with pytest.raises(KeyError, match="on purpose"):
            loss_of(model) if when == "loss" else model.predict(X, samples=3, seed=0)
        net.broken = False
        assert [part.training for part in net.modules()] == flags
        assert [id(t) for t in (*net.parameters(), *net.buffers())] == identities
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())
        for name, value in net.named_parameters():
            assert torch.equal(value, before[name]), name
    state = torch.get_rng_state()
    net.norm.load_state_dict(reference.net.get_submodule("norm").state_dict())
    torch.testing.assert_close(loss_of(model), loss_of(reference))
    assert torch.equal(model.predict(X, samples=3, seed=0).draws, reference.predict(X, samples=3, seed=0).draws)
    torch.set_rng_state(state)


def test_trap_24_the_step_counter_is_saved(tmp_path: Path) -> None:
    def build() -> credo.BayesByBackprop:
        torch.manual_seed(0)
        return credo.BayesByBackprop(nn.Linear(3, 2), credo.Gaussian(1.0), kl_warmup=10)

    model = build()
    weights = []
    for _ in range(4):
        loss = model.loss(X, Y, n_data=1)
        assert model._last_terms is not None
        weights.append(float((loss.detach() - model._last_terms.nll) / model._last_terms.kl))
    assert weights == pytest.approx([0.1, 0.2, 0.3, 0.4], rel=1e-4)
    model.save(tmp_path / "run")
    fresh = build()
    fresh.load_state_dict(model.state_dict())
    for twin in (fresh, credo.load(tmp_path / "run", net=nn.Linear(3, 2)), copy.deepcopy(model)):
        assert isinstance(twin, credo.BayesByBackprop)
        loss = twin.train().loss(X, Y, n_data=1)
        assert twin._last_terms is not None
        weight = float((loss.detach() - twin._last_terms.nll) / twin._last_terms.kl)
        assert weight == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("method", BUILD)
def test_trap_24_unused_parameters_do_not_crash(method: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Fragile()
    unused = net.unused.weight.detach().clone()
    model = BUILD[method](net)
    model.fit((X, Y), epochs=2, seed=0, progress=False)
    assert bool(model.predict(X, samples=3, seed=0).draws.isfinite().all())
    assert bool(model.kl().isfinite())
    if method.startswith("bbb"):
        # Only the prior speaks about an unused weight, so it is pulled towards the prior's mean.
        assert float(net.unused.weight.detach().norm()) < float(unused.norm())
    model.save(tmp_path / "run")
    loaded: Any = credo.load(tmp_path / "run", net=Fragile())
    assert torch.equal(loaded.predict(X, samples=3, seed=0).draws, model.predict(X, samples=3, seed=0).draws)


class Checkpointed(nn.Module):
    """Recomputes a part of itself in the backward pass: a submodule, or a function over parameters of its own."""

    def __init__(self, own_parameter: bool, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 6), nn.Linear(6, 2)
        self.weight = nn.Parameter(torch.randn(6, 3))
        self.own_parameter, self.use_reentrant = own_parameter, use_reentrant

    def body(self, x: Tensor) -> Tensor:
        return x @ self.weight.T

    def forward(self, x: Tensor) -> Tensor:
        part = self.body if self.own_parameter else self.first
        x = x.clone().requires_grad_()  # a reentrant checkpoint wants an input with a gradient
        h = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=self.use_reentrant)
        y: Tensor = self.second(h.tanh())
        return y


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("own_parameter", [False, True])
def test_trap_24_gradient_checkpointing_is_refused_with_a_sentence(own_parameter: bool, use_reentrant: bool) -> None:
    """Recomputed activations would be drawn anew: the gradient would belong to no function."""
    make = partial(Checkpointed, own_parameter, use_reentrant)
    for estimator in ("auto", "weight"):
        model = credo.BayesByBackprop(make(), credo.Gaussian(1.0), estimator=estimator)
        with pytest.raises(credo.errors.UnsupportedError, match="checkpointing"):
            model.loss(X, Y, n_data=10)
    with pytest.raises(credo.errors.UnsupportedError, match="checkpointing"):
        credo.MCDropout(make(), credo.Gaussian(1.0), p=0.5).loss(X, Y, n_data=10)
    credo.MAP(make(), credo.Gaussian(1.0)).fit((X, Y), epochs=1)  # has no draws that could be lost


def test_trap_24_gradient_checkpointing_that_is_switched_on_later_is_refused_too() -> None:
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    for model in (
        credo.BayesByBackprop(net, credo.Gaussian(1.0), forward=lambda net, x: _call(net, x)),
        credo.MCDropout(net, credo.Gaussian(1.0), p=0.5, forward=lambda net, x: _call(net, x)),
    ):
        net.checkpointing = False
        model.loss(X, Y, n_data=10).backward()
        net.checkpointing = True
        loss = model.loss(X, Y, n_data=10)
        with pytest.raises(credo.errors.UnsupportedError, match="checkpointing"):
            loss.backward()


def _call(net: nn.Module, x: Tensor) -> Tensor:
    if not net.checkpointing:
        return net(x)
    return torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False)
