"""What a likelihood learns beside the network, such as the noise level, for a network that is trained already."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from credo._notices import notify
from credo.curvature import check_outputs
from credo.data import Batch
from credo.errors import LoadError
from credo.likelihoods import Likelihood, likelihood_from_config
from credo.methods.network import NetworkMethod

_MAX_STEPS = 100


def learn_untrained_noise(model: NetworkMethod, batches: Iterable[Batch]) -> None:
    """Fit the parameters of a likelihood that has only its initial ones, with the network as it is.

    They maximize log p(D | f(x), θ), as training does; for Gaussian noise σ² is then the mean squared residual. What
    was learned before is kept.

    Args:
        model: the method, whose likelihood is changed.
        batches: all data.
    """
    likelihood = model.likelihood
    if not _is_untrained(likelihood):
        return
    predictor = model._predictor(0, None)
    rows = [(predictor.outputs(x)[0].detach(), y, weight) for x, y, weight in batches]
    for output, y, _ in rows:
        check_outputs(likelihood, output, y)
    before = [parameter.detach().clone() for parameter in likelihood.parameters()]
    optimizer = torch.optim.LBFGS(likelihood.parameters(), max_iter=_MAX_STEPS, line_search_fn="strong_wolfe")

    def mean_nll() -> Tensor:
        optimizer.zero_grad()
        parts = [likelihood.log_prob(output, y) * (1.0 if weight is None else weight) for output, y, weight in rows]
        nll = -torch.cat(parts).mean()
        nll.backward()
        return nll

    with torch.enable_grad():
        optimizer.step(mean_nll)
    optimizer.zero_grad()
    if not all(bool(parameter.isfinite().all()) for parameter in likelihood.parameters()):
        with torch.no_grad():
            for parameter, value in zip(likelihood.parameters(), before, strict=True):
                parameter.copy_(value)
        return
    notify(f"what {likelihood!r} learns was not learned yet: it is fitted to the residuals of the network as it is")


def _is_untrained(likelihood: Likelihood) -> bool:
    """Whether a likelihood learns something and has all of it at its initial value."""
    own = {name: parameter for name, parameter in likelihood.named_parameters() if parameter.requires_grad}
    try:
        new = dict(likelihood_from_config(likelihood.get_config()).named_parameters()) if own else {}
    except LoadError:  # of a class that is not credo's
        return False
    return bool(own) and all(name in new and torch.equal(new[name].to(value), value) for name, value in own.items())
