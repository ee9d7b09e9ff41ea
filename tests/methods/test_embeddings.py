"""Embeddings: a padding vector that is no parameter, weights that a lookup scales in place, sparse gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import credo

METHODS: dict[str, Callable[[nn.Module], Any]] = {
    "BayesByBackprop": lambda net: credo.BayesByBackprop(net, credo.Categorical(), initial_scale=0.5),
    "IVON": lambda net: credo.IVON(net, credo.Categorical()),
    "Laplace": lambda net: credo.Laplace(net, credo.Categorical(), linearized=False),
    "low rank": lambda net: credo.BayesByBackprop(net, credo.Categorical(), rank=2, initial_scale=0.5),
    "SWAG": lambda net: credo.SWAG(net, credo.Categorical()),
    "HMC": lambda net: credo.HMC(net, credo.Categorical(), chains=2, warmup=3, draws=3, leapfrog_steps=3),
    "SGLD": lambda net: credo.SGLD(net, credo.Categorical(), chains=2, warmup=3, draws=3),
}


class Bag(nn.Module):
    """The mean of token vectors, and a linear layer without an intercept."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4, **options)
        self.head = nn.Linear(4, 3, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1))


def _texts() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 6, (12, 5), generator=random), torch.randint(0, 3, (12,), generator=random)


def _fit(model: Any) -> Any:
    options = {} if isinstance(model, credo.HMC | credo.SGLD) else {"epochs": 5}
    return model.fit(_texts(), seed=0, **options)


@pytest.mark.parametrize("name", METHODS)
def test_the_padding_vector_is_the_same_in_every_draw(name: str) -> None:
    """No gradient reaches it, so its posterior is the prior, whose draws would be noise in every padded text."""
    torch.manual_seed(0)
    net = Bag(padding_idx=2)
    assert not net.embedding.weight[2].any()
    model = _fit(METHODS[name](net))
    p = model.predict(torch.full((1, 5), 2), samples=8, seed=0)
    torch.testing.assert_close(p.draws, torch.full_like(p.draws, 1 / 3))
    weights = model.posterior.sample(8, seed=0)["embedding.weight"]
    assert torch.equal(weights[:, 2], net.embedding.weight[2].expand(8, 4))
    assert weights[:, 1].std(0).min() > 0


def test_the_kl_of_a_padding_vector_falls_to_zero() -> None:
    """Only the KL depends on it, so that its posterior becomes the prior: a KL of 0, and an unbiased ELBO."""
    torch.manual_seed(0)
    net = Bag(padding_idx=2)
    model = credo.BayesByBackprop(net, credo.Categorical(), prior=credo.Normal(0.0, 0.5), initial_scale=0.05)
    model.fit(_texts(), epochs=600, lr=0.05, seed=0)
    torch.testing.assert_close(model.posterior.scale()["embedding.weight"][2], torch.full((4,), 0.5), rtol=1e-3, atol=0)
    assert not net.embedding.weight[2].any()


def test_a_padding_vector_of_the_user_stays() -> None:
    torch.manual_seed(0)
    net = Bag(padding_idx=5)
    with torch.no_grad():
        net.embedding.weight[5] = 1.0
    model = credo.BayesByBackprop(net, credo.Categorical(), bayesian="embedding.*", initial_scale=0.5)
    x = torch.full((1, 5), 5)
    p = model.predict(x, samples=8, seed=0)
    torch.testing.assert_close(p.draws, net(x).softmax(-1).detach().expand(8, 1, 3))
    assert model.predict(x - 1, samples=8, seed=0).draws.std(0).max() > 0.01


REGULARIZED: dict[str, Callable[[nn.Module], Any]] = {
    **METHODS,
    "AdaptiveNormal": lambda net: credo.BayesByBackprop(net, credo.Categorical(), prior=credo.AdaptiveNormal()),
    "HierarchicalNormal": lambda net: credo.IVON(net, credo.Categorical(), credo.HierarchicalNormal("unit")),
    "LaplacePrior": lambda net: credo.BayesByBackprop(net, credo.Categorical(), prior=credo.LaplacePrior()),
    "mean per weight": lambda net: credo.MAP(
        net, credo.Categorical(), {"head.*": credo.Normal(), "*": credo.Normal(torch.rand(6, 4), 0.5)}
    ),
    "MAP": lambda net: credo.MAP(net, credo.Categorical()),
    "MCDropout": lambda net: credo.MCDropout(net, credo.Categorical(), p=0.1),
    "ConcreteDropout": lambda net: credo.ConcreteDropout(net, credo.Categorical()),
    "Laplace by evidence": lambda net: credo.Laplace(net, credo.Categorical(), credo.AdaptiveNormal()),
}
SAMPLED: dict[str, Callable[[nn.Module], Any]] = {
    "scale mixture": lambda net: credo.BayesByBackprop(net, credo.Categorical(), prior=credo.ScaleMixture()),
    "scale mixture of drawn weights": lambda net: credo.BayesByBackprop(
        net, credo.Categorical(), prior=credo.ScaleMixture(), estimator="weight"
    ),
    "low rank under a scale mixture": lambda net: credo.BayesByBackprop(
        net, credo.Categorical(), prior=credo.ScaleMixture(), rank=2, estimator="weight"
    ),
}


