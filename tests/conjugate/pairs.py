"""Every pair with a proper prior, and helpers for the tests of this folder."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from credo.conjugate import (
    BetaBernoulli,
    BetaBinomial,
    DirichletCategorical,
    DirichletMultinomial,
    GammaPoisson,
    MeanAndPrecision,
    NormalGamma,
    NormalKnownCovariance,
    NormalKnownVariance,
    NormalWishart,
)
from credo.seeding import seeded

PAIRS = {
    "beta-bernoulli": BetaBernoulli(2.0, 3.5),
    "beta-binomial": BetaBinomial(1.5, 0.8, trials=7),
    "dirichlet-categorical": DirichletCategorical([0.7, 2.0, 4.0, 1.0]),
    "dirichlet-multinomial": DirichletMultinomial([2.0, 0.5, 3.0], trials=5),
    "gamma-poisson": GammaPoisson(3.0, 0.5),
    "normal-known-variance": NormalKnownVariance(1.0, 4.0, 2.5),
    "normal-known-covariance": NormalKnownCovariance([1.0, -1.0], [[2.0, 0.5], [0.5, 1.0]], [[1.0, -0.3], [-0.3, 0.5]]),
    "normal-gamma": NormalGamma(-1.0, 0.5, 3.0, 2.0),
    "normal-wishart": NormalWishart([1.0, 0.0, -1.0], 0.7, 5.5, [[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 3.0]]),
}


def simulated(pair, rows, seed=0):
    """Parameters of the prior, and ``rows`` observations with them."""
    with seeded(seed, torch.device("cpu")):
        parameters = pair.posterior.sample()
        return parameters, pair.likelihood(parameters).sample((rows,))


def flat(parameters):
    """Parameters, or draws of them, as vectors ``[..., P]``; of a matrix its lower triangle."""
    if isinstance(parameters, MeanAndPrecision) and parameters.mean.ndim < parameters.precision.ndim:
        size = parameters.mean.shape[-1]
        below = torch.tril_indices(size, size)
        return torch.cat([parameters.mean, parameters.precision[..., below[0], below[1]]], -1)
    if isinstance(parameters, MeanAndPrecision):
        return torch.stack(parameters, -1)
    return parameters


def unflat(pair, theta):
    """The parameters of ``pair`` whose vector is ``theta [P]``."""
    like = pair.posterior.mean
    if not isinstance(like, MeanAndPrecision):
        return theta.reshape(like.shape)
    if like.mean.ndim == 0:
        return MeanAndPrecision(*theta)
    size = len(like.mean)
    below = torch.tril_indices(size, size)
    precision = theta.new_zeros(size, size)
    precision[below[0], below[1]] = theta[size:]
    return MeanAndPrecision(theta[:size], precision + precision.tril(-1).mT)


def hyperparameters(pair):
    return {field.name: value for field in fields(pair) if isinstance(value := getattr(pair, field.name), Tensor)}


def assert_same_pair(actual, expected, tolerance):
    assert type(actual) is type(expected)
    found = hyperparameters(actual)
    for name, value in hyperparameters(expected).items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)
