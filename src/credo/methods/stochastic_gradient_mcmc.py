r"""Sampling with gradients of minibatches: Langevin dynamics, and Hamiltonian dynamics with friction."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from credo._text import counted
from credo.errors import DivergenceError, UnsupportedError
from credo.functional import Forward
from credo.likelihoods import Likelihood
from credo.methods._log_joint import LogJoint
from credo.methods._sampling import Plan, Run, concatenate
from credo.methods._stochastic_gradient import Settings, sample
from credo.methods.sampler import Report, Sampler
from credo.priors import Prior

_EVALUATED_DRAWS = 20
"""Draws of each chain whose log density on all data is computed, to find a good one, and chains that have diverged."""
_FAR = 10.0
"""A chain has diverged if its draws are more than so many times as wide as a posterior, see below."""


class SGLD(Sampler):
    r"""Draws from the posterior by stochastic gradient Langevin dynamics: gradient steps on minibatches, plus noise.

    .. math:: w \leftarrow w + \varepsilon\, G\, \nabla \log \tilde p(w, D) + \sqrt{2 \varepsilon G}\, \xi,
        \qquad \varepsilon = \mathrm{lr} / N,

    where log p̃ is the log joint density estimated from a minibatch, N the number of data, and G a diagonal
    preconditioner. There is no acceptance step, so a large step size widens the posterior: on a Gaussian of precision a
    the variance is 1/(a·(1 − ε·a/2)). For data too many for :class:`credo.HMC`, which has no such bias.

    All chains are one batch and see the same minibatches. The data are held in memory.

    Args:
        net: any ``nn.Module``; it is not rewritten.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        prior: p(w), any univariate torch distribution, or a mapping from name patterns to them; ``None``: N(0, 1).
        chains: number of chains.
        warmup: steps of each chain before its first draw, over all cycles.
        draws: number of draws per chain; with cycles, a multiple of their number.
        thinning: steps per draw.
        lr: step size per datum; with a preconditioner, a change of the weights per step, as for Adam. Steps of single
            weights are smaller where the noise of minibatches would otherwise widen the posterior most, see
            ``preconditioned``.
        batch_size: rows per minibatch; ``None``: all.
        cycles: number of cycles of Zhang et al. (2020), or ``None``: a constant step size. In each cycle the step size
            falls from its maximum to 0 as a cosine; its first part, ``warmup/cycles`` steps, runs without noise and
            finds a mode, its second part draws from it.
        preconditioned: whether G = 1/(√V + δ), with V a running mean of squared gradients as in RMSprop (Li et al.
            2016). It is learned in the warm-up and fixed while draws are taken, which leaves the posterior as it is.
            With a constant step size V goes back over half of the warm-up, and G is limited, for each weight, to where
            ρ = ε·G·E[g²]/2 ≤ 1, g the gradient of log p̃ in the warm-up: steps widen the variance by a factor of 1 + ρ.
            ``history`` has the share of the weights that are limited.
        init: where chains start, as for :class:`credo.HMC`.
        noise_prior: the prior of what the likelihood learns, as for :class:`credo.HMC`.
        bayesian: name pattern or patterns of the parameters to draw; ``"*"`` is all trainable ones but the affine
            parameters of normalization layers.
        temperature: T; below 1 a cold posterior.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Attributes:
        posterior: the draws of the weights, a :class:`credo.posteriors.Empirical`.
        likelihood_posterior: the draws of the likelihood's parameters, or ``None`` if it learns none.

    Example:
        >>> model = credo.SGLD(net, credo.Categorical(), cycles=4, warmup=2000, draws=80).fit((x, y), seed=0)
        >>> model.predict(x_new).epistemic

    References: M. Welling, Y. W. Teh, "Bayesian learning via stochastic gradient Langevin dynamics", ICML 2011. C. Li,
    C. Chen, D. Carlson, L. Carin, "Preconditioned stochastic gradient Langevin dynamics for deep neural networks", AAAI
    2016. R. Zhang, C. Li, J. Zhang, C. Chen, A. G. Wilson, "Cyclical stochastic gradient MCMC for Bayesian deep
    learning", ICLR 2020.
    """

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        *,
        chains: int = 4,
        warmup: int = 2000,
        draws: int = 100,
        thinning: int = 20,
        lr: float = 1e-3,
        batch_size: int | None = 128,
        cycles: int | None = None,
        preconditioned: bool = True,
        init: str = "optimized",
        noise_prior: Prior | None = None,
        bayesian: str | Sequence[str] = "*",
        temperature: float = 1.0,
        forward: Forward | None = None,
    ) -> None:
        self._steps = Settings(lr, 1.0, batch_size, preconditioned)
        super().__init__(
            net,
            likelihood,
            prior,
            chains=chains,
            plan=Plan.build(warmup, draws, thinning, cycles),
            init=init,
            noise_prior=noise_prior,
            bayesian=bayesian,
            temperature=temperature,
            forward=forward,
        )

    @override
    def _run(self, target: LogJoint, start: Tensor, seeds: Sequence[int], report: Report) -> Run:
        return _run(self._steps, self._plan, target, start, seeds, report)

    @override
    def _settings(self) -> dict[str, object]:
        settings = _describe(self._steps, self._plan)
        return {name: value for name, value in settings.items() if name != "friction"}


class SGHMC(Sampler):
    r"""Draws from the posterior by stochastic gradient Hamiltonian Monte Carlo: momentum, friction and noise.

    .. math:: v \leftarrow (1 - \alpha) v + \varepsilon\, G\, \nabla \log \tilde p(w, D)
        + \sqrt{2 \alpha \varepsilon G}\, \xi, \qquad w \leftarrow w + v, \qquad \varepsilon = \mathrm{lr} / N.

    With α = 1 this is :class:`credo.SGLD`; a small α keeps the direction for about 1/α steps, which moves further
    for the same number of gradients. The step that corresponds to that of SGLD is lr/α.

    Args:
        net: any ``nn.Module``; it is not rewritten.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        prior: p(w), any univariate torch distribution, or a mapping from name patterns to them; ``None``: N(0, 1).
        chains: number of chains.
        warmup: steps of each chain before its first draw, over all cycles.
        draws: number of draws per chain; with cycles, a multiple of their number.
        thinning: steps per draw.
        lr: step size per datum.
        friction: α, between 0 and 1; one minus the momentum of SGD.
        batch_size: rows per minibatch; ``None``: all.
        cycles: as for :class:`credo.SGLD`.
        preconditioned: as for :class:`credo.SGLD`, with ε/α in place of ε.
        init: where chains start, as for :class:`credo.HMC`.
        noise_prior: the prior of what the likelihood learns, as for :class:`credo.HMC`.
        bayesian: name pattern or patterns of the parameters to draw; ``"*"`` is all trainable ones but the affine
            parameters of normalization layers.
        temperature: T; below 1 a cold posterior.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Attributes:
        posterior: the draws of the weights, a :class:`credo.posteriors.Empirical`.
        likelihood_posterior: the draws of the likelihood's parameters, or ``None`` if it learns none.

    Example:
        >>> model = credo.SGHMC(net, credo.Categorical(), friction=0.05).fit((x, y), seed=0)

    Reference: T. Chen, E. B. Fox, C. Guestrin, "Stochastic gradient Hamiltonian Monte Carlo", ICML 2014, equation 15.
    """

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        *,
        chains: int = 4,
        warmup: int = 2000,
        draws: int = 100,
        thinning: int = 20,
        lr: float = 3e-4,
        friction: float = 0.1,
        batch_size: int | None = 128,
        cycles: int | None = None,
        preconditioned: bool = True,
        init: str = "optimized",
        noise_prior: Prior | None = None,
        bayesian: str | Sequence[str] = "*",
        temperature: float = 1.0,
        forward: Forward | None = None,
    ) -> None:
        self._steps = Settings(lr, friction, batch_size, preconditioned)
        super().__init__(
            net,
            likelihood,
            prior,
            chains=chains,
            plan=Plan.build(warmup, draws, thinning, cycles),
            init=init,
            noise_prior=noise_prior,
            bayesian=bayesian,
            temperature=temperature,
            forward=forward,
        )

    @override
    def _run(self, target: LogJoint, start: Tensor, seeds: Sequence[int], report: Report) -> Run:
        return _run(self._steps, self._plan, target, start, seeds, report)

    @override
    def _settings(self) -> dict[str, object]:
        return _describe(self._steps, self._plan)


def _describe(settings: Settings, plan: Plan) -> dict[str, object]:
    """The arguments, for JSON."""
    cycles = plan.cycles if plan.is_cyclical else None
    return {**dataclasses.asdict(settings), "thinning": plan.thinning, "cycles": cycles}


def _run(settings: Settings, plan: Plan, target: LogJoint, start: Tensor, seeds: Sequence[int], report: Report) -> Run:
    if len(seeds) > 1:
        raise UnsupportedError("SGLD and SGHMC run on one data set at a time; use HMC or MCLMC, or fit one by one")
    seed = seeds[0]
    draws = sample(
        target.estimate, start, concatenate(target.data), settings, plan, seed, report, target.refresher(seed)
    )
    chains, count = draws.shape[:2]
    rows = sum(len(batch.y) for batch in target.data)
    log_density = torch.full((chains, count), -math.inf, dtype=torch.float64, device=draws.device)
    lowest = torch.full_like(log_density[:, 0], math.inf)
    for i in range(count - 1, -1, -math.ceil(count / _EVALUATED_DRAWS)):
        log_likelihood = target.log_likelihood(draws[:, i])
        log_density[:, i] = (log_likelihood + target.log_prior(draws[:, i])).nan_to_num(nan=-math.inf)
        lowest = torch.minimum(lowest, log_likelihood.nan_to_num(nan=-math.inf))
    _check_has_not_diverged(target.log_likelihood(start), lowest, start.shape[1], settings)
    details = {
        "steps": f"{plan.steps:,}, {plan.thinning} per draw",
        "rows per step": f"{min(settings.batch_size or rows, rows):,}",
    }
    return Run(draws, log_density, torch.zeros(0), details)


def _check_has_not_diverged(before: Tensor, lowest: Tensor, size: int, settings: Settings) -> None:
    """Raise ``DivergenceError`` if a chain has draws that are far wider than any posterior.

    The log density of a normal posterior of P weights is about ½·P below its mode, and ½·s²·P if draws are s times as
    wide; the log likelihood falls by no more. It is compared in place of the density, because drawn variances of the
    prior follow the weights, wherever they go.

    Args:
        before: the log likelihood where chains start, ``[K]``.
        lowest: that of the draws, at the lowest, ``[K]``.
        size: P.
        settings: the step size.
    """
    fall = before - lowest
    has_diverged = fall > 0.5 * _FAR**2 * size
    if bool(has_diverged.any()):
        k = int(fall.argmax())
        raise DivergenceError(
            f"{int(has_diverged.sum())} of {counted(len(fall), 'chain')} diverged, the log likelihood fell from "
            f"{float(before[k]):.3g} to {float(lowest[k]):.3g}: choose a smaller step size, such as "
            f"lr={settings.lr / 10:.1g}, or scale the data"
        )
