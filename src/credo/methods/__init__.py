"""Methods that find a posterior, one file per method."""

from credo.methods.base import Method
from credo.methods.bayes_by_backprop import BayesByBackprop
from credo.methods.concrete_dropout import ConcreteDropout
from credo.methods.deep_ensemble import DeepEnsemble
from credo.methods.distilled import Distilled
from credo.methods.hmc import HMC
from credo.methods.ivon import IVON
from credo.methods.laplace import Laplace
from credo.methods.map import MAP
from credo.methods.mc_dropout import MCDropout
from credo.methods.mclmc import MCLMC
from credo.methods.network import NetworkMethod
from credo.methods.sngp import SNGP
from credo.methods.stochastic_gradient_mcmc import SGHMC, SGLD
from credo.methods.swag import SWAG
from credo.methods.variational_last_layer import VariationalLastLayer
from credo.training.supervised import Terms

__all__ = [
    "HMC",
    "IVON",
    "MAP",
    "MCLMC",
    "SGHMC",
    "SGLD",
    "SNGP",
    "SWAG",
    "BayesByBackprop",
    "ConcreteDropout",
    "DeepEnsemble",
    "Distilled",
    "Laplace",
    "MCDropout",
    "Method",
    "NetworkMethod",
    "Terms",
    "VariationalLastLayer",
]
