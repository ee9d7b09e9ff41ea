"""Streams, carried states and perplexities against passes over the whole sequence."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import credo
from credo.architectures import LanguageModel, TransformerLanguageModel
from credo.errors import InputError, UnsupportedError
from credo.sequence import (
    CarriedState,
    TokenStream,
    dynamic_evaluation,
    entropy_gap,
    perplexity,
    perplexity_bound,
    token_entropy,
    token_log_likelihood,
)

VOCABULARY = 7


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (101,), generator=torch.Generator().manual_seed(0))


def make_net(cell: str = "lstm", **options: object) -> CarriedState:
    torch.manual_seed(0)
    return CarriedState(LanguageModel(VOCABULARY, width=6, layers=2, cell=cell, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        np.frombuffer(b"a text of bytes", np.uint8),
        np.arange(15, dtype=np.int16),
        b"a text of bytes",
        range(15),
        pd.Series(range(15), index=range(1, 16)),
    ],
)
def test_stream_takes_integers_of_any_width(given):
    (x, _), y = next(iter(TokenStream(given, batch_size=2, length=20)))
    assert x.dtype == y.dtype == torch.int64
    assert x.flatten().tolist() == list(given[:14])


def test_stream_reads_every_row_in_order_and_predicts_the_next_token(tokens):
    stream = TokenStream(tokens, batch_size=3, length=8)
    inputs = torch.cat([x for (x, _), _ in stream], dim=1)
    targets = torch.cat([y for _, y in stream], dim=1)
    assert torch.equal(inputs.flatten(), tokens[:99])
    assert torch.equal(targets.flatten(), tokens[1:100])
    assert [bool(start.all()) for (_, start), _ in stream] == [True, False, False, False, False]
    assert [x.shape[1] for (x, _), _ in stream] == [8, 8, 8, 8, 1]
    assert stream.n_tokens == 99
    assert stream.n_data == 3 * 5


def test_reading_a_stream_leaves_the_random_state_alone(tokens):
    before = torch.get_rng_state()
    list(TokenStream(tokens, batch_size=3, length=8))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        (torch.zeros(3, 3, dtype=torch.int64), {}, "one sequence of integers"),
        (torch.zeros(9), {}, "one sequence of integers"),
        ("the cat sat", {}, "tokens must be integers, the indices of words in a vocabulary, got str"),
        (["the", "cat"], {}, "got str: number the words first"),
        (torch.arange(20), {"batch_size": 20}, "too few for 20 rows"),
        (torch.arange(20), {"batch_size": 2, "length": 0}, "length must be"),
    ],
)
def test_bad_streams_raise(tokens, options, message):
    with pytest.raises(InputError, match=message):
        TokenStream(tokens, **options)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_cuts_with_carried_state_equal_one_pass_over_the_sequence(tokens, cell):
    net = make_net(cell)
    stream = TokenStream(tokens, batch_size=4, length=6)
    with torch.no_grad():
        by_cut = torch.cat([net(*x) for x, _ in stream], dim=1)
        whole, _ = net.net(tokens[:100].view(4, 25))
        torch.testing.assert_close(by_cut, whole)
        again = torch.cat([net(*x) for x, _ in stream], dim=1)
    torch.testing.assert_close(again, by_cut, rtol=0, atol=0)  # the first cut starts anew


def test_only_rows_that_start_forget_their_state(tokens):
    net = make_net()
    first, second = tokens[:10].view(2, 5), tokens[10:20].view(2, 5)
    with torch.no_grad():
        net(first, torch.tensor([True, True]))
        output = net(second, torch.tensor([False, True]))
        torch.testing.assert_close(output[:1], net.net(torch.cat([first, second], dim=1))[0][:1, 5:])
        torch.testing.assert_close(output[1:], net.net(second)[0][1:])


def test_state_is_not_saved_and_can_be_reset(tokens):
    net = make_net()
    x, goes_on = tokens[:10].view(2, 5), torch.zeros(2, dtype=torch.bool)
    first = net(x, ~goes_on)
    assert not any("state" in name for name in net.state_dict())
    assert not torch.equal(net(x, goes_on), first)
    net.reset_state()
    torch.testing.assert_close(net(x, goes_on), first, rtol=0, atol=0)


class Stateless(nn.Module):
    def forward(self, x: Tensor, state: Tensor | None) -> Tensor:
        return x


def test_networks_without_a_state_raise():
    with pytest.raises(InputError, match="must return its output and its new state"):
        CarriedState(Stateless())(torch.zeros(2, 4, 1), torch.ones(2).bool())
    with pytest.raises(InputError, match="has 2 tensors, not 1; pass n_states"):
        CarriedState(nn.LSTM(2, 3, batch_first=True), n_states=1)(torch.zeros(2, 4, 2), torch.ones(2).bool())


@pytest.mark.parametrize("method", ["map", "bbb"])
def test_loss_of_a_cut_goes_on_from_the_cut_before_and_has_its_share_of_the_kl(tokens, method):
    """Σ_rows loss = −Σ log p(cut) + KL/C, with the gradient ending at the cut."""
    net = make_net().double()
    stream = TokenStream(tokens, batch_size=4, length=5)
    cuts = list(stream)
    if method == "map":
        model: credo.MAP | credo.BayesByBackprop = credo.MAP(net, credo.Categorical())
    else:
        model = credo.BayesByBackprop(net, credo.Categorical(), initial_scale=1e-12, kl_warmup=0)
    model.train()
    for x, y in cuts[:2]:
        loss = model.loss(x, y, n_data=stream.n_data)
    twin = make_net().double().net
    with torch.no_grad():
        _, state = twin(cuts[0][0][0])
    logits, _ = twin(cuts[1][0][0], state)
    nll = F.cross_entropy(logits.flatten(0, 1), cuts[1][1].flatten(), reduction="sum")
    torch.testing.assert_close(4 * loss, nll + model.kl() / len(cuts), rtol=1e-9, atol=0)
    loss.backward()
    (nll / 4).backward()
    prior = {name: p.detach() / stream.n_data for name, p in twin.named_parameters()}  # ∇ of ‖w‖²/2, over n_data
    for name, p in twin.named_parameters():
        assert p.grad is not None
        torch.testing.assert_close(net.net.get_parameter(name).grad, p.grad + prior[name], rtol=1e-6, atol=1e-9)


def test_number_of_data_is_known_to_fit(tokens):
    stream = TokenStream(tokens, batch_size=4, length=5)
    model = credo.MAP(make_net(), credo.Categorical()).fit(stream, epochs=1, seed=0)
    assert model.n_data == stream.n_data == 20


def test_perplexity_of_a_uniform_model_is_the_vocabulary_size(tokens):
    net = make_net(tied=False)
    nn.init.zeros_(net.net.decoder.weight)
    nn.init.zeros_(net.net.decoder.bias)
    model = credo.MAP(net, credo.Categorical())
    assert perplexity(model, TokenStream(tokens, 2, 9)) == pytest.approx(VOCABULARY, rel=1e-6)


def test_perplexity_averages_probabilities_over_draws_that_carry_their_own_state(tokens):
    net = make_net()
    model = credo.BayesByBackprop(net, credo.Categorical(), initial_scale=0.3)
    stream = TokenStream(tokens, batch_size=2, length=7)
    inputs, targets = tokens[:100].view(2, 50), tokens[1:101].view(2, 50)
    draws = [model.posterior.draw(5, s) for s in range(3)]
    whole = []
    for draw in draws:
        weights = {name.removeprefix("net."): weight for name, weight in draw.items()}
        logits = torch.func.functional_call(net.net, weights, (inputs,))[0]
        whole.append(logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0].double())
    expected = torch.stack(whole).logsumexp(0) - math.log(3)
    found = token_log_likelihood(model, stream, samples=3, seed=5)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-5)
    assert perplexity(model, stream, 3, 5) == pytest.approx(math.exp(-float(expected.mean())), rel=1e-5)
    assert net.state_0 is None  # the network itself did not read anything


@pytest.mark.parametrize("weights", [None, [0.2, 0.0, 0.8]])
def test_ensemble_averages_the_probabilities_of_its_members(tokens, weights):
    model = credo.DeepEnsemble(make_net(), members=3, likelihood=credo.Categorical())
    model.set_weights(weights)
    stream = TokenStream(tokens, batch_size=2, length=7)
    own = torch.stack([token_log_likelihood(member, stream) for member in model.members])
    shares = torch.tensor(weights or [1 / 3] * 3, dtype=torch.float64)
    expected = (own.exp() * shares[:, None, None]).sum(0).log()
    torch.testing.assert_close(token_log_likelihood(model, stream, samples=3), expected)
    torch.testing.assert_close(token_log_likelihood(model, stream), own[2 if weights else 0])
    log_p = []
    for word in range(VOCABULARY):
        targets = [(x, torch.full_like(y, word)) for x, y in stream]
        log_p.append(token_log_likelihood(model, targets, samples=3))  # type: ignore[arg-type]
    entropy = token_entropy(model, stream, samples=3)
    torch.testing.assert_close(entropy, -sum(log.exp() * log for log in log_p), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("measure", [perplexity_bound, dynamic_evaluation])
def test_measures_of_one_network_refuse_an_ensemble(tokens, measure):
    model = credo.DeepEnsemble(make_net(), members=2, likelihood=credo.Categorical())
    with pytest.raises(UnsupportedError, match=r"call it for each of model\.members"):
        measure(model, TokenStream(tokens, 2, 5))


@pytest.mark.parametrize("measure", [perplexity, token_entropy, perplexity_bound, dynamic_evaluation])
@pytest.mark.parametrize("given", [torch.arange(7), [1, 2, 3], "text"])
def test_tokens_in_place_of_a_stream_raise(measure, given):
    with pytest.raises(InputError, match="stream must be minibatches that continue each other"):
        measure(credo.MAP(make_net(), credo.Categorical()), given)


def test_dynamic_evaluation_learns_from_the_text_and_leaves_the_model_alone():
    stream = TokenStream(torch.arange(200) % 4, batch_size=1, length=10)
    model = credo.MAP(make_net(), credo.Categorical())
    before = {name: p.clone() for name, p in model.state_dict().items()}
    static = token_log_likelihood(model, stream)
    torch.testing.assert_close(dynamic_evaluation(model, stream, lr=0.0), static)
    torch.testing.assert_close(dynamic_evaluation(model, stream, lr=0.0, decay=0.5), static)
    adapted = dynamic_evaluation(model, stream, lr=1.0)
    torch.testing.assert_close(adapted[:, :10], static[:, :10])  # scored before it is learned from
    assert float(adapted[:, -20:].mean()) > float(static[:, -20:].mean()) + 0.3
    for name, p in model.state_dict().items():
        assert torch.equal(p, before[name])


@pytest.mark.parametrize(("lr", "decay"), [(1.0, 0.0), (1.0, 0.3), (2.0, 1.0)])
def test_dynamic_evaluation_takes_the_steps_of_its_equation(tokens, lr, decay):
    """By a loop in plain torch; the frozen embedding does not learn."""
    net, stream = make_net(tied=False).double(), TokenStream(tokens, 2, 7)
    net.net.embedding.requires_grad_(False)
    found = dynamic_evaluation(credo.MAP(net, credo.Categorical()), stream, lr, decay)
    twin, state, expected = make_net(tied=False).double().net, None, []
    learning = [p for name, p in twin.named_parameters() if name != "embedding.weight"]
    trained = [p.detach().clone() for p in learning]
    for (x, _), y in stream:
        logits, state = twin(x, state)
        state = tuple(part.detach() for part in state)
        log_p = logits.log_softmax(-1).gather(-1, y[..., None])[..., 0]
        expected.append(log_p.detach())
        for p, start, gradient in zip(learning, trained, torch.autograd.grad(-log_p.mean(), learning), strict=True):
            p.data += -lr * gradient + decay * (start - p.data)
    torch.testing.assert_close(found, torch.cat(expected, dim=1))


def with_padding(stream: TokenStream, label: int) -> list[tuple[tuple[Tensor, Tensor], Tensor]]:
    """The minibatches, with some targets replaced; those of the second minibatch all."""
    hidden = [(torch.arange(y.shape[1]) > 3) | (i == 1) for i, (_, y) in enumerate(stream)]
    return [(x, torch.where(mask, label, y)) for (x, y), mask in zip(stream, hidden, strict=True)]


def test_ignored_targets_do_not_count(tokens):
    """Nor do they teach: dynamic evaluation is that of a minibatch without them."""
    stream = TokenStream(tokens, batch_size=2, length=7)
    model = credo.MAP(make_net(), credo.Categorical(ignore_index=-100))
    padded = with_padding(stream, -100)
    seen = torch.cat([y for _, y in padded], dim=1) >= 0
    expected = token_log_likelihood(credo.MAP(make_net(), credo.Categorical()), stream)
    found = token_log_likelihood(model, padded)
    assert torch.equal(found.isnan(), ~seen)
    torch.testing.assert_close(found[seen], expected[seen])
    mean = math.exp(-float(expected[seen].mean()))
    assert perplexity(model, padded) == pytest.approx(mean, rel=1e-6)
    assert perplexity_bound(model, padded, samples=0) == pytest.approx(mean, rel=1e-6)
    torch.testing.assert_close(token_entropy(model, padded), token_entropy(model, stream))
    learned = dynamic_evaluation(model, padded, lr=1.0)
    assert torch.equal(learned.isnan(), ~seen)
    torch.testing.assert_close(learned[:, :14][seen[:, :14]], expected[:, :14][seen[:, :14]])
    assert not torch.allclose(learned[:, 14:][seen[:, 14:]], expected[:, 14:][seen[:, 14:]])


class LosesItself(nn.Module):
    """Its outputs are NaN after token 3, as those of a network whose weights overflow."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_net().net

    def forward(self, x: Tensor, state: object) -> tuple[Tensor, object]:
        logits, state = self.inner(x, state)
        return torch.where((x == 3)[..., None], math.nan, logits), state


