"""Directions in which a table varies: by variance, by maximum likelihood, and with a belief about how many there are.

All three read a table once, in blocks, and keep its mean and scatter; rows may come in chunks, or by ``partial_fit``.
Only probabilistic PCA with missing values reads it again for every step of EM.
"""

from credo.decomposition.bayesian import BayesianPCA
from credo.decomposition.pca import PCA
from credo.decomposition.probabilistic import MissingValues, ProbabilisticPCA

__all__ = ["PCA", "BayesianPCA", "MissingValues", "ProbabilisticPCA"]
