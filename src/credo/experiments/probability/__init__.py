"""Experiments on distributions, conjugate updates, divergences and Monte Carlo."""
