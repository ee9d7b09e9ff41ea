r"""Microcanonical Langevin Monte Carlo: chains that move with constant speed and need no acceptance step."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from typing_extensions import override

from credo._arguments import check_positive
from credo.functional import Forward
from credo.likelihoods import Likelihood
from credo.methods._log_joint import LogJoint
from credo.methods._microcanonical import sample
from credo.methods._sampling import ByChain, Plan, Run
from credo.methods._scales import curvature_scale
from credo.methods.sampler import Report, Sampler
from credo.priors import Prior


class MCLMC(Sampler):
    r"""Draws from the posterior p(w | D) ∝ p(D | w)^(1/T)·p(w) by microcanonical Langevin Monte Carlo.

    A chain moves with constant speed, in a direction u that follows the gradient and is slowly forgotten,

    .. math:: \dot w = s\, u, \qquad \dot u = (I - u u^\top)\, s\, \nabla \log p(w, D) / (P - 1), \qquad \|u\| = 1,

    P the number of weights. Each step costs one gradient on all data, and every step is made: there is no acceptance
    step, and the bias is controlled by the energy error that the step size may have; :meth:`summary` shows what it was
    after warm-up. Where the bias matters, compare with :class:`credo.HMC`, which has none.

    The chains are one batch and start at optimized members by default, an ensemble from which they sample. Warm-up
    adapts for each chain the step size, the scales s and the distance L after which its direction is forgotten. The
    network runs in evaluation mode. What a likelihood learns is drawn with the weights.

    Args:
        net: any ``nn.Module`` with at least two parameters to draw; it is not rewritten.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        prior: p(w), any univariate torch distribution, or a mapping from name patterns to them; ``None``: N(0, 1).
        chains: number of chains.
        warmup: steps of each chain that adapt its settings and are not kept.
        draws: number of draws per chain.
        thinning: steps per draw.
        energy_error: the variance of the energy error per step and weight that step sizes are adapted to; smaller is
            slower and has less bias.
        init: where chains start, as for :class:`credo.HMC`.
        init_steps: steps of Adam of ``init="optimized"``.
        noise_prior: the prior of what the likelihood learns, as for :class:`credo.HMC`.
        bayesian: name pattern or patterns of the parameters to draw; ``"*"`` is all trainable ones but the affine
            parameters of normalization layers.
        temperature: T; below 1 a cold posterior.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Attributes:
        posterior: the draws of the weights, a :class:`credo.posteriors.Empirical`.
        likelihood_posterior: the draws of the likelihood's parameters, or ``None`` if it learns none.

    Example:
        >>> model = credo.MCLMC(net, credo.Gaussian("learned"), chains=8).fit((x, y), seed=0)
        >>> print(model.summary())  # step size, energy error, R-hat, effective sample size

    References: J. Robnik, U. Seljak, "Fluctuation without dissipation: microcanonical Langevin Monte Carlo", AABI 2024.
    E. Sommer, J. Robnik, G. Nozadze, U. Seljak, D. Rügamer, "Microcanonical Langevin ensembles: advancing the sampling
    of Bayesian neural networks", ICLR 2025 (chains from optimized members).
    """

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        *,
        chains: int = 4,
        warmup: int = 5000,
        draws: int = 500,
        thinning: int = 20,
        energy_error: float = 5e-4,
        init: str = "optimized",
        init_steps: int = 500,
        noise_prior: Prior | None = None,
        bayesian: str | Sequence[str] = "*",
        temperature: float = 1.0,
        forward: Forward | None = None,
    ) -> None:
        super().__init__(
            net,
            likelihood,
            prior,
            chains=chains,
            plan=Plan.build(warmup, draws, thinning),
            init=init,
            init_steps=init_steps,
            noise_prior=noise_prior,
            bayesian=bayesian,
            temperature=temperature,
            forward=forward,
        )
        self._energy_error = check_positive(energy_error, "energy_error")

    @override
    def _run(self, target: LogJoint, start: Tensor, seeds: Sequence[int], report: Report) -> Run:
        scale = None if self._init == "prior" else curvature_scale(target, start, seeds)
        run = sample(
            target,
            start,
            self._plan,
            seed=seeds,
            scale=scale,
            energy_error=self._energy_error,
            report=report,
            refresh=target.refresher(seeds),
        )
        details: dict[str, str | ByChain] = {
            "steps": f"{self._plan.steps:,}, {self._plan.thinning} per draw",
            "step size by chain": ByChain(run.step_size, ".3g"),
            "memory by chain": ByChain(run.length, ".3g"),
            "energy error by chain": ByChain(run.energy_error, ".2g"),
            "divergences by chain": ByChain(run.divergences, ",.0f"),
        }
        return Run(run.draws, run.log_density, run.divergences, details)

    @override
    def _settings(self) -> dict[str, object]:
        return {
            "init_steps": self._init_steps,
            "thinning": self._plan.thinning,
            "energy_error": self._energy_error,
        }
