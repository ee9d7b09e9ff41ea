"""Bayesian linear and logistic regression on basis functions."""

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
