"""Many networks as one: K stacked copies equal K single networks, to rounding."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credo.architectures import LanguageModel
from credo.errors import InputError, UnsupportedError
from credo.methods._initialization import reinitialize
from credo.sequence import CarriedState
from credo.stacking import Stack, stack_weights

ROWS, FEATURES, COPIES = 12, 3, 4


class Branching(nn.Module):
    """A branch that depends on data, which ``vmap`` cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if bool(out.sum() > 0) else -out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.rnn(x.unsqueeze(-1))[0][:, -1])
        return output


class Convolutional(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 1))


class Tied(nn.Module):
    """One module used twice, and a weight held under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight
        self.head = nn.Linear(FEATURES, 1)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(torch.tanh(self.second(torch.tanh(self.first(self.first(x))))))
        return output


class Encoder(nn.Module):
    """Its fused path of evaluation mode has no derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(1, 4), nn.Linear(4, 1)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.encoder(self.into(x.unsqueeze(-1))).mean(1))
        return output


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 1))


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "batch-norm": batch_norm,
    "convolutional": Convolutional,
    "lstm": Recurrent,
    "encoder": Encoder,
    "branching": Branching,
    "tied": Tied,
}


def squared_error(output: Tensor, y: Tensor) -> Tensor:
    return (output - y).square().sum(1)


def data(copies: int | None = None) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    shape = (ROWS,) if copies is None else (copies, ROWS)
    x = torch.randn(*shape, FEATURES, generator=source)
    return x, x[..., :1].sin() + 0.1 * torch.randn(*shape, 1, generator=source)


def build(name: str, **options: bool) -> Stack:
    torch.manual_seed(0)
    return Stack(NETWORKS[name](), COPIES, **options)


