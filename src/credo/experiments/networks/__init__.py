"""Experiments on Bayesian neural networks."""
