"""Row gradients of layers and networks, and products with the Gauss–Newton matrix, against Jacobians by torch.func."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.utils._python_dispatch import TorchDispatchMode

import credo
from credo.curvature import Block, DenseGradients, FactoredGradients, GaussNewton, NetworkGradients, output_factors
from credo.curvature.network import is_factorable
from credo.data import Batch
from credo.errors import UnsupportedError

ROWS = 5


class Last(nn.Module):
    """The last state of an LSTM, which has no batching rule."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Parameters outside layers, and activations that are changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(3, 6), nn.Linear(6, 6), nn.Parameter(torch.full((6,), 0.7))
        self.head = nn.Linear(6, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).tanh()
        z = self.b(h)
        z.relu_()
        z = z + self.scale * h
        return self.head(z)  # type: ignore[no-any-return]


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2))
    net[2].weight = net[0].weight
    return net


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    net[0].requires_grad_(False)
    net[2].bias.requires_grad_(False)
    return net


def conv(**options: object) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, **options), nn.ReLU(inplace=True), nn.Conv2d(3, 2, (1, 2)), nn.Flatten(), nn.LazyLinear(2)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)), (3,)),
    "tokens": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)), (3, 3)),
    "conv": (conv(padding=1, stride=2), (2, 6, 5)),
    "conv-dilated": (conv(dilation=2), (2, 6, 6)),
    "conv-same": (conv(padding="same"), (2, 4, 4)),
    "conv-circular": (conv(padding=1, padding_mode="circular"), (2, 4, 4)),
    "conv1d": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1, stride=2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(2)),
        (2, 7),
    ),
    "groups": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3, groups=2), nn.Tanh(), nn.Flatten(), nn.LazyLinear(2)), (2, 5)),
    "norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), (3,)),
    "residual": (Residual, (3,)),
    "lstm": (Last, (4, 3)),
    "tied": (tied, (3,)),
    "frozen": (frozen, (3,)),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    net, x = make().double(), torch.randn(ROWS, *shape, dtype=torch.float64)
    net(x)
    return net.eval(), x


def layers_of(net: nn.Module, names: list[str]) -> list[str]:
    shared = {id(p) for p in [net[0].weight]} if isinstance(net, nn.Sequential) and net[-2] is net[2] else set()
    return [
        path
        for path, module in net.named_modules()
        if is_factorable(module) and f"{path}.weight" in names and id(module.weight) not in shared
    ]


def engine(net: nn.Module, factored: bool = True) -> NetworkGradients:
    names = [name for name, p in net.named_parameters() if p.requires_grad]
    return NetworkGradients(net, None, names, layers_of(net, names) if factored else [])


def jacobians(net: nn.Module, names: list[str], x: Tensor) -> dict[str, Tensor]:
    """By name, ``[B, C, *shape]``, row by row."""
    own = dict(net.named_parameters())
    weights = {name: own[name].detach() for name in names}
    rows = [jacrev(lambda w, row=row: functional_call(net, w, (row[None],))[0])(weights) for row in x]
    return {name: torch.stack([row[name] for row in rows]) for name in names}


@pytest.mark.parametrize("factored", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_row_gradients_equal_jacobians(name: str, factored: bool) -> None:
    net, x = build(name)
    network = engine(net, factored)
    columns = torch.randn(3, ROWS, 2, dtype=torch.float64)
    done = network.run(x)
    torch.testing.assert_close(done.output, net(x))
    found = {n: g for block, grad in done.gradients(columns) for n, g in block.split(grad.matrices()).items()}
    expected = jacobians(net, network.names, x)
    assert set(found) == set(expected)
    for key, jacobian in expected.items():
        wanted = torch.einsum("kbc,bc...->kb...", columns, jacobian)
        torch.testing.assert_close(found[key], wanted, msg=key)


def test_gradients_of_outputs_with_positions_need_no_graph_and_have_none() -> None:
    """Outputs ``[B, T, C]`` are flattened within the graph of the pass, and what is stored has no graph."""
    torch.manual_seed(0)
    net, x = Residual().double(), torch.randn(ROWS, 4, 3, dtype=torch.float64)
    network = engine(net)
    with torch.no_grad():
        found = network.run(x).gradients(torch.randn(3, ROWS, 8, dtype=torch.float64))
    matrices = {name: g for block, grad in found for name, g in block.split(grad.matrices()).items()}
    assert set(matrices) == {name for name, _ in net.named_parameters()}
    assert not any(matrix.requires_grad for matrix in matrices.values())
    with_graph = network.run(x).gradients(torch.randn(3, ROWS, 8, dtype=torch.float64))
    assert not any(grad.matrices().requires_grad for _, grad in with_graph)


@pytest.mark.parametrize("layers", [["4"], []])
def test_nothing_is_kept_of_layers_that_are_not_differentiated(layers: list[str]) -> None:
    """A pass for the last layer of a deep network needs no more memory than one without gradients."""
    net = nn.Sequential(nn.Linear(3, 50), nn.Tanh(), nn.Linear(50, 40), nn.Tanh(), nn.Linear(40, 2)).double()
    network, saved = NetworkGradients(net, None, ["4.weight", "4.bias"], layers), []
    x, columns = torch.randn(7, 3).double(), torch.randn(2, 7, 2).double()

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor.shape[-1])
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network.run(x).gradients(columns)
    assert 40 in saved
    assert not {3, 50} & set(saved)


