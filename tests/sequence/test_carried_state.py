"""Carried states of any network: where they are stored, which rows go on, and what reads them."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import credo
from credo.architectures import LanguageModel, TransformerLanguageModel
from credo.errors import InputError, UnsupportedError
from credo.sequence import CarriedState, TokenStream, perplexity, perplexity_bound
from training.test_capture import FakeGraph, assert_same, install

VOCABULARY, CUTS, EPOCHS = 7, 6, 3
"""Five cuts of full length and a shorter one per epoch."""


def make_stream() -> TokenStream:
    tokens = torch.randint(0, VOCABULARY, (4 * 28 + 1,), generator=torch.Generator().manual_seed(0))
    return TokenStream(tokens, batch_size=4, length=5)


def make_net(**options: Any) -> CarriedState:
    torch.manual_seed(0)
    return CarriedState(LanguageModel(VOCABULARY, width=6, layers=2, **options))


def make_model(name: str) -> Any:
    likelihood = credo.Categorical()
    if name == "dropout":
        return credo.MCDropout(make_net(dropout=0.2, recurrent_dropout=0.2, word_dropout=0.1), likelihood)
    if name == "sharpened":
        return credo.BayesByBackprop(make_net(), likelihood, credo.ScaleMixture(), sharpening=0.05)
    if name == "partly":
        return credo.BayesByBackprop(make_net(), likelihood, estimator="weight", bayesian="*.weight_hh_l0")
    if name == "bayes":
        return credo.BayesByBackprop(make_net(), likelihood, credo.ScaleMixture(), estimator="weight")
    return credo.MAP(make_net(cell=name), likelihood)


METHODS = ["lstm", "gru", "dropout", "bayes", "sharpened"]


def fit(name: str, **options: Any) -> Any:
    defaults = {"epochs": EPOCHS, "lr": 1e-2, "gradient_clip": 1.0, "seed": 5}
    return make_model(name).fit(make_stream(), **{**defaults, **options})


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[FakeGraph]:
    return install(monkeypatch, FakeGraph)


@pytest.mark.parametrize("name", METHODS)
def test_captured_training_equals_eager_training(name: str, graphs: list[FakeGraph]) -> None:
    captured = fit(name, capture=True)
    assert_same(captured, fit(name, capture=False))
    (graph,) = graphs
    assert graph.replays == EPOCHS * (CUTS - 1) - graph.warm_ups


@pytest.mark.parametrize("name", METHODS)
def test_state_stays_in_the_same_memory(name: str) -> None:
    """A replay reads and writes the addresses of the capture, whatever was evaluated between the epochs."""
    addresses: set[tuple[int, ...]] = set()
    other = TokenStream(torch.arange(60) % VOCABULARY, batch_size=2, length=9)

    def evaluate(model: Any, entry: dict[str, float]) -> None:
        perplexity(model, other)
        perplexity_bound(model, other, seed=0)
        model.net.reset_state()
        addresses.add(tuple(buffer.data_ptr() for buffer in model.net.buffers(recurse=False)))

    model = fit(name, on_epoch_end=evaluate)
    assert len(addresses) == 1
    assert_same(model, fit(name))  # and the evaluation does not change the training


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", [*METHODS, "partly"])
def test_captured_training_equals_eager_training_on_a_gpu(name: str) -> None:
    """In float64, so that rounding does not grow; learning rates are kept in float32, which gives the tolerance."""

    def train(capture: bool) -> Any:
        defaults = {"epochs": EPOCHS, "lr": 1e-2, "gradient_clip": 1.0, "seed": 5, "device": "cuda"}
        return make_model(name).double().fit(make_stream(), capture=capture, **defaults)

    captured, eager = train(True), train(False)
    assert captured._training_path == "captured steps"
    for (key, left), right in zip(captured.state_dict().items(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", ["bayes", "dropout", "gru"])
def test_a_prediction_without_starts_reads_every_row_from_its_beginning(name: str) -> None:
    """Also after the network has read something else, of which it then keeps the state."""
    model, x = make_model(name), torch.randint(0, VOCABULARY, (4, 5), generator=torch.Generator().manual_seed(1))
    model.fit(make_stream(), epochs=1, progress=False, seed=0)
    state = model.net.state_0.clone()
    alone, told = (model.predict(given, samples=3, seed=0) for given in (x, (x, torch.ones(4, dtype=torch.bool))))
    assert torch.equal(alone.mean, told.mean)
    assert torch.equal(state, model.net.state_0)


class Cells(nn.Module):
    """Two LSTM cells in a loop of the user's own, whose state is a list of pairs ``[B, width]``."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.cells = nn.ModuleList([nn.LSTMCell(width, width) for _ in range(2)])
        self.output = nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        zeros = self.embedding.weight.new_zeros(len(x), self.embedding.embedding_dim)
        pairs = [(zeros, zeros)] * 2 if state is None else list(state)
        outputs = []
        for embedded in self.embedding(x).unbind(1):
            h = embedded
            for k, cell in enumerate(self.cells):
                pairs[k] = cell(h, pairs[k])
                h = pairs[k][0]
            outputs.append(self.output(h))
        return torch.stack(outputs, dim=1), pairs


