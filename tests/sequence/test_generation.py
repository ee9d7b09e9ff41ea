"""Generated sequences against teacher-forced predictions and against exhaustive search."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.architectures import Captioner
from credo.errors import InputError, UnsupportedError
from credo.sequence import Generated, generate

VOCABULARY, END, LENGTH = 4, 0, 3
LIKELIHOOD = credo.Categorical()


def make_net(dropout: float = 0.0) -> Captioner:
    torch.manual_seed(3)
    return Captioner(VOCABULARY, size=8, channels=(3, 4), width=6, embedding=3, layers=2, dropout=dropout)


def make_weighted() -> credo.DeepEnsemble:
    ensemble = credo.DeepEnsemble(make_net(), members=3, likelihood=LIKELIHOOD)
    ensemble.set_weights([0.1, 0.2, 0.7])
    return ensemble


METHODS = {
    "Bayes by Backprop": lambda: credo.BayesByBackprop(make_net(), LIKELIHOOD, initial_scale=0.3),
    "Bayesian decoder": lambda: credo.BayesByBackprop(make_net(), LIKELIHOOD, bayesian="decoder.*", initial_scale=0.5),
    "dropout of the network": lambda: credo.MCDropout(make_net(0.4), LIKELIHOOD),
    "dropout of weights": lambda: credo.MCDropout(make_net(), LIKELIHOOD, p=0.3),
    "ensemble": lambda: credo.DeepEnsemble(make_net(), members=3, likelihood=LIKELIHOOD),
    "weighted ensemble": lambda: make_weighted(),
    "ensemble of Bayes by Backprop": lambda: credo.DeepEnsemble(
        make_net(), members=2, base=credo.BayesByBackprop, likelihood=LIKELIHOOD
    ),
}


@pytest.fixture
def images() -> Tensor:
    return torch.randn(7, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def log_prob_of(found: Generated) -> Tensor:
    """Σ_t log (1/S) Σ_s p_s(w_t | w_{<t}) by the teacher-forced prediction."""
    chosen = found.predictive.mean.log().gather(-1, found.tokens[..., None])[..., 0]
    return torch.where(found.emitted, chosen, 0.0).sum(-1)


@pytest.mark.parametrize("samples", [0, 6])
@pytest.mark.parametrize("method", METHODS)
def test_probability_token_by_token_is_that_of_teacher_forcing_with_the_same_draws(method, samples, images):
    model = METHODS[method]()
    before = {name: p.clone() for name, p in model.state_dict().items()}
    state = torch.get_rng_state()
    found = generate(model, images, end=END, length=LENGTH, width=2, samples=samples, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    torch.testing.assert_close(found.log_prob, log_prob_of(found), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.entropy, found.expected_entropy + found.mutual_information, rtol=0, atol=1e-5)
    if samples:
        assert (found.mutual_information > 0).any()
    parts = generate(model, images, end=END, length=LENGTH, width=2, samples=samples, seed=5, batch_size=3)
    assert torch.equal(parts.tokens, found.tokens)
    torch.testing.assert_close(parts.log_prob, found.log_prob)


def test_wide_beam_finds_the_best_caption_of_all(images):
    """The mean over draws of every next-word distribution, for all 4³ sequences, by ``predict``."""
    model = METHODS["Bayes by Backprop"]()
    found = generate(model, images, end=END, length=LENGTH, width=VOCABULARY**LENGTH, samples=4, seed=1)
    sequences = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=LENGTH)))
    for row, image in enumerate(images):
        before = sequences.roll(1, dims=1)
        before[:, 0] = END
        p = model.predict((image.expand(len(sequences), -1, -1, -1), before), samples=4, seed=1)
        log_p = p.mean.log().gather(-1, sequences[..., None])[..., 0]
        is_emitted = (sequences == END).cumsum(1) - (sequences == END).long() == 0
        best = torch.where(is_emitted, log_p, 0.0).sum(1).max()
        assert float(found.log_prob[row]) == pytest.approx(float(best), rel=1e-4)


def test_no_images_have_no_captions(images):
    found = generate(METHODS["Bayesian decoder"](), images[:0], end=END, length=6, samples=3, seed=0)
    assert len(found.tokens) == len(found.emitted) == len(found.log_prob) == len(found.entropy) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": -1}, "batch_size must be an integer of at least 1, got -1"),
        ({"batch_size": 2.5}, "batch_size must be an integer"),
        ({"end": -1}, "end must be an integer of at least 0, got -1"),
        ({"end": VOCABULARY}, "tokens must be from 0 to 3"),
    ],
)
def test_invalid_arguments_raise(options, message, images):
    with pytest.raises(InputError, match=message):
        generate(METHODS["Bayesian decoder"](), images, **{"end": END, "length": 3, "samples": 2, **options})


def test_emitted_tokens_end_with_the_end_token(images):
    found = generate(METHODS["Bayesian decoder"](), images, end=END, length=6, samples=3, seed=0)
    for tokens, emitted in zip(found.tokens.tolist(), found.emitted.tolist(), strict=True):
        stop = tokens.index(END) if END in tokens else len(tokens)
        assert emitted == [t <= stop for t in range(len(tokens))]
        assert set(tokens[stop:]) <= {END}


class NoSteps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)


class DropsInEncoder(Captioner):
    def encode(self, images):
        return super().encode(nn.functional.dropout(images, 0.5, self.training))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: credo.MAP(NoSteps(), LIKELIHOOD), InputError, "must have a method encode, but NoSteps has none"),
        (lambda: credo.MAP(make_net(), credo.Gaussian()), InputError, "likelihood=credo.Categorical"),
        (lambda: credo.MAP(make_net(), credo.Categorical(class_dim=1)), InputError, "the model has .* class_dim=1"),
        (lambda: credo.Laplace(make_net(), LIKELIHOOD), UnsupportedError, "linearized=False"),
        (
            lambda: credo.MCDropout(DropsInEncoder(4, size=8, channels=(3,), width=4, dropout=0.1), LIKELIHOOD),
            UnsupportedError,
            "dropout in encode",
        ),
    ],
)
def test_models_that_cannot_generate_raise(make, error, message, images):
    with pytest.raises(error, match=message):
        generate(make(), images, end=END, length=LENGTH, samples=2, seed=0)
