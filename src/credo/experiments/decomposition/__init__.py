"""Experiments on probabilistic and Bayesian PCA."""
