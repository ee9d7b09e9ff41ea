r"""Hamiltonian Monte Carlo: draws from the posterior itself, by chains that follow its gradient."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from typing_extensions import override

from credo._arguments import check_fraction, check_integer
from credo.functional import Forward
from credo.likelihoods import Likelihood
from credo.methods._hamiltonian import Progress, sample
from credo.methods._log_joint import LogJoint
from credo.methods._sampling import ByChain, Plan, Run
from credo.methods._scales import curvature_scale
from credo.methods.sampler import Report, Sampler
from credo.priors import Prior


class HMC(Sampler):
    r"""Draws from the posterior p(w | D) ∝ p(D | w)^(1/T)·p(w) by Hamiltonian Monte Carlo, several chains at once.

    A chain moves along trajectories of the dynamics with potential −log p(w, D), which reach far and are accepted with
    high probability; full-batch gradients, so for small networks and tables. All chains are one batch
    (:class:`credo.stacking.Stack`). Warm-up adapts the step size and a diagonal mass matrix for each chain, and the
    length of trajectories for all. The network runs in evaluation mode: dropout is off, and batch norm uses the
    statistics it has. Parameters that are not covered by ``bayesian`` keep their values.

    What a likelihood learns, such as log σ of ``Gaussian("learned")``, is drawn with the weights, under a prior of its
    own, and predictions use the noise of each draw. After :meth:`fit` the network and the likelihood hold the draw
    with the highest density, which ``predict(x, samples=0)`` uses: the mean of weights in several modes would not be a
    good network.

    Args:
        net: any ``nn.Module``; it is not rewritten.
        likelihood: p(y | f(x)); ``None`` follows from the target's dtype.
        prior: p(w), any univariate torch distribution, or a mapping from name patterns to them; ``None``: N(0, 1).
        chains: number of chains.
        warmup: transitions of each chain that adapt its settings and are not kept.
        draws: transitions of each chain that are kept.
        init: where chains start. ``"optimized"``: at new random weights, improved by Adam. ``"prior"``: at draws from
            the prior. ``"network"``: at the weights of the network, for one that is trained already.
        init_steps: steps of Adam of ``init="optimized"``, each of which costs one gradient on all data.
        leapfrog_steps: the largest number of leapfrog steps of a trajectory, each of which costs one gradient on all
            data; ``None``: adapted, up to 256. Each trajectory has between 1 and that many.
        acceptance: the acceptance rate that step sizes are adapted to.
        noise_prior: the prior of the parameters that the likelihood learns, which are logarithms; ``None``: N(0, 1),
            under which σ lies between 0.14 and 7.1 with probability 95 %: for targets of unit scale.
        bayesian: name pattern or patterns of the parameters to draw; ``"*"`` is all trainable ones but the affine
            parameters of normalization layers.
        temperature: T; below 1 a cold posterior.
        forward: ``callable(net, x)`` for networks with unusual inputs or outputs.

    Attributes:
        posterior: the draws of the weights, a :class:`credo.posteriors.Empirical`.
        likelihood_posterior: the draws of the likelihood's parameters, or ``None`` if it learns none.

    Example:
        >>> model = credo.HMC(net, credo.Gaussian("learned"), chains=4).fit((x, y), seed=0)
        >>> print(model.summary())  # acceptance, divergences, R-hat, effective sample size
        >>> model.predict(x_new, samples=200).interval(0.95)

    References: R. M. Neal, "MCMC using Hamiltonian dynamics", Handbook of MCMC, 2011. M. D. Hoffman, A. Gelman, "The
    No-U-Turn sampler", JMLR 15, 2014 (step size). M. D. Hoffman, A. Radul, P. Sountsov, "An adaptive-MCMC scheme for
    setting trajectory lengths in Hamiltonian Monte Carlo", AISTATS 2021 (ChEES).
    """

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        *,
        chains: int = 4,
        warmup: int = 500,
        draws: int = 500,
        init: str = "optimized",
        init_steps: int = 500,
        leapfrog_steps: int | None = None,
        acceptance: float = 0.8,
        noise_prior: Prior | None = None,
        bayesian: str | Sequence[str] = "*",
        temperature: float = 1.0,
        forward: Forward | None = None,
    ) -> None:
        if leapfrog_steps is not None:
            check_integer(leapfrog_steps, "leapfrog_steps", minimum=1)
        super().__init__(
            net,
            likelihood,
            prior,
            chains=chains,
            plan=Plan.build(warmup, draws),
            init=init,
            init_steps=init_steps,
            noise_prior=noise_prior,
            bayesian=bayesian,
            temperature=temperature,
            forward=forward,
        )
        self._leapfrog_steps, self._acceptance = leapfrog_steps, check_fraction(acceptance, "acceptance")

    @override
    def _run(self, target: LogJoint, start: Tensor, seeds: Sequence[int], report: Report) -> Run:
        def tell(step: Progress) -> None:
            report(step.iteration, {k: v for k, v in step._asdict().items() if k != "iteration"})

        run = sample(
            target,
            start,
            warmup=self._plan.warmup,
            draws=self._plan.draws,
            seed=seeds,
            scale=None if self._init == "prior" else curvature_scale(target, start, seeds),
            acceptance=self._acceptance,
            steps=self._leapfrog_steps,
            report=tell,
            refresh=target.refresher(seeds),
        )
        details: dict[str, str | ByChain] = {
            "acceptance by chain": ByChain(run.acceptance, ".2f"),
            "step size by chain": ByChain(run.step_size, ".3g"),
            "divergences by chain": ByChain(run.divergences, ",.0f"),
            "leapfrog steps": f"up to {run.max_steps}",
        }
        return Run(run.draws, run.log_density, run.divergences, details)

    @override
    def _settings(self) -> dict[str, object]:
        return {
            "init_steps": self._init_steps,
            "leapfrog_steps": self._leapfrog_steps,
            "acceptance": self._acceptance,
        }
