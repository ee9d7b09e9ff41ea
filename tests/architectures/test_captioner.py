"""The captioner: shapes, word by word against all words at once, attention, and every method of inference."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

import credo
from credo import architectures
from credo.architectures import Captioner
from credo.architectures._base import drop_units
from credo.errors import InputError

PADDING = -1


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 2, 13, 13, generator=generator), torch.randint(0, 6, (3, 5), generator=generator)


def make_net(**options: float) -> Captioner:
    torch.manual_seed(0)
    return Captioner(6, in_channels=2, size=13, channels=(4, 5), width=7, embedding=3, layers=2, **options)


def test_word_by_word_is_the_same_as_all_words_at_once(batch):
    images, tokens = batch
    net = make_net().eval()
    logits = net(images, tokens)
    assert logits.shape == (3, 5, 6)
    state = net.encode(images)
    for t in range(5):
        found, state = net.step(tokens[:, t], state)
        torch.testing.assert_close(found, logits[:, t])
    assert state.places.shape == (3, 16, 7)  # 13 is halved to 7 and 4


def test_a_word_depends_on_the_words_before_it_only(batch):
    images, tokens = batch
    net = make_net().eval()
    changed = tokens.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 6
    before, after = net(images, tokens), net(images, changed)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_attention_to_one_place_reads_its_features(batch):
    """With features u_l that differ along the query by much, the context is that of the nearest place."""
    net = make_net().eval()
    state = net.encode(batch[0])
    with torch.no_grad():
        hidden, _ = net.decoder.lstm(torch.cat([state.features[:, None], net.decoder.embedding(batch[1][:, :1])], -1))
        query = net.decoder.query(hidden)[:, 0]
        places = torch.zeros(3, 16, 7)
        places[:, 4] = 1e4 * query / query.norm(dim=-1, keepdim=True) ** 2
        logits, _ = net.step(batch[1][:, 0], state._replace(places=places))
        expected = net.decoder.output(net.decoder.combine(torch.cat([hidden[:, 0], places[:, 4]], -1)).tanh())
    torch.testing.assert_close(logits, expected)


def test_dropout_is_the_same_at_every_step():
    torch.manual_seed(0)
    x = drop_units(torch.ones(4, 9, 7), 0.5, training=True)
    assert (x == x[:, :1]).all()
    assert set(x.unique().tolist()) == {0.0, 2.0}
    assert not (x == x[:1]).all()


def test_build_from_json_description_gives_the_same_network(batch):
    net = make_net(dropout=0.1)
    again = architectures.build(**json.loads(json.dumps(architectures.describe(net))))
    again.load_state_dict(net.state_dict())
    assert torch.equal(again.eval()(*batch), net.eval()(*batch))
    covered = {id(p) for m in net.modules() if hasattr(m, "reset_parameters") for p in m.parameters(recurse=False)}
    assert covered == {id(p) for p in net.parameters()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": 0}, "vocabulary must be"),
        ({"channels": ()}, "at least one width"),
        ({"size": 7}, "an image of 7×7 cannot be halved 3 times"),
        ({"dropout": 1.0}, r"must lie in \[0, 1\)"),
    ],
)
def test_invalid_arguments_raise(options, message):
    with pytest.raises(InputError, match=message):
        Captioner(**{"vocabulary": 5, **options})


@pytest.mark.parametrize(
    ("images", "tokens", "message"),
    [
        (torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, dtype=torch.int64), r"images must have shape \[N, 1, 8, 8\]"),
        (
            torch.zeros(2, 1, 8, 8),
            torch.full((2, 3), 5),
            "tokens must be from 0 to 4, .* got 5 to 5",
        ),
        (torch.zeros(2, 1, 8, 8), torch.zeros(2, 3), "tokens must be int64 indices"),
        (torch.zeros(2, 1, 8, 8), torch.zeros(3, 3).long(), r"tokens for each of the 2 images, got \[3, 3\]"),
    ],
)
def test_bad_inputs_raise(images, tokens, message):
    net = Captioner(5, size=8, channels=(2, 2), width=4, embedding=3)
    with pytest.raises(InputError, match=message):
        net(images, tokens)


METHODS = {
    "Bayes by Backprop": lambda net, likelihood: credo.BayesByBackprop(net, likelihood, temperature=0.1),
    "Bayesian decoder": lambda net, likelihood: credo.BayesByBackprop(
        net, likelihood, bayesian="decoder.*", estimator="weight", temperature=0.1
    ),
    "MC dropout": lambda net, likelihood: credo.MCDropout(net, likelihood),
    "MC dropout before every layer": lambda net, likelihood: credo.MCDropout(net, likelihood, p=0.05),
    "SWAG": lambda net, likelihood: credo.SWAG(net, likelihood),
    "MAP": lambda net, likelihood: credo.MAP(net, likelihood),
    "ensemble": lambda net, likelihood: credo.DeepEnsemble(net, members=2, likelihood=likelihood),
}


@pytest.mark.parametrize("method", METHODS)
def test_methods_learn_captions(method, tmp_path):
    """A pair of inputs, targets ``[B, T]`` and ignored positions go through fit, predict and save.

    The caption of a bright image is 1 2 0, that of a dark one 2 0 and padding. Half of it would be right by chance.
    """
    generator = torch.Generator().manual_seed(0)
    bright = torch.rand(40, generator=generator) > 0.5
    images = bright.float().view(-1, 1, 1, 1) + 0.1 * torch.randn(40, 1, 8, 8, generator=generator)
    y = torch.where(bright[:, None], torch.tensor([1, 2, 0]), torch.tensor([2, 0, PADDING]))
    before = torch.cat([torch.zeros(40, 1, dtype=torch.int64), y[:, :2]], 1)
    torch.manual_seed(0)
    net = Captioner(3, size=8, channels=(4, 4), width=8, embedding=3, dropout=0.1)
    model = METHODS[method](net, credo.Categorical(ignore_index=PADDING))
    model.fit(((images, before), y), epochs=30, lr=2e-2, batch_size=8, seed=0, progress=False)
    p = model.predict((images, before), samples=4, seed=0)
    assert p.mean.shape == (40, 3, 3)
    assert p.epistemic.shape == (40, 3)
    assert credo.metrics.accuracy(p, y) > 0.95
    model.save(tmp_path / "run")
    again = credo.load(tmp_path / "run")
    torch.testing.assert_close(again.predict((images, before), samples=4, seed=0).mean, p.mean)
