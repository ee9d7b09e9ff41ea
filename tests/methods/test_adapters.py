"""A posterior over an adapter of a frozen network: what is trained, held, drawn and saved is the adapter.

The adapter is that of Hu et al., "LoRA", ICLR 2022, written in torch: W·x + B·A·x with a frozen W.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import credo
from credo._tensors import TENSORS, get_tensors
from credo.errors import InputError, LoadError
from credo.functional import Replica

TOKENS, WIDTH, LENGTH, RANK, CLASSES = 211, 24, 6, 2, 3
ROWS, CHAINS, DRAWS = 48, 2, 5
ADAPTER = "*.adapter.*"
PRIOR = credo.Normal(0.0, 0.5)


class LowRank(nn.Module):
    """W·x + B·A·x; W is frozen, B starts at 0."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        down = nn.Linear(base.in_features, RANK, bias=False)
        up = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(up.weight)
        self.adapter = nn.Sequential(down, up)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.adapter(x)
        return y


class Block(nn.Module):
    """Self-attention and a feed-forward layer; notes the rows of every call."""

    rows: ClassVar[dict[str, list[int]]] = {}
    """Of every call by the name of the block, in all copies of a network."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.dense: nn.Module = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        self.rows.setdefault(self.name, []).append(len(x))
        scores = self.query(x) @ self.key(x).mT / math.sqrt(WIDTH)
        x = self.first(x + scores.softmax(-1) @ self.value(x))
        y: Tensor = self.second(x + torch.relu(self.dense(x)))
        return y


class Transformer(nn.Module):
    """Tokens ``[B, T]`` to logits ``[B, C]``; everything is frozen but adapters in the last block."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(Block("frozen"), Block("adapted"))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.requires_grad_(False)
        last = self.blocks[-1]
        last.query, last.value, last.dense = (LowRank(layer) for layer in (last.query, last.value, last.dense))

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(self.embedding(tokens)).mean(1))
        return y


SIZE = 3 * RANK * 2 * WIDTH

METHODS: dict[str, Callable[[nn.Module], Any]] = {
    "BayesByBackprop": lambda net: credo.BayesByBackprop(net, credo.Categorical(), PRIOR, bayesian=ADAPTER),
    "IVON": lambda net: credo.IVON(net, credo.Categorical(), PRIOR, bayesian=ADAPTER),
    "Laplace diag": lambda net: credo.Laplace(net, credo.Categorical(), PRIOR, structure="diag", parameters=ADAPTER),
    "Laplace kron": lambda net: credo.Laplace(net, credo.Categorical(), PRIOR, structure="kron", parameters=ADAPTER),
    "Laplace low_rank": lambda net: credo.Laplace(
        net, credo.Categorical(), PRIOR, structure="low_rank", rank=4, parameters=ADAPTER
    ),
    "MAP": lambda net: credo.MAP(net, credo.Categorical(), PRIOR, bayesian=ADAPTER),
    "SWAG": lambda net: credo.SWAG(net, credo.Categorical(), PRIOR, bayesian=ADAPTER, rank=3),
    "SGLD": lambda net: credo.SGLD(
        net,
        credo.Categorical(),
        PRIOR,
        bayesian=ADAPTER,
        chains=CHAINS,
        draws=DRAWS,
        warmup=10,
        thinning=2,
        init="network",
    ),
}
every_method = pytest.mark.parametrize("name", METHODS)
other_methods = pytest.mark.parametrize("name", [name for name in METHODS if name != "Laplace low_rank"])
"""Without the slowest one, whose prediction and files are those of the other structures."""


def network() -> Transformer:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Transformer()


def data() -> tuple[Tensor, Tensor]:
    """Tokens, and the remainder of the first token modulo the number of classes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(TOKENS, (ROWS, LENGTH), generator=generator)
    return x, x[:, 0] % CLASSES


def fit(name: str, net: nn.Module | None = None, **options: Any) -> Any:
    model = METHODS[name](network() if net is None else net)
    if name == "SGLD":
        return model.fit(data(), seed=0)
    return model.fit(data(), epochs=4, batch_size=16, lr=0.01, seed=0, **options)


@cache
def fitted(name: str) -> Any:
    """A model for tests that do not change it."""
    return fit(name)


def split(net: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Copies of frozen and of adapter tensors, by name."""
    state = {key: value.clone() for key, value in net.state_dict().items()}
    adapter = {key: value for key, value in state.items() if ".adapter." in key}
    return {key: value for key, value in state.items() if key not in adapter}, adapter


