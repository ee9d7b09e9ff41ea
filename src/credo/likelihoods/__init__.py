"""Likelihoods p(y | f(x)): the distribution of targets given the output of the network."""

from credo.likelihoods.base import Likelihood, infer_likelihood, likelihood_from_config
from credo.likelihoods.classification import Bernoulli, Categorical
from credo.likelihoods.regression import Gaussian, Poisson, StudentT

__all__ = [
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Likelihood",
    "Poisson",
    "StudentT",
    "infer_likelihood",
    "likelihood_from_config",
]
