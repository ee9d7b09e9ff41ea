"""A VAE with a posterior over the weights of its decoder: the full variational version."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import credo
from credo.architectures import DenseDecoder, DenseEncoder
from credo.errors import InputError, LoadError
from credo.generative import VAE, decoders
from credo.seeding import seeded
from generative.helpers import bayesian_vae, halves, small_vae

CPU = torch.device("cpu")
SIGMAS = 4.0


def test_elbo_of_all_data_contains_both_kl_terms():
    x, model = halves().round(), bayesian_vae().fit(halves().round(), epochs=3, seed=0)
    found = torch.stack([model.elbo(x, samples=4, seed=seed).double().sum() for seed in range(40)])
    inner = model.decoder
    q = model.encode(x)
    with seeded(0, CPU), torch.no_grad():
        draws = torch.stack([expected(inner, x, q.sample()) for _ in range(400)]).double()
    reference = draws.mean() - decoders.kl_to_prior(q).sum() - inner.kl().detach()
    error = math.hypot(found.std() / math.sqrt(len(found)), draws.std() / math.sqrt(len(draws)))
    assert abs(float(found.mean() - reference)) < SIGMAS * error


def expected(inner: credo.BayesByBackprop, x: Tensor, z: Tensor) -> Tensor:
    """log p(x | z, w) of all data with a draw of the weights by Bayes by Backprop itself."""
    return inner.likelihood.log_prob(inner._predictor(1, None).outputs(z)[0], x).sum()


def test_loss_is_minus_the_elbo_per_datum():
    x, model = halves().round(), bayesian_vae().fit(halves().round(), epochs=3, seed=0)
    with seeded(0, CPU):
        losses = torch.stack([model.loss(x).detach() for _ in range(400)]).double()
        bound = torch.stack([model.elbo(x).double().mean() for _ in range(400)])
    error = math.hypot(losses.std() / 20, bound.std() / 20)
    assert abs(float(losses.mean() + bound.mean())) < SIGMAS * error


def test_sample_weights_belong_to_their_rows_in_each_draw():
    x, model, first = halves(6).round(), bayesian_vae(), torch.eye(6)[0]
    model._samples = 3
    others = torch.cat([x[:1], 1 - x[1:]])

    def nll(data: Tensor, weight: Tensor | None = None) -> Tensor:
        with seeded(0, CPU):
            model.loss(data, n_data=6, sample_weight=weight)
        return model._last_terms["nll"]

    torch.testing.assert_close(nll(x, first), nll(others, first))
    torch.testing.assert_close(torch.stack([nll(x, row) for row in torch.eye(6)]).sum(), nll(x))


def test_small_scales_give_the_plain_model():
    x, model = halves().round(), bayesian_vae(initial_scale=1e-6)
    plain = VAE(model.encoder, model.decoder.net, latent=2)
    found, expected = (m.log_likelihood(x, 200, seed=0) for m in (model, plain))
    # the same codes; weights 1e-6 apart move a logit by some 1e-5, and there are 36
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(model.sample(5, seed=0), plain.sample(5, seed=0))


def test_missing_n_data_raises():
    model = bayesian_vae()
    for look in (model.loss, model.elbo):
        with pytest.raises(InputError, match="n_data must be the number of training data"):
            look(halves())
    assert model.log_likelihood(halves(), 3).isfinite().all()
    few, many = (float(seeded_loss(model, n)) for n in (40, 4000))
    assert few - many == pytest.approx(float(model.decoder.kl().detach()) * (1 / 40 - 1 / 4000), rel=1e-4)


def seeded_loss(model: VAE, n_data: int) -> Tensor:
    with seeded(0, CPU):
        return model.loss(halves(), n_data=n_data).detach()


def test_weight_decay_excludes_scales_and_noise():
    model = bayesian_vae()
    decayed, spared = model.parameter_groups(0.1)
    assert {id(p) for p in spared["params"]} == {id(p) for p in model.decoder.posterior.parameters()}
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    gaussian = small_vae(likelihood=credo.Gaussian())
    assert [p is gaussian.likelihood.log_scale for p in gaussian.parameter_groups(0.1)[1]["params"]] == [True]
    assert len(gaussian.parameter_groups()) == 1


def test_custom_networks_and_priors_are_passed_to_load(tmp_path):
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 36), nn.Unflatten(1, (1, 6, 6)))

    prior = torch.distributions.StudentT(3.0)
    inner = credo.BayesByBackprop(network(), credo.Bernoulli(), prior, forward=lambda net, z: net(2 * z))
    model = VAE("dense", inner, latent=2, shape=(1, 6, 6)).fit(halves(), epochs=1, seed=0)
    model.save(tmp_path / "run")
    fresh = {"encoder": DenseEncoder((1, 6, 6), 4), "decoder": network()}
    with pytest.raises(LoadError, match="forward"):
        credo.load(tmp_path / "run", fresh)
    loaded = credo.load(tmp_path / "run", fresh, prior=prior, forward=lambda net, z: net(2 * z))
    assert torch.equal(loaded.elbo(halves(), seed=0), model.elbo(halves(), seed=0))


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ({"temperature": 0.5}, "temperature=1 and kl_weighting='uniform'"),
        ({"kl_weighting": "blundell"}, "temperature=1 and kl_weighting='uniform'"),
        ({"likelihood": None}, "needs its likelihood"),
    ],
)
def test_unsupported_settings_of_the_decoder_raise(inner, message):
    method = credo.BayesByBackprop(DenseDecoder(2, (3,)), **{"likelihood": credo.Bernoulli(), **inner})
    with pytest.raises(InputError, match=message):
        VAE("dense", method, latent=2, shape=(3,))
