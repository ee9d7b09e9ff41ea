"""Kernels of credo with the equivalent ones of scikit-learn."""

from __future__ import annotations

import numpy as np
from sklearn.gaussian_process import kernels as theirs

from credo.gaussian_process import kernels as ours

NOISE = 0.2
WHITE = theirs.WhiteKernel(NOISE**2)
FIXED = "fixed"

SCALES = (0.7, 1.9)
STATIONARY = {
    "rbf": (ours.RBF(0.8), theirs.RBF(0.8)),
    "rbf, one scale per feature": (ours.RBF(SCALES), theirs.RBF(SCALES)),
    "matern 1/2": (ours.Matern(0.8, nu=0.5), theirs.Matern(0.8, nu=0.5)),
    "matern 3/2": (ours.Matern(SCALES, nu=1.5), theirs.Matern(SCALES, nu=1.5)),
    "matern 5/2": (ours.Matern(0.8, nu=2.5), theirs.Matern(0.8, nu=2.5)),
    "rational quadratic": (
        ours.RationalQuadratic(0.8, alpha=1.7),
        theirs.RationalQuadratic(length_scale=0.8, alpha=1.7),
    ),
}
OTHERS = {
    "constant": (ours.Constant(2.5), theirs.ConstantKernel(2.5)),
    "linear": (ours.Linear(1.0, FIXED) + ours.Constant(0.49), theirs.DotProduct(sigma_0=0.7)),
    "sum": (
        2.0 * ours.RBF(SCALES) + 0.3 * ours.Matern(0.4, nu=0.5),
        2.0 * theirs.RBF(SCALES) + 0.3 * theirs.Matern(0.4, nu=0.5),
    ),
    "product of sums": (
        (ours.RBF(2.0) + 0.5) * (ours.Matern(0.9, nu=2.5) + ours.Constant(0.4, FIXED)),
        (theirs.RBF(2.0) + 0.5) * (theirs.Matern(0.9, nu=2.5) + theirs.ConstantKernel(0.4, FIXED)),
    ),
    "fixed factor": (
        ours.Constant(1.5, FIXED) * ours.RBF(0.9),
        theirs.ConstantKernel(1.5, FIXED) * theirs.RBF(0.9),
    ),
}
ONE_FEATURE = {
    "periodic": (ours.Periodic(0.9, period=1.3), theirs.ExpSineSquared(length_scale=0.9, periodicity=1.3)),
    "decaying period": (
        1.7 * ours.RBF(3.0) * ours.Periodic(0.9, period=1.3, period_bounds=FIXED),
        1.7 * theirs.RBF(3.0) * theirs.ExpSineSquared(0.9, 1.3, periodicity_bounds=FIXED),
    ),
}
PAIRS = STATIONARY | OTHERS | ONE_FEATURE


def points(name: str, n: int = 30, seed: int = 0) -> np.ndarray:
    """Inputs for the kernel of that name, ``[n, D]``."""
    return np.random.default_rng(seed).normal(size=(n, 1 if name in ONE_FEATURE else 2))


def by_name(kernel: theirs.Kernel) -> list[int]:
    """The indices of scikit-learn's theta in the order of credo: it sorts α before ℓ."""
    order = list(range(len(kernel.theta)))
    return order[::-1] if isinstance(kernel, theirs.RationalQuadratic) else order
