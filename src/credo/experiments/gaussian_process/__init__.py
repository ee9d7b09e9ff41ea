"""Experiments on Gaussian process regression."""
