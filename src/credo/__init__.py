"""credo: Bayesian deep learning for PyTorch.

    prior × likelihood → posterior → predictive → decision

Give it any network; it gives back a posterior, a predictive distribution, and an error bar split into what the model
does not know and what nobody can know:

    model = credo.BayesByBackprop(net).fit((x, y))
    p = model.predict(x_new)
    p.mean, p.std, p.epistemic, p.aleatoric, p.interval(0.95)
"""

import importlib
from types import ModuleType

from credo import architectures, datasets, errors
from credo._version import __version__
from credo.io import load
from credo.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson, StudentT
from credo.methods import MAP, BayesByBackprop, DeepEnsemble, MCDropout, Method
from credo.posteriors import MeanField, Posterior
from credo.predictive import Predictive
from credo.priors import LaplacePrior, Normal, ScaleMixture

__all__ = [
    "MAP",
    "BayesByBackprop",
    "Bernoulli",
    "Categorical",
    "DeepEnsemble",
    "Gaussian",
    "LaplacePrior",
    "Likelihood",
    "MCDropout",
    "MeanField",
    "Method",
    "Normal",
    "Poisson",
    "Posterior",
    "Predictive",
    "ScaleMixture",
    "StudentT",
    "__version__",
    "architectures",
    "datasets",
    "errors",
    "load",
]

_ON_DEMAND = ("experiments", "plots", "testing")


def __getattr__(name: str) -> ModuleType:
    """Parts that cost time to import come when they are asked for: ``credo.plots`` brings matplotlib."""
    if name in _ON_DEMAND:
        return importlib.import_module(f"credo.{name}")
    raise AttributeError(f"module 'credo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ON_DEMAND])
