"""Gaussian processes: beliefs about functions, by their covariances."""

from credo.processes import kernels
from credo.processes.regressor import GaussianProcessRegressor

__all__ = ["GaussianProcessRegressor", "kernels"]
