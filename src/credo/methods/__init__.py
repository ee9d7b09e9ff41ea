"""How a posterior is found, one file a method."""

from credo.methods.base import Method, NetworkMethod, Terms
from credo.methods.bayes_by_backprop import BayesByBackprop
from credo.methods.deep_ensemble import DeepEnsemble
from credo.methods.map import MAP
from credo.methods.mc_dropout import MCDropout

__all__ = ["MAP", "BayesByBackprop", "DeepEnsemble", "MCDropout", "Method", "NetworkMethod", "Terms"]
