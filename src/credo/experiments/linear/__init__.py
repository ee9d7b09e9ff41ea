"""Experiments on Bayesian linear regression."""
