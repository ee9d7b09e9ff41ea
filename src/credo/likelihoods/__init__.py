"""p(y | f(x)): how targets scatter about what the network outputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from credo.errors import InputError, LoadError
from credo.likelihoods.base import Likelihood
from credo.likelihoods.bernoulli import Bernoulli
from credo.likelihoods.categorical import Categorical
from credo.likelihoods.gaussian import Gaussian
from credo.likelihoods.poisson import Poisson
from credo.likelihoods.student_t import StudentT

__all__ = [
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Likelihood",
    "Poisson",
    "StudentT",
    "infer_likelihood",
    "likelihood_from_config",
]

_BY_NAME: dict[str, type[Likelihood]] = {c.__name__: c for c in (Bernoulli, Categorical, Gaussian, Poisson, StudentT)}


def infer_likelihood(y: Tensor) -> Likelihood:
    """The likelihood that targets of this dtype ask for: real → Gaussian, bool → Bernoulli, integer → Categorical."""
    if not isinstance(y, Tensor):
        raise InputError(f"y must be a tensor, got {type(y).__name__}: convert it with torch.as_tensor(y).")
    if y.is_floating_point():
        return Gaussian(noise="learned")
    if y.dtype == torch.bool:
        return Bernoulli()
    if y.is_complex():
        raise InputError(f"no likelihood is known for targets of dtype {y.dtype}: pass likelihood=...")
    return Categorical()


def likelihood_from_config(config: Mapping[str, object]) -> Likelihood:
    """Rebuild a likelihood from its :meth:`~Likelihood.config`; learned values come from the ``state_dict``."""
    if not isinstance(config, Mapping) or "name" not in config:
        raise LoadError(f"a likelihood's config is a mapping with a 'name', got {config!r}.")
    name = str(config["name"])
    if name not in _BY_NAME:
        raise LoadError(
            f"unknown likelihood {name!r}: credo knows {', '.join(_BY_NAME)}; pass your own with likelihood=..."
        )
    try:
        return _BY_NAME[name](**{k: v for k, v in config.items() if k != "name"})
    except (TypeError, InputError) as error:
        raise LoadError(f"the config of likelihood {name!r} does not fit: {error}") from error