class Shapes(TorchDispatchMode):
    """Collects the shapes of all new tensors; views are not new."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if all(value.alias_info is None for value in func._schema.returns):
            self.found |= {tuple(leaf.shape) for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)}
        return result


@other_methods
def test_only_the_adapter_is_trained(name: str) -> None:
    net = network()
    frozen, adapter = split(net)
    model = fit(name, net)
    after_frozen, after_adapter = split(net)
    assert all(torch.equal(after_frozen[key], value) for key, value in frozen.items())
    assert not any(torch.equal(after_adapter[key], value) for key, value in adapter.items())
    assert all(parameter.grad is None for parameter in net.parameters() if not parameter.requires_grad)
    assert set(model.posterior.names()) == adapter.keys()
    assert model.n_data == ROWS


@pytest.mark.parametrize("name", ["BayesByBackprop", "IVON", "Laplace diag", "MAP", "SWAG"])
def test_optimizers_have_no_state_for_frozen_parameters(name: str) -> None:
    net = network()
    states: dict[int, Tensor] = {}
    handle = register_optimizer_step_post_hook(
        lambda optimizer, *_: states.update({id(p): p for p in optimizer.state}) if optimizer.state else None
    )
    try:
        model = fit(name, net)
    finally:
        handle.remove()
    assert states
    learned = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert states.keys() <= learned
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) <= 2 * SIZE


@every_method
def test_a_posterior_holds_the_adapter_and_not_the_network(name: str) -> None:
    """In numbers of the adapter's size P; a Kronecker factor of a layer with I inputs and O outputs has I² + O²."""
    laplace = 1 + 6  # the log likelihood, and a prior precision per tensor
    expected = {
        "BayesByBackprop": SIZE,
        "IVON": SIZE,
        "Laplace diag": SIZE + laplace,
        "Laplace kron": 6 * (RANK**2 + RANK + WIDTH**2 + WIDTH) + laplace,
        "Laplace low_rank": 4 * (SIZE + 1) + laplace,
        "MAP": 0,
        "SWAG": (2 + 3) * SIZE + 1,
        "SGLD": CHAINS * DRAWS * SIZE,
    }
    posterior = fitted(name).posterior
    assert sum(value.numel() for value in posterior.state_dict().values()) == expected[name]


@every_method
def test_draws_hold_the_adapter_and_not_the_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(name)
    drawn = model.posterior.sample(7, seed=0)
    assert sum(value.numel() for value in drawn.values()) == 7 * SIZE
    passed: set[str] = set()
    call = Replica.__call__

    def spy(self: Replica, weights: Any, x: Any) -> Tensor:
        passed.update(weights)
        return call(self, weights, x)

    monkeypatch.setattr(Replica, "__call__", spy)
    for vectorize in ("vmap", "loop"):
        if not (name == "MAP" and vectorize == "vmap"):
            model.predict(data()[0], samples=7, seed=0, vectorize=vectorize)
    assert passed <= set(model.posterior.names())


@other_methods
def test_no_frozen_tensor_is_copied(name: str) -> None:
    """Neither in training, with early stopping and its best weights, nor in prediction."""
    x, y = data()
    options = {} if name in ("SGLD", "SWAG") else {"validation": (x, y), "patience": 2}
    net = network()
    with Shapes() as shapes:
        fit(name, net, **options).predict(x, samples=7, seed=0)
    assert (ROWS, CLASSES) in {shape[-2:] for shape in shapes.found}
    assert (TOKENS, WIDTH) not in {shape[-2:] for shape in shapes.found}


def test_chains_can_start_at_new_adapters() -> None:
    net = network()
    frozen, _ = split(net)
    sgld = credo.SGLD(net, credo.Categorical(), PRIOR, chains=2, warmup=4, draws=2, thinning=1)
    sgld._init_steps = 5
    sgld.fit(data(), seed=0)
    first, second = (value for value in sgld.posterior.by_chain()["blocks.1.value.adapter.0.weight"])
    assert not torch.equal(first, second)
    assert all(torch.equal(net.state_dict()[key], value) for key, value in frozen.items())


@pytest.mark.parametrize("vectorize", ["vmap", "loop"])
@pytest.mark.parametrize("name", ["BayesByBackprop", "IVON", "SWAG", "SGLD"])
def test_blocks_before_the_adapter_run_once_for_all_draws(name: str, vectorize: str) -> None:
    model, x = fitted(name), data()[0]
    model.predict(x, samples=1, seed=0)  # checks of the first prediction
    Block.rows.clear()
    model.predict(x, samples=9, seed=0, vectorize=vectorize)
    assert Block.rows["frozen"].count(ROWS) == 1
    if vectorize == "loop":
        assert Block.rows["adapted"].count(ROWS) == 9


