"""Language models: dropout whose masks do not change with time, against cells stepped by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import credo
from credo import architectures
from credo.architectures import LanguageModel
from credo.errors import InputError
from credo.sequence import CarriedState

TOKENS = torch.randint(0, 9, (4, 6), generator=torch.Generator().manual_seed(0))


def make(**options: object) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(9, width=5, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_layers_are_those_of_torch(cell):
    net = make(cell=cell, layers=2)
    stacked = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[cell](5, 5, num_layers=2, batch_first=True)
    for k, layer in enumerate(net.layers):
        for name, p in layer.named_parameters():
            stacked.get_parameter(name.replace("_l0", f"_l{k}")).data.copy_(p)
    output, state = stacked(net.embedding(TOKENS))
    logits, final = net(TOKENS)
    torch.testing.assert_close(logits, net.decoder(output))
    for a, b in zip(final if cell == "lstm" else [final], state if cell == "lstm" else [state], strict=True):
        torch.testing.assert_close(a, b)


def test_tied_output_layer_is_one_parameter():
    names = [name for name, _ in make(tied=True).named_parameters()]
    assert "decoder.weight" not in names
    assert "decoder.weight" in [name for name, _ in make(tied=False).named_parameters()]
    assert credo.BayesByBackprop(make(tied=True)).posterior.names().count("embedding.weight") == 1


def test_input_masks_are_the_same_at_every_step_and_differ_between_rows():
    net = make(dropout=0.5).train()
    seen: list[Tensor] = []
    net.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    net(TOKENS)
    kept = seen[0] != 0
    assert bool((kept == kept[:, :1]).all())
    assert not bool((kept == kept[:1]).all())
    torch.testing.assert_close(seen[0], torch.where(kept, 2 * net.embedding(TOKENS), 0.0))


def test_recurrent_masks_drop_the_same_hidden_units_at_every_step():
    net = make(layers=1, cell="rnn", recurrent_dropout=0.5, tied=False).train()
    layer = net.layers[0]
    torch.manual_seed(3)
    logits, _ = net(TOKENS)
    torch.manual_seed(3)
    mask = nn.functional.dropout(torch.ones(5), 0.5)
    hidden, outputs = torch.zeros(4, 5), []
    for x in net.embedding(TOKENS).unbind(1):
        inputs = x @ layer.weight_ih_l0.T + layer.bias_ih_l0 + layer.bias_hh_l0
        hidden = torch.tanh(inputs + (hidden * mask) @ layer.weight_hh_l0.T)
        outputs.append(hidden)
    torch.testing.assert_close(logits, net.decoder(torch.stack(outputs, dim=1)))


def test_recurrent_masks_of_a_gru_are_on_the_products_with_weights():
    """The gates see h ∘ z; the part of h that is passed on is whole."""
    net = make(layers=1, cell="gru", recurrent_dropout=0.5, tied=False).train()
    layer = net.layers[0]
    torch.manual_seed(3)
    logits, _ = net(TOKENS)
    torch.manual_seed(3)
    mask = nn.functional.dropout(torch.ones(5), 0.5)
    hidden, outputs = torch.zeros(4, 5), []
    for x in net.embedding(TOKENS).unbind(1):
        from_x = (x @ layer.weight_ih_l0.T + layer.bias_ih_l0).chunk(3, dim=1)
        from_h = ((hidden * mask) @ layer.weight_hh_l0.T + layer.bias_hh_l0).chunk(3, dim=1)
        reset, update = (torch.sigmoid(a + b) for a, b in zip(from_x[:2], from_h[:2], strict=True))
        hidden = (1 - update) * torch.tanh(from_x[2] + reset * from_h[2]) + update * hidden
        outputs.append(hidden)
    torch.testing.assert_close(logits, net.decoder(torch.stack(outputs, dim=1)))


def test_word_dropout_drops_all_occurrences_of_a_word():
    net = make(word_dropout=0.5).train()
    seen: list[Tensor] = []
    net.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    net(TOKENS)
    dropped = (seen[0] == 0).all(-1)
    words = {word: set(dropped[word == TOKENS].tolist()) for word in TOKENS.unique().tolist()}
    assert all(len(values) == 1 for values in words.values())
    assert {True} in words.values()
    assert {False} in words.values()


def test_evaluation_mode_drops_nothing():
    with_dropout = make(dropout=0.5, recurrent_dropout=0.5, word_dropout=0.5).eval()
    torch.testing.assert_close(with_dropout(TOKENS)[0], make()(TOKENS)[0])


def test_draw_of_variational_dropout_is_one_function_for_all_rows():
    net = CarriedState(make(dropout=0.3, recurrent_dropout=0.3, word_dropout=0.1))
    model = credo.MCDropout(net, credo.Categorical())
    start = torch.ones(4, dtype=torch.bool)
    same = TOKENS[:1].expand(4, -1)
    p = model.predict((same, start), samples=8, seed=0)
    torch.testing.assert_close(p.mean, p.mean[:1].expand_as(p.mean))
    assert bool((p.epistemic > 0).any())
    one = model.predict((TOKENS[:1], start[:1]), samples=8, seed=0)
    torch.testing.assert_close(one.mean, p.mean[:1])


def test_network_is_rebuilt_from_its_description():
    net = make(layers=1, cell="gru", tied=False, dropout=0.2)
    twin = architectures.build(**architectures.describe(net))
    twin.load_state_dict(net.state_dict())
    torch.testing.assert_close(twin.eval()(TOKENS)[0], net.eval()(TOKENS)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": 0}, "vocabulary must be"),
        ({"vocabulary": 5, "cell": "transformer"}, "unknown cell 'transformer'"),
        ({"vocabulary": 5, "dropout": 1.0}, r"dropout is the rate .* \[0, 1\)"),
        ({"vocabulary": 5, "word_dropout": None}, "word_dropout must be a finite number, got None"),
        ({"vocabulary": 5, "cell": "LSTM"}, "unknown cell 'LSTM': did you mean 'lstm'"),
    ],
)
def test_bad_arguments_raise(options, message):
    with pytest.raises(InputError, match=message):
        LanguageModel(**options)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([[0, 7]]), "tokens must be from 0 to 6, for a vocabulary of 7, got 0 to 7"),
        (torch.tensor([[-1, 3]]), "got -1 to 3"),
        (torch.zeros(2, 3), r"int64 indices \[B, T\], got torch.float32 of \[2, 3\]"),
        (torch.zeros(3, dtype=torch.int64), r"int64 indices \[B, T\], got torch.int64 of \[3\]"),
    ],
)
def test_bad_tokens_raise(tokens, message):
    with pytest.raises(InputError, match=message):
        LanguageModel(7, width=4)(tokens)


@pytest.mark.parametrize(
    ("state", "found"), [(3, "got int;"), (("a", torch.zeros(2, 1, 4)), r"got str, \[2, 1, 4\];"), ([], "got none;")]
)
def test_bad_states_raise(state, found):
    with pytest.raises(InputError, match=r"state must be two tensors of \[2, 1, 4\], " + found):
        LanguageModel(7, width=4)(torch.zeros(1, 3, dtype=torch.int64), state)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_any_output_layer_goes_on_from_a_state(cell):
    """Such as that of SNGP, which is not one linear layer."""
    net = LanguageModel(7, width=4, cell=cell, tied=False)
    tokens = torch.arange(6).view(1, 6)
    whole, _ = net(tokens)
    net.decoder = nn.Sequential(net.decoder, nn.Identity())  # type: ignore[assignment]
    _, state = net(tokens[:, :3])
    torch.testing.assert_close(net(tokens[:, 3:], state)[0], whole[:, 3:])