@pytest.mark.parametrize("per_copy", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_losses_and_gradients_equal_those_of_single_networks(name: str, per_copy: bool) -> None:
    """To rounding: float32, values of order 1, sums over 12 rows."""
    stack = build(name)
    weights = stack.initial_weights(reinitialize, seed=1)
    x, y = data(COPIES if per_copy else None)
    outputs = stack(weights, x, per_copy=per_copy)
    result = stack.loss_and_gradient(weights, x, y, squared_error, per_copy=per_copy)
    for k, network in enumerate(stack.networks(weights)):
        own_x, own_y = (x[k], y[k]) if per_copy else (x, y)
        network.eval()
        loss = squared_error(network(own_x), own_y).mean()
        loss.backward()
        torch.testing.assert_close(outputs[k], network(own_x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(result.loss[k], loss.detach(), rtol=1e-5, atol=1e-5)
        for parameter_name in stack.names:
            expected = network.get_parameter(parameter_name).grad
            torch.testing.assert_close(result.gradient[parameter_name][k], expected, rtol=1e-4, atol=1e-5)


def test_a_gradient_does_not_take_the_fused_path_of_an_encoder() -> None:
    """In the first call, before the copies are found to run one after the other; others may take it again."""
    stack, (x, y) = build("encoder"), data()
    weights = stack.initial_weights(reinitialize, seed=1)
    result = stack.loss_and_gradient(weights, x, y, squared_error)
    assert torch.backends.mha.get_fastpath_enabled()
    for k, network in enumerate(stack.networks(weights)):
        squared_error(network.eval()(x), y).mean().backward()
        for name in stack.names:
            expected = network.get_parameter(name).grad
            torch.testing.assert_close(result.gradient[name][k], expected, rtol=1e-4, atol=1e-5)


def test_adam_on_the_stack_makes_the_steps_of_each_copy() -> None:
    """30 steps in float64, so that rounding does not grow past 1e-9."""
    torch.manual_seed(0)
    stack = Stack(mlp().double(), COPIES)
    weights = stack.initial_weights(reinitialize, seed=2)
    x, y = (t.double() for t in data())
    singles = [network.eval() for network in stack.networks(weights)]
    together = torch.optim.Adam(list(weights.values()), lr=0.05)
    apart = [torch.optim.Adam(network.parameters(), lr=0.05) for network in singles]
    for _ in range(30):
        for name, gradient in stack.loss_and_gradient(weights, x, y, squared_error).gradient.items():
            weights[name].grad = gradient
        together.step()
        for network, optimizer in zip(singles, apart, strict=True):
            optimizer.zero_grad()
            squared_error(network(x), y).mean().backward()
            optimizer.step()
    for k, network in enumerate(singles):
        for name in stack.names:
            torch.testing.assert_close(weights[name][k], network.get_parameter(name).detach(), rtol=0, atol=1e-9)


def test_folds_of_different_size_are_padded_and_masked() -> None:
    stack = build("mlp")
    weights = stack.initial_weights(reinitialize, seed=1)
    x, y = data(COPIES)
    sizes = [5, 12, 7, 1]
    mask = torch.arange(ROWS) < torch.tensor(sizes).unsqueeze(1)
    result = stack.loss_and_gradient(weights, x, y, squared_error, per_copy=True, sample_weight=mask)
    for k, (network, size) in enumerate(zip(stack.networks(weights), sizes, strict=True)):
        loss = squared_error(network.eval()(x[k, :size]), y[k, :size]).mean()
        loss.backward()
        torch.testing.assert_close(result.loss[k], loss.detach())
        torch.testing.assert_close(result.gradient["0.weight"][k], network.get_parameter("0.weight").grad)


def test_weights_of_one_copy_do_not_touch_the_others() -> None:
    stack = build("mlp")
    weights = stack.initial_weights(reinitialize, seed=1)
    x, y = data()
    before = stack.loss_and_gradient(weights, x, y, squared_error)
    weights["0.weight"][1] += 1.0
    after = stack.loss_and_gradient(weights, x, y, squared_error)
    assert before.loss[1] != after.loss[1]
    others = [0, 2, 3]
    assert torch.equal(before.loss[others], after.loss[others])
    assert all(torch.equal(before.gradient[n][others], after.gradient[n][others]) for n in stack.names)


def test_initial_weights_are_a_function_of_the_seed_and_the_copy() -> None:
    torch.manual_seed(0)
    net = mlp()
    few, many = (Stack(net, copies).initial_weights(reinitialize, seed=5) for copies in (2, 5))
    state = torch.get_rng_state()
    other = Stack(net, 2).initial_weights(reinitialize, seed=6)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(few["0.weight"], many["0.weight"][:2])
    assert not torch.equal(few["0.weight"], other["0.weight"])
    assert len({float(w.sum()) for w in many["0.weight"]}) == 5
    own = Stack(net, 3).initial_weights()
    assert torch.equal(own["0.weight"], net.get_parameter("0.weight").detach().expand(3, -1, -1))


def test_the_network_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    net = batch_norm().train()
    before = copy.deepcopy(net.state_dict())
    stack = Stack(net, COPIES)
    weights = stack.initial_weights(reinitialize, seed=1)
    stack.loss_and_gradient(weights, *data(), squared_error)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def test_frozen_parameters_are_shared() -> None:
    net = nn.Sequential(nn.Linear(FEATURES, 2), nn.Linear(2, 1))
    net[0].requires_grad_(False)
    stack = Stack(net, 2)
    assert stack.names == ["1.weight", "1.bias"]
    weights = stack.initial_weights(reinitialize, seed=0)
    x, _ = data()
    for k in range(2):
        expected = F.linear(net[0](x), weights["1.weight"][k], weights["1.bias"][k])
        torch.testing.assert_close(stack(weights, x)[k], expected)


def test_dropout_in_training_mode_draws_a_mask_per_copy() -> None:
    torch.manual_seed(0)
    stack = Stack(nn.Sequential(nn.Dropout(0.5), nn.Linear(50, 1, bias=False)), 2, training=True)
    outputs = stack(stack.initial_weights(), torch.ones(3, 50))
    assert not torch.equal(outputs[0], outputs[1])


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.randn(len(x), 1)


def test_what_cannot_be_stacked_raises() -> None:
    x, _ = data()
    noisy, stateful, stack = Stack(Noisy(FEATURES, 1), 2), Stack(batch_norm(), 2, training=True), build("mlp")
    with pytest.raises(UnsupportedError, match="draws random numbers"):
        noisy(noisy.initial_weights(), x)
    with pytest.raises(UnsupportedError, match="keeps state"):
        stateful(stateful.initial_weights(), x)
    with pytest.raises(RuntimeError, match="shape"):
        stack(stack.initial_weights(), torch.randn(2, FEATURES + 1))
    with pytest.raises(InputError, match="copies"):
        Stack(mlp(), 0)
    with pytest.raises(InputError, match=r"did you mean '0.weight'"):
        Stack(mlp(), 2, names=["0.weigth"])
    with pytest.raises(InputError, match="no trainable"):
        Stack(nn.Tanh(), 2)


def test_a_carried_state_raises_an_error_that_names_it() -> None:
    stack, tokens = Stack(CarriedState(LanguageModel(5, 4, 1)), 2), torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(UnsupportedError, match=r"carries its state .* without CarriedState"):
        stack(stack.initial_weights(), tokens)


def test_stacked_weights_of_networks() -> None:
    networks = [mlp(), mlp()]
    stacked = stack_weights(networks, ["0.weight"], repeats=2)["0.weight"]
    expected = [networks[0], networks[0], networks[1], networks[1]]
    assert torch.equal(stacked, torch.stack([n.get_parameter("0.weight").detach() for n in expected]))


def test_one_copy_of_the_network_at_a_time_is_initialized() -> None:
    """Of a large frozen network with a small trainable part, K copies would need K times its memory."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    net[0].requires_grad_(False)
    copies: list[weakref.ref[nn.Module]] = []

    def initialize(network: nn.Module) -> None:
        copies.append(weakref.ref(network))
        assert sum(copy() is not None for copy in copies) == 1
        nn.init.normal_(network.get_parameter("1.weight"))

    weights = Stack(net, 3).initial_weights(initialize, seed=0)
    assert {name: list(value.shape) for name, value in weights.items()} == {"1.weight": [3, 1, 4], "1.bias": [3, 1]}
    assert len(copies) == 3
