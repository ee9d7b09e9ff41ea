"""Priors whose posterior is of the same kind: beliefs that data update by adding to a few numbers."""

from credo.conjugate.linear_gaussian import GaussianBelief, LinearGaussian, condition

__all__ = ["GaussianBelief", "LinearGaussian", "condition"]
