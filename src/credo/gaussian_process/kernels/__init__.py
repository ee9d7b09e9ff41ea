"""Covariance functions of Gaussian processes: small immutable values that are added and multiplied.

    4.0 * RBF(length_scale=67.0) + RBF(90.0) * Periodic(period=1.0, period_bounds="fixed")

References:
    C. E. Rasmussen, C. K. I. Williams. Gaussian Processes for Machine Learning. 2006, chapter 4.
    D. J. C. MacKay. Introduction to Gaussian processes. 1998, section 5.2.
"""

from credo.gaussian_process.kernels.base import Hyperparameter, Kernel, Product, Sum
from credo.gaussian_process.kernels.plain import Constant, Linear, White
from credo.gaussian_process.kernels.stationary import RBF, Matern, Periodic, RationalQuadratic

__all__ = [
    "RBF",
    "Constant",
    "Hyperparameter",
    "Kernel",
    "Linear",
    "Matern",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Sum",
    "White",
]