class Memory(nn.Module):
    """A network whose state has ``shape`` and is by name, the sum of what it has read."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape, self.weight = shape, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, state: dict[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        rows = [-1 if size == 0 else 1 for size in self.shape]
        before = x.new_zeros([len(x) if size == 0 else size for size in self.shape])
        before = before if state is None else state["sum"]
        return x * self.weight, {"sum": before + x.sum(1).view(rows)}


def test_a_state_may_be_nested_and_have_rows_in_front() -> None:
    net, stream = CarriedState(Cells()), make_stream()
    with torch.no_grad():
        whole, _ = net.net(torch.cat([x for (x, _), _ in stream], dim=1))
        torch.testing.assert_close(torch.cat([net(*x) for x, _ in stream], dim=1), whole)
        model = credo.MAP(net, credo.Categorical())
        targets = torch.cat([y for _, y in stream], dim=1)
        expected = float(F.cross_entropy(whole.flatten(0, 1), targets.flatten()).exp())
    assert perplexity(model, stream) == pytest.approx(expected, rel=1e-5)


class Pair(NamedTuple):
    """A state with names."""

    hidden: Tensor
    cell: Tensor


class Named(LanguageModel):
    """A network whose state is a named tuple."""

    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Pair]:
        logits, new = super().forward(tokens, None if state is None else (state.hidden, state.cell))
        return logits, Pair(*new)


class Alone(nn.Module):
    """A network whose state is one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, 3, batch_first=True)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        output: tuple[Tensor, Tensor] = self.rnn(x[..., None].float(), state)
        return output


@pytest.mark.parametrize("make", [Cells, lambda: Named(VOCABULARY, 4), Alone])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_go_on_from_the_same_state(copied: Any, make: Any) -> None:
    for net in (CarriedState(make()), copied(CarriedState(make()))):
        x, start = torch.ones(3, 2, dtype=torch.int64), torch.ones(3, dtype=torch.bool)
        net(x, start)
        other = copied(net)
        torch.testing.assert_close(other(x, ~start), net(x, ~start), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 3), (0, 4, 3), (0, 2, 3, 3), (2, 0, 2, 3, 3)])
def test_rows_of_a_state_are_found_by_their_number(shape: tuple[int, ...]) -> None:
    """0 stands for the rows; only the row that starts forgets what it has read."""
    net, x, start = CarriedState(Memory(*shape)), torch.arange(15.0).view(5, 3), torch.zeros(5, dtype=torch.bool)
    net(x, ~start)
    start[2] = True
    net(x, start)
    expected = 2 * x.sum(1)
    expected[2] /= 2
    state = net.state_0
    torch.testing.assert_close(state, expected.view([-1 if s == 0 else 1 for s in shape]).expand_as(state))


