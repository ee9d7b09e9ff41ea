"""Priors whose posterior is of the same kind: beliefs that data update by adding to a few numbers.

    belief = BetaBernoulli(2, 2).update([1, 0, 1, 1])
    belief.posterior            # torch's Beta(5, 3)
    belief.predictive.mean      # 0.625: the probability that the next one is 1
    belief.log_evidence([1])    # log 0.625

Beside them: joint tables of discrete variables, the linear-Gaussian identities, and expectations by sampling.
"""

from credo.conjugate.base import ConjugatePair
from credo.conjugate.beta_bernoulli import BetaBernoulli
from credo.conjugate.beta_binomial import BetaBinomial
from credo.conjugate.dirichlet_categorical import DirichletCategorical
from credo.conjugate.dirichlet_multinomial import DirichletMultinomial
from credo.conjugate.gamma_poisson import GammaPoisson
from credo.conjugate.joint import MeanAndPrecision, NormalGammaDistribution, NormalWishartDistribution
from credo.conjugate.joint_table import ConditionalTable, JointTable, bayes
from credo.conjugate.linear_gaussian import GaussianBelief, LinearGaussian, condition
from credo.conjugate.normal_gamma import NormalGamma
from credo.conjugate.normal_known_covariance import NormalKnownCovariance
from credo.conjugate.normal_known_variance import NormalKnownVariance
from credo.conjugate.normal_wishart import NormalWishart
from credo.conjugate.predictives import (
    BetaBinomialDistribution,
    DirichletMultinomialDistribution,
    MultivariateStudentT,
)
from credo.conjugate.sampling import expectation

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
