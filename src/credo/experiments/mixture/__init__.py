"""Experiments on k-means and Gaussian mixtures."""