def test_forward_passes_leave_the_network_as_it_was() -> None:
    net, x = build("norm")
    before = {key: value.clone() for key, value in net.train().state_dict().items()}
    network = engine(net)
    network.run(x).gradients(torch.ones(1, ROWS, 2, dtype=torch.float64))
    assert net.training
    assert all(p.grad is None for p in net.parameters())
    assert not any(module._forward_hooks for module in net.modules())
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key])


def test_an_input_that_is_changed_after_its_layer_was_called_is_an_error() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = x + 1.0
            z: Tensor = self.layer(h)
            h *= 2.0
            return z + h

    network = NetworkGradients(InPlace(), None, ["layer.weight"], ["layer"])
    with pytest.raises(UnsupportedError, match="in place"):
        network.run(torch.randn(2, 3)).gradients(torch.ones(1, 2, 3))


@pytest.mark.parametrize("positions", [1, 4])
def test_factored_gradients_equal_dense_ones(positions: int) -> None:
    torch.manual_seed(1)
    a, g = torch.randn(ROWS, positions, 3).double(), torch.randn(2, ROWS, positions, 4).double()
    factored = FactoredGradients(a, g)
    dense = DenseGradients(torch.einsum("kbto,bti->kboi", g, a))
    metric, directions = torch.rand(4, 3).double(), torch.randn(5, 4, 3).double()
    torch.testing.assert_close(factored.matrices(), dense.matrices())
    start = torch.randn(4, 3).double()
    squares = [start.clone(), start.clone()]
    for gradients, total in zip((factored, dense), squares, strict=True):
        gradients.add_squares(total)
    torch.testing.assert_close(squares[0], start + dense.matrices().square().sum((0, 1)))
    torch.testing.assert_close(squares[1], squares[0])
    torch.testing.assert_close(factored.inner_products(metric), dense.inner_products(metric))
    torch.testing.assert_close(factored.project(directions), dense.project(directions))
    out_basis, in_basis = torch.randn(4, 4).double(), torch.randn(3, 3).double()
    rotated = torch.einsum("kboi,op,ij->kbpj", dense.values, out_basis, in_basis)
    torch.testing.assert_close(factored.rotate(out_basis, in_basis).matrices(), rotated)


def test_large_matrices_are_made_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("credo.curvature.gradients._NUMBERS_AT_ONCE", 30)
    test_factored_gradients_equal_dense_ones(4)


def test_blocks_split_what_they_join() -> None:
    block = Block(("w", "b"), (torch.Size([4, 2, 3]), torch.Size([4])), "layer")
    values = {"w": torch.randn(4, 2, 3), "b": torch.randn(4)}
    assert block.shape == (4, 7)
    found = block.split(block.join(values))
    assert all(torch.equal(found[name], values[name]) for name in values)


class Products(TorchDispatchMode):
    """Counts products that are added to a sum."""

    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += operation is torch.ops.aten.addmm_.default
        return operation(*args, **(kwargs or {}))


def test_the_diagonal_takes_one_product_per_layer_and_batch() -> None:
    """Whatever the number of classes."""
    net, x, y = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 6)), torch.randn(8, 3), torch.arange(8) % 6
    batches = [Batch(x[:4], y[:4], None), Batch(x[4:], y[4:], None)]
    with Products() as products:
        GaussNewton(engine(net), credo.Categorical(), lambda: batches).diagonal(torch.float32)
    assert products.count == 2 * len(batches)


@pytest.mark.parametrize("name", ["mlp", "conv", "residual", "tied"])
def test_products_and_gradients_give_one_matrix(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """H·v = Σ G·Gᵀ·v and diag(H) = Σ G∘G, over batches of several sizes, few rows and one function at a time."""
    monkeypatch.setattr("credo.curvature.gauss_newton._NUMBERS_AT_ONCE", 400)
    monkeypatch.setattr("credo.curvature.gauss_newton._COLUMN_NUMBERS_ON_CPU", 1)
    net, x = build(name)
    y, weight = torch.tensor([0, 1, 1, 0, 1]), torch.rand(ROWS, dtype=torch.float64)
    likelihood, network = credo.Categorical(), engine(net)
    parts = [slice(0, 3), slice(3, 5)]
    matrix = GaussNewton(network, likelihood, lambda: [Batch(x[part], y[part], weight[part]) for part in parts])
    vector = {n: torch.randn_like(w) for n, w in network.weights().items()}
    product = matrix.product(vector)
    summed = {n: torch.zeros_like(w) for n, w in vector.items()}
    squares = {n: torch.zeros_like(w) for n, w in vector.items()}
    for batch in matrix.gradients():
        named = {n: g for block, grad in batch.gradients for n, g in block.split(grad.matrices()).items()}
        along = sum((g * vector[n]).flatten(2).sum(2) for n, g in named.items())
        for n, g in named.items():
            summed[n] += torch.einsum("kb,kb...->...", torch.as_tensor(along), g)
            squares[n] += g.square().sum((0, 1))
    torch.testing.assert_close(matrix.diagonal(torch.float64), squares)
    jacobian = jacobians(net, network.names, x)
    factors = output_factors(likelihood, net(x), y, weight)
    change = sum(torch.einsum("bc...,...->bc", j.flatten(2), vector[n].flatten()) for n, j in jacobian.items())
    inner = torch.einsum("kbc,kbd,bd->bc", factors, factors, torch.as_tensor(change))
    for n in vector:
        expected = torch.einsum("bc,bc...->...", inner, jacobian[n])
        torch.testing.assert_close(product[n], expected, msg=n)
        torch.testing.assert_close(summed[n], expected, msg=n)
    expected_fit = (likelihood.log_prob(net(x), y) * weight).sum().detach()
    assert abs(matrix.log_likelihood() - float(expected_fit)) < 1e-10
