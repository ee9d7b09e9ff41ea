"""Models that are linear in their weights, on features of the input that may be anything."""

from credo.linear.bases import Basis, Fourier, GaussianBasis, Identity, Polynomial, Sigmoidal
from credo.linear.logistic import BayesianLogisticRegression
from credo.linear.regression import BayesianLinearRegression, WeightDraws

__all__ = [
    "Basis",
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "Fourier",
    "GaussianBasis",
    "Identity",
    "Polynomial",
    "Sigmoidal",
    "WeightDraws",
]