@pytest.mark.parametrize("name", ["BayesByBackprop", "IVON"])
def test_the_kl_is_that_of_the_adapter(name: str) -> None:
    model = fitted(name)
    mean, scale = model.posterior.mean(), model.posterior.scale()
    assert sum(value.numel() for value in mean.values()) == SIZE
    expected = sum(
        torch.distributions.kl_divergence(torch.distributions.Normal(mean[key], scale[key]), PRIOR).sum()
        for key in mean
    )
    torch.testing.assert_close(model.kl(), expected, rtol=1e-5, atol=0.0)


@other_methods
def test_a_run_without_its_frozen_parameters(name: str, tmp_path: Any) -> None:
    model, x = fitted(name), data()[0]
    model.save(tmp_path / "all")
    model.save(tmp_path / "adapter", frozen=False)
    held = set(get_tensors(tmp_path / "adapter" / TENSORS))
    assert not held & {f"net.{key}" for key in split(model.net)[0]}
    assert {f"net.{key}" for key in split(model.net)[1]} <= held
    loaded = credo.load(tmp_path / "adapter", net=network())
    again = credo.load(tmp_path / "all", net=network())
    for other in (loaded, again):
        assert torch.equal(other.predict(x, samples=5, seed=0).mean, model.predict(x, samples=5, seed=0).mean)


def test_a_run_without_its_frozen_parameters_needs_the_same_ones(tmp_path: Any) -> None:
    fitted("MAP").save(tmp_path / "run", frozen=False)
    other = network()
    with torch.no_grad():
        other.embedding.weight[3, 5] += 1e-3
    with pytest.raises(LoadError, match="those of net are not the same"):
        credo.load(tmp_path / "run", net=other)
    trainable = network()
    trainable.head.requires_grad_(True)
    with pytest.raises(LoadError, match="with the same parameters frozen"):
        credo.load(tmp_path / "run", net=trainable)
    with pytest.raises(LoadError, match=r"without its frozen parameters; pass the network .* net="):
        credo.load(tmp_path / "run")
    with pytest.raises(InputError, match="frozen must be True or False"):
        fitted("MAP").save(tmp_path / "run", frozen=1)


def test_without_frozen_parameters_nothing_is_left_out(tmp_path: Any) -> None:
    net = credo.architectures.MLP(2, (3,), 1)
    credo.MAP(net, credo.Gaussian(0.1)).save(tmp_path / "run", frozen=False)
    loaded = credo.load(tmp_path / "run")
    assert all(torch.equal(value, net.state_dict()[key]) for key, value in loaded.net.state_dict().items())


def test_training_is_resumed_with_the_best_adapter(tmp_path: Any) -> None:
    """Two epochs and two more are four, also where early stopping returns to the best of them."""
    x, y = data()
    options: dict[str, Any] = {"batch_size": 16, "lr": 0.05, "seed": 0, "schedule": "constant", "patience": 9}
    options["validation"] = (x.flip(1), y)
    straight = METHODS["MAP"](network()).fit((x, y), epochs=4, **options)
    options["checkpoint"] = tmp_path / "run"
    METHODS["MAP"](network()).fit((x, y), epochs=2, **options)
    best = {name for name in get_tensors(tmp_path / "run" / "optimizer.safetensors") if name.startswith("best.")}
    assert best
    assert "best.net.embedding.weight" not in best
    resumed = METHODS["MAP"](network()).fit((x, y), epochs=4, resume=True, **options)
    expected = straight.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in resumed.state_dict().items())


@other_methods
def test_temperature_scaling_of_draws(name: str) -> None:
    """Every draw is tempered; T minimizes −log p(y) + ½ (log T)², so that it cannot be worse than T = 1 there."""
    model, (x, y) = fitted(name), data()
    p = model.predict(x, samples=6, seed=0)
    scaling = credo.calibration.TemperatureScaling().fit(p, y)
    tempered = scaling(p)
    t = scaling.temperature
    assert t is not None
    by_hand = p.components.log_p.div(t).softmax(-1).mean(0)
    torch.testing.assert_close(tempered.mean, by_hand, rtol=1e-5, atol=1e-6)
    before, after = -float(p.log_prob(y).sum()), -float(tempered.log_prob(y).sum())
    assert after + 0.5 * math.log(t) ** 2 <= before + 1e-4
    assert float(tempered.epistemic.min()) >= 0.0
    if name == "MAP":
        assert torch.equal(tempered.mean.argmax(1), p.mean.argmax(1))