def test_rows_do_not_go_on_from_a_state_of_other_rows() -> None:
    """Also where the state has as many layers as there are rows now."""
    net = make_net()
    four, two = torch.zeros(4, 5, dtype=torch.int64), torch.zeros(2, 5, dtype=torch.int64)
    net(four, torch.ones(4, dtype=torch.bool))
    with pytest.raises(InputError, match="2 rows cannot go on from the state of 4 rows"):
        net(two, torch.tensor([True, False]))
    torch.testing.assert_close(net(two, torch.ones(2, dtype=torch.bool)), net.net(two)[0], rtol=0, atol=0)
    model = credo.MAP(make_net(), credo.Categorical()).fit(make_stream(), epochs=1, progress=False, seed=0)
    with pytest.raises(InputError, match="2 rows cannot go on from the state of 4 rows"):
        model.predict((two, torch.zeros(2, dtype=torch.bool)))
    (x, start), y = next(iter(make_stream()))
    with pytest.raises(InputError, match="3 rows cannot go on from the state of 4 rows"):
        perplexity(model, [((x, start), y), ((x[:3], ~start[:3]), y[:3])])


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ("lstm", "net must be a network, a torch.nn.Module, got str"),
        (LanguageModel, "net must be a network, a torch.nn.Module, got type"),
        (credo.MAP(LanguageModel(5, 4), credo.Categorical()), r"got MAP; .* MAP\(CarriedState\(network\), ...\)"),
        (TransformerLanguageModel(5, 4, 1, 2), "a TransformerLanguageModel has no place for a state"),
    ],
)
def test_what_has_no_state_raises(net: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        CarriedState(net)


@pytest.mark.parametrize("start", [torch.ones(2, dtype=torch.bool), torch.ones(4), [True] * 4])
def test_starts_that_do_not_match_raise(start: Any) -> None:
    with pytest.raises(InputError, match=r"start must be bool \[4\], whether each row starts a sequence, got"):
        make_net()(torch.zeros(4, 5, dtype=torch.int64), start)


class Constant(nn.Module):
    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return x, self.state


def test_states_that_cannot_be_carried_raise() -> None:
    x = torch.zeros(5, 3)
    with pytest.raises(InputError, match=r"must count the 5 rows of x in dimension 0 or 1, got a tensor of \[2, 2\]"):
        CarriedState(Constant(torch.zeros(2, 2)))(x)
    with pytest.raises(InputError, match="must consist of tensors in tuples, lists and dictionaries, got int"):
        CarriedState(Constant(3))(x)
    with pytest.raises(InputError, match=r"in dimension 2, got a tensor of \[5, 3\]; pass row_dim"):
        CarriedState(Memory(0, 3), row_dim=2)(x)


@pytest.mark.parametrize("name", ["bayes", "dropout", "gru"])
def test_evidence_and_held_out_scores_carry_the_state_of_every_draw(name: str) -> None:
    """The ELBO of a stream is that of the rows as a whole, whatever the network has read before."""
    model = make_model(name)
    other = TokenStream(torch.arange(60) % VOCABULARY, batch_size=4, length=9)
    model.fit(make_stream(), epochs=1, validation=other, progress=False, seed=0)
    rows = [torch.cat(parts, dim=1) for parts in zip(*((x, y) for (x, _), y in other), strict=True)]
    whole = model.elbo(tuple(rows), samples=3, seed=0)
    assert model.elbo(other, samples=3, seed=0) == pytest.approx(whole, rel=1e-5)
    cuts = [p.mean for p in model.stream(other, samples=3, seed=0)]
    torch.testing.assert_close(torch.cat(cuts, dim=1), model.predict(rows[0], samples=3, seed=0).mean)


def test_that_draws_are_looped_over_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not after every epoch, nor for the last minibatch, which is shorter."""
    model, stream = make_model("bayes"), make_stream()
    model.fit(stream, epochs=3, validation=stream, progress=False, seed=0)
    model.elbo(stream, samples=3, seed=0)
    assert sum("prediction loops over draws" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("name", ["bayes", "dropout", "gru"])
def test_a_prediction_goes_on_from_the_state_of_the_network(name: str) -> None:
    """A network is tried on a few rows first, which must not change where it goes on."""
    model, (x, _) = make_model(name), next(iter(make_stream()))[0]
    model.fit(make_stream(), epochs=1, progress=False, seed=0)
    going_on = torch.zeros(4, dtype=torch.bool)
    first, again = (model.predict((x, going_on), samples=3, seed=0).mean for _ in range(2))
    assert torch.equal(first, again)
    model.net.reset_state()
    assert not torch.allclose(first, model.predict((x, going_on), samples=3, seed=0).mean)


def test_a_text_is_read_in_one_process() -> None:
    """Several would each read every other minibatch, and carry a state over the gap."""
    for model in (make_model("bayes"), make_model("gru")):
        with pytest.raises(InputError, match="trains in one process: devices=1"):
            model._training_task().check_device_count(2)


def test_laplace_says_that_it_needs_whole_sequences() -> None:
    with pytest.raises(UnsupportedError, match=r"forward=lambda net, x: net\(x\)\[0\], and whole sequences as rows"):
        credo.Laplace(make_net(), credo.Categorical())
    net, x = make_net(tied=False), torch.randint(0, VOCABULARY, (4, 5), generator=torch.Generator().manual_seed(1))
    model = credo.Laplace(net.net, credo.Categorical(), parameters="last_layer", forward=lambda net, x: net(x)[0]).fit(
        (x, x), epochs=0
    )
    assert model.predict(x).mean.shape == (4, 5, VOCABULARY)


@pytest.mark.parametrize("sharpening", [None, 1e-9])
def test_all_draws_of_a_training_step_go_on_from_the_same_state(sharpening: float | None) -> None:
    """Without noise in the weights, the loss of three draws is that of one."""

    def losses(samples: int) -> Tensor:
        model = credo.BayesByBackprop(
            make_net().double(), credo.Categorical(), initial_scale=1e-12, samples=samples, sharpening=sharpening
        )
        return torch.stack([model.train().nll(x, y).detach() for x, y in make_stream()])

    torch.testing.assert_close(losses(3), losses(1), rtol=1e-7, atol=0)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "bayes", "sharpened"])
def test_a_state_of_mixed_precision_has_that_of_the_weights(name: str) -> None:
    """Autocast returns it in bfloat16, with which the network does not go on where it is evaluated."""
    model = fit(name, epochs=2, precision="bf16-mixed")
    assert {state.dtype for state in model.net._stored()} == {torch.float32}
    x, going_on = torch.zeros(4, 5, dtype=torch.int64), torch.zeros(4, dtype=torch.bool)
    assert bool(model.predict((x, going_on), samples=2, seed=0).mean.isfinite().all())


def test_a_network_that_was_called_in_inference_mode_goes_on_and_trains() -> None:
    net, cuts = make_net(), list(make_stream())
    expected = [make_net().net(torch.cat([x for (x, _), _ in cuts[:2]], 1))[0][:, 5:]]
    with torch.inference_mode():
        net(*cuts[0][0])
    torch.testing.assert_close([net(*cuts[1][0])], expected)
    credo.MAP(net, credo.Categorical()).fit(make_stream(), epochs=1, seed=0)


def test_a_network_that_carries_its_state_compiles_without_a_break() -> None:
    net, cuts = CarriedState(Cells()), list(make_stream())
    compiled, twin = torch.compile(net, backend="eager", fullgraph=True), copy.deepcopy(net)
    for x, _ in cuts[:2]:
        torch.testing.assert_close(compiled(*x), twin(*x))


def test_a_shorter_cut_cannot_be_part_of_a_step_that_accumulates() -> None:
    with pytest.raises(InputError, match="of a TokenStream is as long as the others if its length divides the steps"):
        credo.MAP(make_net(), credo.Categorical()).fit(make_stream(), epochs=1, accumulate=2, progress=False)
    stream = TokenStream(torch.arange(4 * 28 + 1) % VOCABULARY, batch_size=4, length=7)
    credo.MAP(make_net(), credo.Categorical()).fit(stream, epochs=1, accumulate=3, progress=False)


def test_pieces_of_a_step_that_accumulates_go_on_from_each_other() -> None:
    """The gradient of two cuts in one step is that of their 8 rows; the second goes on from the first."""
    tokens = torch.randint(0, VOCABULARY, (41,), generator=torch.Generator().manual_seed(0))
    stream, net, twin = TokenStream(tokens, 4, 5), make_net().double(), make_net().double().net
    model = credo.MAP(net, credo.Categorical(), credo.Normal(0.0, 1e6))
    sgd = {"optimizer": torch.optim.SGD, "lr": 0.1, "schedule": "constant"}
    model.fit(stream, epochs=1, accumulate=2, progress=False, seed=0, **sgd)
    loss, state = torch.zeros((), dtype=torch.float64), None
    for (x, _), y in stream:
        logits, state = twin(x, state)
        state = tuple(part.detach() for part in state)
        loss = loss + F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / 8
    gradients = torch.autograd.grad(loss, list(twin.parameters()))
    for found, p, gradient in zip(net.net.parameters(), twin.parameters(), gradients, strict=True):
        torch.testing.assert_close(found, p - 0.1 * gradient, rtol=1e-6, atol=1e-9)