def _with_padding(vector: float) -> Bag:
    torch.manual_seed(0)
    net = Bag(padding_idx=2)
    with torch.no_grad():
        net.embedding.weight[2] = vector
    return net


@pytest.mark.parametrize("name", REGULARIZED | SAMPLED)
def test_no_prior_moves_a_padding_vector(name: str) -> None:
    net = _with_padding(3.0)
    before = net.embedding.weight.detach().clone()
    _fit((REGULARIZED | SAMPLED)[name](net))
    assert torch.equal(net.embedding.weight[2], before[2])
    assert not torch.equal(net.embedding.weight[3], before[3])


@pytest.mark.parametrize("name", REGULARIZED)
def test_the_density_of_the_prior_does_not_depend_on_a_padding_vector(name: str) -> None:
    """Neither does that of q, nor what is learned of the prior."""
    near, far = (float(REGULARIZED[name](_with_padding(vector)).kl().detach()) for vector in (0.0, 9.0))
    assert near == far


def test_the_evidence_does_not_depend_on_a_padding_vector_that_no_row_has() -> None:
    tokens, classes = _texts()
    tokens[tokens == 2] = 1
    found = []
    for vector in (0.0, 9.0):
        model = credo.Laplace(_with_padding(vector), credo.Categorical()).fit((tokens, classes), epochs=0)
        found += [[model.log_marginal_likelihood(), model.optimize_prior().log_marginal_likelihood()]]
    assert found[0] == found[1]


@pytest.mark.parametrize("at_once", [True, False])
def test_members_of_an_ensemble_keep_their_padding_vector(at_once: bool) -> None:
    torch.manual_seed(0)
    nets = [_with_padding(3.0), _with_padding(3.0)]
    ensemble = credo.DeepEnsemble(nets, likelihood=credo.Categorical(), members_at_once=at_once)
    ensemble.fit(_texts(), epochs=5, seed=0)
    for net in nets:
        assert torch.equal(net.embedding.weight[2], torch.full((4,), 3.0))
        assert not torch.equal(net.embedding.weight[3], _with_padding(3.0).embedding.weight[3])


def test_pruning_leaves_a_padding_vector_alone() -> None:
    net = _with_padding(1e-3)
    model = credo.BayesByBackprop(net, credo.Categorical())
    assert model.prune(1.0) == net.embedding.weight.numel() + net.head.weight.numel() - 4
    weights = model.posterior.sample(2, seed=0)["embedding.weight"]
    assert torch.equal(weights[:, 2], torch.full((2, 4), 1e-3))
    assert not weights[:, 3].any()


def test_a_tied_padding_vector_is_drawn() -> None:
    """As a row of the output layer it has a gradient."""
    net = Bag(padding_idx=0)
    net.head = nn.Linear(4, 6, bias=False)
    net.head.weight = net.embedding.weight
    model = credo.BayesByBackprop(net, credo.Categorical(), initial_scale=0.5)
    draws = model.predict(torch.ones(1, 5, dtype=torch.long), samples=8, seed=0).draws
    weights = model.posterior.sample(8, seed=0)["embedding.weight"]
    torch.testing.assert_close(draws[:, 0], torch.einsum("skd,sd->sk", weights, weights[:, 1]).softmax(-1))


@pytest.mark.parametrize("method", [credo.MCDropout, credo.ConcreteDropout])
def test_a_padding_vector_of_the_user_is_not_dropped(method: type[credo.MCDropout]) -> None:
    torch.manual_seed(0)
    net = Bag(padding_idx=5)
    with torch.no_grad():
        net.embedding.weight[5] = 1.0
    weights = method(net, credo.Categorical(), p=0.5).posterior.sample(8, seed=0)["embedding.weight"]
    assert bool((weights[:, 5] == 1.0).all())
    assert bool((weights[:, 4] == 0.0).any())


@pytest.mark.parametrize("bayesian", ["*", "head.*"])
@pytest.mark.parametrize("method", [credo.MAP, credo.BayesByBackprop])
def test_predict_leaves_weights_with_a_maximal_norm_alone(method: type[credo.MAP], bayesian: str) -> None:
    net = Bag(max_norm=0.1)
    before = net.embedding.weight.detach().clone()
    p = method(net, credo.Categorical(), bayesian=bayesian).predict(_texts()[0], samples=0)
    assert torch.equal(net.embedding.weight, before)
    assert torch.allclose(p.mean, net(_texts()[0]).softmax(-1))  # which scales the weights
    assert not torch.equal(net.embedding.weight, before)


def test_gradients_are_those_of_the_loss() -> None:
    """Divided by the frequency of tokens, they would have another posterior."""
    gradients = []
    for scale_grad_by_freq in (False, True):
        torch.manual_seed(0)
        model = credo.BayesByBackprop(Bag(scale_grad_by_freq=scale_grad_by_freq), credo.Categorical())
        model.loss(*_texts(), n_data=12).backward()
        gradients.append(model.net.embedding.weight.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name", METHODS)
def test_sparse_gradients_give_the_results_of_dense_ones(name: str) -> None:
    means = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = _fit(METHODS[name](Bag(sparse=sparse)))
        assert model.net.embedding.sparse is sparse
        means.append(model.predict(_texts()[0], samples=4, seed=0).mean)
    torch.testing.assert_close(*means)