@pytest.mark.parametrize("ignore_index", [None, -100])
def test_tokens_without_a_probability_are_not_left_out(tokens, ignore_index):
    model = credo.MAP(CarriedState(LosesItself()), credo.Categorical(ignore_index=ignore_index))
    stream = TokenStream(tokens, batch_size=2, length=7)
    assert math.isnan(perplexity(model, stream))
    assert math.isnan(perplexity_bound(model, stream, samples=0))


@pytest.mark.parametrize("measure", [perplexity, token_entropy, perplexity_bound, dynamic_evaluation])
def test_measures_are_the_same_in_inference_mode(tokens, measure):
    """Two of them need gradients, of which torch keeps none there."""
    model = credo.BayesByBackprop(make_net(), credo.Categorical(), sharpening=0.1)
    stream = TokenStream(tokens, batch_size=2, length=7)
    options = {} if measure is dynamic_evaluation else {"samples": 1, "seed": 0}
    expected = torch.as_tensor(measure(model, stream, **options))
    with torch.inference_mode():
        found = torch.as_tensor(measure(model, stream, **options))
    assert torch.equal(found, expected)


class ClassesFirst(nn.Module):
    """Logits ``[B, V, T]`` from the same network, with as many steps as tokens: 7."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_net().net

    def forward(self, x: Tensor, state: object) -> tuple[Tensor, object]:
        logits, state = self.inner(x, state)
        return logits.transpose(1, 2), state


class Noisy(ClassesFirst):
    """Logits, which may be shifted by any number, with noise of a standard deviation of e⁻¹⁰."""

    def forward(self, x: Tensor, state: object) -> tuple[Tensor, object]:
        logits, state = self.inner(x, state)
        return torch.cat([logits - 40.0, torch.full_like(logits, -20.0)], -1), state


@pytest.mark.parametrize(
    ("net", "likelihood"),
    [
        (ClassesFirst, credo.Categorical(class_dim=1)),
        (Noisy, credo.Categorical(logit_noise=True, noise_samples=4)),
        (lambda: make_net().net, credo.Categorical(weight=torch.linspace(0.1, 3.0, VOCABULARY))),
    ],
)
def test_tokens_are_scored_by_the_likelihood_of_the_model(tokens, net, likelihood):
    """Weights of classes are for training only. The noise of logits, e⁻¹⁰, is within the tolerance."""
    stream = TokenStream(tokens[:99], batch_size=2, length=7)
    plain, model = credo.MAP(make_net(), credo.Categorical()), credo.MAP(CarriedState(net()), likelihood)
    near = {"rtol": 0.0, "atol": 1e-3}
    torch.testing.assert_close(token_log_likelihood(model, stream), token_log_likelihood(plain, stream), **near)
    torch.testing.assert_close(token_entropy(model, stream), token_entropy(plain, stream), **near)
    assert perplexity_bound(model, stream) == pytest.approx(perplexity(plain, stream), rel=1e-3)
    found, expected = (dynamic_evaluation(each, stream, lr=0.5) for each in (model, plain))
    torch.testing.assert_close(found, expected, **near)


@pytest.mark.parametrize("method", ["layers", "weights", "swag"])
def test_bound_is_by_draws_of_every_method(tokens, method):
    """exp of the mean NLL over as many draws as minibatches; with one minibatch, of the draws of a prediction."""
    stream = TokenStream(tokens, batch_size=2, length=50)
    if method == "layers":
        model = credo.MCDropout(make_net(dropout=0.5, word_dropout=0.5), credo.Categorical())
    elif method == "weights":
        model = credo.MCDropout(make_net(), credo.Categorical(), p=0.5)
    else:
        model = credo.SWAG(make_net(), credo.Categorical()).fit(stream, epochs=4, lr=1.0, progress=False, seed=0)
    inputs, targets = tokens[:100].view(2, 50), tokens[1:101].view(2, 50)
    draws = model.predict(inputs, samples=3, seed=0).draws
    expected = -draws.log().gather(-1, targets.expand(3, -1, -1)[..., None]).mean()
    assert perplexity_bound(model, stream, 3, seed=0) == pytest.approx(math.exp(float(expected)), rel=1e-5)
    assert abs(math.log(perplexity_bound(model, stream, 0)) - float(expected)) > 1e-4


@pytest.mark.parametrize("measure", [perplexity, token_entropy, perplexity_bound, dynamic_evaluation])
def test_a_stream_without_minibatches_raises(measure):
    with pytest.raises(InputError, match="stream yielded no minibatches"):
        measure(credo.MAP(make_net(), credo.Categorical()), [])


def test_entropy_of_a_uniform_model_is_that_of_the_vocabulary(tokens):
    net = make_net(tied=False)
    nn.init.zeros_(net.net.decoder.weight)
    nn.init.zeros_(net.net.decoder.bias)
    found = token_entropy(credo.MAP(net, credo.Categorical()), TokenStream(tokens, 2, 9))
    torch.testing.assert_close(found, torch.full((2, 50), math.log(VOCABULARY), dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("samples", [0, 3])
def test_entropy_is_minus_the_expected_log_likelihood_under_the_model(tokens, samples):
    """Σ_w p(w) log p(w), with p(w) from the log likelihood of streams whose targets are all w."""
    model = credo.BayesByBackprop(make_net(), credo.Categorical(), initial_scale=0.3)
    stream = TokenStream(tokens, batch_size=2, length=7)
    logs = []
    for word in range(VOCABULARY):
        targets = [(x, torch.full_like(y, word)) for x, y in stream]
        logs.append(token_log_likelihood(model, targets, samples, seed=5))  # type: ignore[arg-type]
    log_p = torch.stack(logs)
    torch.testing.assert_close(log_p.logsumexp(0), torch.zeros(2, 50, dtype=torch.float64), rtol=0, atol=1e-5)
    found = token_entropy(model, stream, samples, seed=5)
    torch.testing.assert_close(found, -(log_p.exp() * log_p).sum(0), rtol=1e-5, atol=1e-5)


class KnowsCounting(nn.Module):
    """Is certain of the next token if the last two count upwards; else all are equally probable."""

    def __init__(self) -> None:
        super().__init__()
        self.certainty = nn.Parameter(torch.tensor(1e3))

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        last = torch.full((1, len(x)), -1.0) if state is None else state
        before = torch.cat([last.T.long(), x[:, :-1]], dim=1)
        counts = x == (before + 1) % VOCABULARY
        logits = self.certainty * F.one_hot((x + 1) % VOCABULARY, VOCABULARY) * counts[..., None]
        return logits, x[None, :, -1].float()


def test_a_model_that_counts_upwards_is_less_certain_of_the_reversed_text():
    """Forwards the entropy is 0, and log V at no token but the first of a row that does not follow on the zero state.

    The rows start at 0, 2 and 4, after a state of −1 in the first call, so that two of three are uncertain at first.
    """
    text = torch.arange(3 * 51 + 1) % VOCABULARY
    model = credo.MAP(CarriedState(KnowsCounting(), n_states=1), credo.Categorical())
    found = entropy_gap(model, text, batch_size=3, length=10)
    assert entropy_gap(model, text.tolist(), batch_size=3, length=10) == found
    uniform = math.log(VOCABULARY)
    assert found.text == pytest.approx(uniform * 2 / (3 * 51), rel=1e-5)
    assert found.reversed == pytest.approx(uniform, rel=1e-5)
    assert found.gap == found.reversed - found.text


@pytest.mark.parametrize("sharpening", [None, 0.1])
def test_bound_is_the_mean_nll_of_the_cuts_and_leaves_the_carried_state(tokens, sharpening):
    """Without noise in the weights the bound is exp of the mean NLL, whatever the state was before."""
    net = make_net()
    model = credo.BayesByBackprop(net, credo.Categorical(), initial_scale=1e-9, sharpening=sharpening)
    stream = TokenStream(tokens, batch_size=4, length=5)
    for x, y in list(stream)[:2]:
        model.loss(x, y, n_data=20)
    state, values = net.state_0, net.state_0.clone()
    bound = perplexity_bound(model, TokenStream(tokens, batch_size=2, length=5), seed=0)
    if sharpening is None:
        assert bound == pytest.approx(perplexity(model, TokenStream(tokens, batch_size=2, length=5)), rel=1e-5)
        again = perplexity_bound(model, TokenStream(tokens, batch_size=2, length=5), samples=0)
        assert again == pytest.approx(bound, rel=1e-5)
    else:  # from the mean weights and from draws that hardly differ, with the same noise around the step
        again = perplexity_bound(model, TokenStream(tokens, batch_size=2, length=5), samples=20, seed=1)
        mean = [perplexity_bound(model, TokenStream(tokens, batch_size=2, length=5), 0, seed) for seed in range(20)]
        error = torch.tensor(mean).std().item() / math.sqrt(10)  # of the difference of two means of 20
        assert again == pytest.approx(sum(mean) / 20, abs=4 * error)
    assert net.state_0 is state  # where a captured step would write
    assert torch.equal(state, values)


@pytest.mark.parametrize("measure", [perplexity_bound, dynamic_evaluation])
def test_recurrent_layers_keep_the_mode_in_which_cudnn_has_gradients(tokens, measure):
    net = CarriedState(Stacked())
    seen: list[tuple[bool, bool, float]] = []
    Stacked.seen = seen
    model = credo.BayesByBackprop(net, credo.Categorical(), sharpening=0.1).eval()
    measure(model, TokenStream(tokens, batch_size=4, length=5))
    assert set(seen) == {(False, True, 0.0)}
    assert not net.net.rnn.training
    assert net.net.rnn.dropout == 0.5


class Stacked(nn.Module):
    """A network whose recurrent layer has dropout of its own; notes modes and rates."""

    seen: list[tuple[bool, bool, float]]

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.rnn = nn.LSTM(4, VOCABULARY, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        self.seen.append((self.training, self.rnn.training, self.rnn.dropout))
        output: tuple[Tensor, tuple[Tensor, Tensor]] = self.rnn(self.embedding(x), state)
        return output


def test_scores_of_a_float64_network_have_its_precision(tokens):
    net, stream = make_net().double(), TokenStream(tokens, 2, 7)
    model = credo.MAP(net, credo.Categorical())
    with torch.no_grad():
        log_p = net.net(torch.cat([x for (x, _), _ in stream], dim=1))[0].log_softmax(-1)
    y = torch.cat([y for _, y in stream], dim=1)
    exact = {"rtol": 1e-13, "atol": 0.0}  # a few hundred roundings of double precision
    torch.testing.assert_close(token_log_likelihood(model, stream), log_p.gather(-1, y[..., None])[..., 0], **exact)
    torch.testing.assert_close(token_entropy(model, stream), -(log_p.exp() * log_p).sum(-1), **exact)


def test_cuts_of_different_lengths_are_predicted_one_by_one(tokens):
    model, stream = credo.MAP(make_net(), credo.Categorical()), TokenStream(tokens, 2, 7)
    with pytest.raises(InputError, match=r"cannot be joined: \[7\] and \[1\]; model.stream\(loader\) yields them"):
        model.predict(stream)
    assert [p.mean.shape[1] for p in model.stream(stream)] == [7] * 7 + [1]


def test_networks_and_targets_that_do_not_match_raise(tokens):
    stream, likelihood = TokenStream(tokens, 2, 5), credo.Categorical()
    transformer = TransformerLanguageModel(VOCABULARY, width=4, layers=1, heads=2, context=5)
    for measure in (perplexity, perplexity_bound, dynamic_evaluation):
        with pytest.raises(InputError, match=r"a TransformerLanguageModel is not called with .* net\(x\[0\]\)"):
            measure(credo.MAP(transformer, likelihood), stream)
        with pytest.raises(InputError, match=r"state must be two tensors of \[2, 2, 6\], got \[2\]; CarriedState"):
            measure(credo.MAP(make_net().net, likelihood), stream)
    found = perplexity(credo.MAP(transformer, likelihood, forward=lambda net, x: net(x[0])), stream)
    transformer.eval()
    nll = [F.cross_entropy(transformer(x).flatten(0, 1), y.flatten(), reduction="sum") for (x, _), y in stream]
    assert found == pytest.approx(math.exp(float(torch.stack(nll).detach().sum()) / stream.n_tokens), rel=1e-5)
    with pytest.raises(InputError, match=f"targets must be from 0 to {VOCABULARY - 1}, for a vocabulary of"):
        perplexity(credo.MAP(make_net(), likelihood), TokenStream([0, 1, 2, VOCABULARY], 1, 3))


def test_other_likelihoods_raise(tokens):
    with pytest.raises(InputError, match="need a Categorical likelihood"):
        perplexity(credo.MAP(make_net(), credo.Gaussian(0.1)), TokenStream(tokens, 2, 5))
