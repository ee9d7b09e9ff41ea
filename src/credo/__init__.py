"""credo: Bayesian deep learning for PyTorch.

    prior × likelihood → posterior → predictive → decision

Give it any network; it gives back a posterior, a predictive distribution, and an error bar split into what the model
does not know and what nobody can know:

    model = credo.BayesByBackprop(net).fit((x, y))
    p = model.predict(x_new)
    p.mean, p.std, p.epistemic, p.aleatoric, p.interval(0.95)
"""

import importlib
from typing import TYPE_CHECKING, Any

from credo import architectures, datasets, errors
from credo._version import __version__
from credo.hierarchical import HierarchicalNormal
from credo.io import load
from credo.likelihoods import (
    Bernoulli,
    Beta,
    Categorical,
    Gaussian,
    Likelihood,
    LogNormal,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
)
from credo.methods import (
    HMC,
    IVON,
    MAP,
    MCLMC,
    SGHMC,
    SGLD,
    SNGP,
    SWAG,
    BayesByBackprop,
    ConcreteDropout,
    DeepEnsemble,
    Laplace,
    MCDropout,
    Method,
    VariationalLastLayer,
)
from credo.posteriors import MeanField, Posterior
from credo.predictive import Predictive
from credo.priors import AdaptiveNormal, LaplacePrior, Normal
from credo.scale_mixture import ScaleMixture

if TYPE_CHECKING:
    from credo.distillation import distill as distill
    from credo.tabular import Classifier as Classifier
    from credo.tabular import Regressor as Regressor

__all__ = [
    "HMC",
    "IVON",
    "MAP",
    "MCLMC",
    "SGHMC",
    "SGLD",
    "SNGP",
    "SWAG",
    "AdaptiveNormal",
    "BayesByBackprop",
    "Bernoulli",
    "Beta",
    "Categorical",
    "ConcreteDropout",
    "DeepEnsemble",
    "Gaussian",
    "HierarchicalNormal",
    "Laplace",
    "LaplacePrior",
    "Likelihood",
    "LogNormal",
    "MCDropout",
    "MeanField",
    "Method",
    "NegativeBinomial",
    "Normal",
    "Ordinal",
    "Poisson",
    "Posterior",
    "Predictive",
    "ScaleMixture",
    "StudentT",
    "VariationalLastLayer",
    "__version__",
    "architectures",
    "datasets",
    "errors",
    "load",
]

_ON_DEMAND = (
    "calibration",
    "conjugate",
    "decisions",
    "decomposition",
    "diagnostics",
    "em",
    "experiments",
    "explain",
    "export",
    "gaussian_process",
    "generative",
    "information",
    "linear",
    "metrics",
    "mixture",
    "plots",
    "report",
    "sequence",
    "tabular",
    "testing",
)
_FROM_TABULAR = ("Classifier", "Regressor")
_INTEGRATIONS = ("dask", "mlflow", "ray", "skpro")


def __getattr__(name: str) -> Any:
    """Parts that cost time to import come when they are asked for: ``credo.plots`` brings matplotlib."""
    if name in _ON_DEMAND:
        return importlib.import_module(f"credo.{name}")
    if name in _INTEGRATIONS:
        return importlib.import_module(f"credo.integrations.{name}")
    if name in _FROM_TABULAR:
        return getattr(importlib.import_module("credo.tabular"), name)
    if name == "distill":
        return importlib.import_module("credo.distillation").distill
    raise AttributeError(f"module 'credo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ON_DEMAND, *_FROM_TABULAR, *_INTEGRATIONS, "distill"])
