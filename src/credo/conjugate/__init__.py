"""Conjugate priors: the posterior has the form of the prior, with hyperparameters updated by sums over the data.

pair = BetaBernoulli(2, 2).update([1, 0, 1, 1])
pair.posterior            # torch's Beta(5, 3)
pair.predictive.mean      # 0.625, the probability that the next observation is 1
pair.log_evidence([1])    # log 0.625
"""

from credo.conjugate.base import ConjugatePair
from credo.conjugate.binomial import BetaBernoulli, BetaBinomial, BetaBinomialDistribution
from credo.conjugate.joint_table import ConditionalTable, JointTable, bayes
from credo.conjugate.linear_gaussian import GaussianBelief, LinearGaussian, condition
from credo.conjugate.multinomial import DirichletCategorical, DirichletMultinomial, DirichletMultinomialDistribution
from credo.conjugate.multivariate_normal import NormalKnownCovariance, NormalWishart, NormalWishartDistribution
from credo.conjugate.normal import MeanAndPrecision, NormalGamma, NormalGammaDistribution, NormalKnownVariance
from credo.conjugate.poisson import GammaPoisson
from credo.conjugate.sampling import expectation
from credo.conjugate.student_t import MultivariateStudentT

__all__ = [
    "BetaBernoulli",
    "BetaBinomial",
    "BetaBinomialDistribution",
    "ConditionalTable",
    "ConjugatePair",
    "DirichletCategorical",
    "DirichletMultinomial",
    "DirichletMultinomialDistribution",
    "GammaPoisson",
    "GaussianBelief",
    "JointTable",
    "LinearGaussian",
    "MeanAndPrecision",
    "MultivariateStudentT",
    "NormalGamma",
    "NormalGammaDistribution",
    "NormalKnownCovariance",
    "NormalKnownVariance",
    "NormalWishart",
    "NormalWishartDistribution",
    "bayes",
    "condition",
    "expectation",
]
