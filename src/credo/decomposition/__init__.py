"""Principal component analysis: classical, probabilistic and Bayesian.

All three read a table once, in blocks, and keep its mean and scatter; rows can come in chunks, or by ``partial_fit``.
Only probabilistic PCA with missing values reads the rows again in every step of EM.
"""

from credo.decomposition.bayesian import BayesianPCA
from credo.decomposition.pca import PCA
from credo.decomposition.probabilistic import MissingValues, ProbabilisticPCA

__all__ = ["PCA", "BayesianPCA", "MissingValues", "ProbabilisticPCA"]
