"""The curvature of a log likelihood in the weights of a network: the generalized Gauss–Newton matrix."""

from credo.curvature.gauss_newton import GaussNewton
from credo.curvature.gradients import Block, BlockGradients, DenseGradients, FactoredGradients
from credo.curvature.network import NetworkGradients
from credo.curvature.outputs import check_outputs, output_factors

__all__ = [
    "Block",
    "BlockGradients",
    "DenseGradients",
    "FactoredGradients",
    "GaussNewton",
    "NetworkGradients",
    "check_outputs",
    "output_factors",
]
