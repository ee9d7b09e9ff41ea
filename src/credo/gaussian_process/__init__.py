"""Gaussian process regression with composable kernels."""

from credo.gaussian_process import kernels
from credo.gaussian_process.regressor import GaussianProcessRegressor

__all__ = ["GaussianProcessRegressor", "kernels"]
