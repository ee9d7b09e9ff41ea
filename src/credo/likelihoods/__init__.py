"""Likelihoods p(y | f(x)): the distribution of targets given the output of the network."""

from credo.likelihoods.base import Likelihood, infer_likelihood, likelihood_from_config
from credo.likelihoods.classification import Bernoulli, Categorical, Ordinal
from credo.likelihoods.mean_dispersion import Beta, NegativeBinomial, Poisson
from credo.likelihoods.regression import Gaussian, LogNormal, StudentT

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "Gaussian",
    "Likelihood",
    "LogNormal",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "StudentT",
    "infer_likelihood",
    "likelihood_from_config",
]
