"""Contextual bandits by Thompson sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from credo._arguments import check_integer, check_positive
from credo._threads import one_thread
from credo.decisions._models import (
    ModelSource,
    as_numbers,
    as_rows,
    check_model,
    child_seed,
    draw_functions,
    is_trained_by_its_loss,
    target_shape,
)
from credo.errors import CredoError, InputError
from credo.methods.base import Method
from credo.seeding import check_seed, generator, seeded
from credo.training.optimizers import adam

_DECISIONS, _TRAINING, _FIRST_ARMS = range(3)
"""The random streams of a bandit."""
_DECISIONS_AT_ONCE = 32  # each row is evaluated under the draws of all of them


class ThompsonBandit:
    r"""Thompson sampling for a contextual bandit: act as if one draw from the posterior were the truth.

    For a context x, one function f is drawn from the posterior, and the arm

        a = argmax_a f(x, a)

    is chosen, where f(x, a) is the expected reward. An arm is so chosen with the probability that it is the best one
    (Thompson 1933): exploration ends as the posterior narrows. Every decision has its own draw.

    The model is a regression of the reward on a context and an arm: its inputs are the context followed by the features
    of the arm, ``[D + A]``, and its output is one number. It learns from the last ``buffer_size`` rewards: by gradient
    steps on minibatches from the buffer after every reward (``steps``), or, for models that are not trained by gradient
    steps, by fitting it to the buffer from time to time (``refit_every``).

    Args:
        model: a method, or an estimator with draws such as ``credo.linear.BayesianLinearRegression()``. It is trained
            in place; for a method, the likelihood must be given. A point estimate (``credo.MAP``) makes the policy
            greedy, MC dropout draws masks, an ensemble draws a member.
        arms: the number of arms K, encoded as one of K; or the features of K arms, ``[K, A]``.
        buffer_size: number of rewards that the model learns from; older ones are forgotten.
        batch_size: rows per gradient step.
        steps: gradient steps per reward.
        lr: learning rate of the gradient steps, constant.
        n_data: number of rewards that a gradient step takes the buffer for, so that the weight of the prior, or of the
            KL, is 1/``n_data`` per row; ``None``: as many as there are. A constant, as in Blundell et al., whose 64
            minibatches of 64 rewards share the KL from the first reward on, counts the first rewards several times:
            a network under Bayes by Backprop then learns from them instead of staying with its prior.
        optimizer: ``callable(parameter_groups, lr=...)``; ``None``: Adam.
        refit_every: number of rewards between calls of ``fit``; ``None``: gradient steps. Until the first fit, arms are
            chosen at random. A method continues from its weights, an estimator starts anew.
        fit_options: the options of a method's ``fit``, with ``refit_every``.
        initial_pulls: number of first decisions per arm, in turn, before the posterior decides. A posterior that starts
            narrower than the prior does not explore: after bad luck with its first decisions it may avoid an arm for
            good. Riquelme et al. use 2 or 3.
        draws: number of draws that are averaged for a decision; 1 is Thompson sampling, many are greedy. Blundell et
            al. use 2.
        seed: makes all decisions reproducible; ``None``: from torch's random state.

    Attributes:
        n_rewards: number of rewards so far.

    Raises:
        InputError: if an argument is not valid, or a model without a loss is given without ``refit_every``.

    Example:
        >>> net = credo.architectures.MLP(10 + 3, (100, 100), 1)
        >>> model = credo.BayesByBackprop(net, credo.Gaussian(noise=0.5))
        >>> bandit = credo.decisions.ThompsonBandit(model, arms=3, seed=0)
        >>> arm = int(bandit.select(context))
        >>> bandit.update(context, arm, reward)

    References:
        W. R. Thompson. On the likelihood that one unknown probability exceeds another in view of the evidence of two
        samples. Biometrika 1933.
        C. Blundell, J. Cornebise, K. Kavukcuoglu, D. Wierstra. Weight uncertainty in neural networks. ICML 2015.
        C. Riquelme, G. Tucker, J. Snoek. Deep Bayesian bandits showdown. ICLR 2018.
    """

    def __init__(
        self,
        model: Any,
        arms: int | Tensor,
        *,
        buffer_size: int = 4096,
        batch_size: int = 64,
        steps: int = 1,
        lr: float = 1e-3,
        n_data: int | None = None,
        optimizer: Callable[..., Optimizer] | None = None,
        refit_every: int | None = None,
        fit_options: Mapping[str, Any] | None = None,
        initial_pulls: int = 0,
        draws: int = 1,
        seed: int | None = None,
    ) -> None:
        self.model = check_model(model)
        self.buffer_size = check_integer(buffer_size, "buffer_size", minimum=1)
        self.batch_size = check_integer(batch_size, "batch_size", minimum=1)
        self.steps = check_integer(steps, "steps", minimum=1)
        self.n_data = None if n_data is None else check_integer(n_data, "n_data", minimum=1)
        self.initial_pulls = check_integer(initial_pulls, "initial_pulls", minimum=0)
        self.draws = check_integer(draws, "draws", minimum=1)
        self.refit_every = None if refit_every is None else check_integer(refit_every, "refit_every", minimum=1)
        self.seed = check_seed(seed)
        self.n_rewards = 0
        self._n_decisions = self._n_contexts = 0
        self._arms = self._check_arms(arms)
        self._source = ModelSource(model, fit_options)
        self._is_fitted = self.refit_every is None
        self._inputs: Tensor | None = None
        self._rewards: Tensor | None = None
        self._target_shape: torch.Size | None = None
        self._optimizer: Optimizer | None = None
        if self.refit_every is not None:
            return
        if not isinstance(model, Method) or not is_trained_by_its_loss(model):
            raise InputError(
                f"{type(model).__name__} is not trained by gradient steps: pass refit_every, the number of rewards "
                "between two calls of its fit"
            )
        if fit_options:
            raise InputError("fit_options are for refit_every; gradient steps have steps, batch_size, lr and optimizer")
        groups = model.parameter_groups()
        self._optimizer = (optimizer or adam)(groups, lr=check_positive(lr, "lr"))

    @property
    def n_arms(self) -> int:
        """The number of arms K."""
        return len(self._arms)

    def select(self, context: Any) -> Tensor:
        """Choose an arm for every context, each by its own draw from the posterior.

        Args:
            context: the features of one context, ``[D]``, or of B of them, ``[B, D]``; with no features, ``[0]``.

        Returns:
            The numbers of the arms, int64: ``[]`` for one context, ``[B]`` for B.

        Raises:
            InputError: if the context has another shape.
        """
        rows = as_rows(context, self.model, "context")
        contexts = torch.atleast_2d(rows)  # also of no features, [0]
        self._check_width(contexts)
        chosen = [self._choose(part) for part in contexts.split(_DECISIONS_AT_ONCE)] if len(contexts) else []
        arms = torch.cat(chosen) if chosen else torch.zeros(0, dtype=torch.long)
        number = torch.arange(self._n_contexts, self._n_contexts + len(arms))
        arms = torch.where(number < self.initial_pulls * self.n_arms, number % self.n_arms, arms)
        self._n_contexts += len(arms)
        return arms.reshape(rows.shape[:-1])

    def update(self, context: Any, arm: Any, reward: Any) -> Self:
        """Learn from rewards.

        Args:
            context: the contexts, ``[D]`` or ``[B, D]``.
            arm: the arms that were chosen in them, an integer or ``[B]``; they need not come from :meth:`select`.
            reward: the rewards, a number or ``[B]``.

        Returns:
            The bandit itself.

        Raises:
            InputError: if the shapes do not match, an arm does not exist, a reward is not finite or the model has
                several outputs. The bandit is unchanged.
        """
        rows = as_rows(context, self.model, "context")
        contexts = torch.atleast_2d(rows)  # also of no features, [0]
        self._check_width(contexts)
        arms = self._check_arm(arm)
        rewards = as_numbers(reward, "reward").to(contexts.device, contexts.dtype).reshape(-1)
        if not len(arms) == len(rewards) == len(contexts):
            raise InputError(
                f"context, arm and reward must have the same number of rows, got {len(contexts)}, {len(arms)} and "
                f"{len(rewards)}"
            )
        if not bool(rewards.isfinite().all()):
            raise InputError(f"reward must be finite, got {reward!r}")
        before, inputs = self.n_rewards, torch.cat([contexts, self._arms[arms.to(self._arms.device)]], 1)
        if self._target_shape is None and len(inputs) and isinstance(self.model, Method):
            with self._naming_widths(contexts):  # before the width is that of the buffer
                self._target_shape = target_shape(self.model, inputs)
        self._store(inputs, rewards)
        if self.refit_every is None:
            self._take_steps(self.steps * len(rewards))
        elif self.n_rewards // self.refit_every > before // self.refit_every:
            self._refit()
        return self

    def _choose(self, contexts: Tensor) -> Tensor:
        """The arms for contexts ``[B, D]``, decision b with draws of its own."""
        b, k = len(contexts), self.n_arms
        self._n_decisions += 1
        if not self._is_fitted:
            stream = generator(torch.device("cpu"), self.seed, _FIRST_ARMS, self._n_decisions)
            return torch.randint(k, (b,), generator=stream)
        x = torch.cat([contexts.repeat_interleave(k, 0), self._arms.repeat(b, 1)], 1)
        seed = child_seed(self.seed, _DECISIONS, self._n_decisions)
        with self._naming_widths(contexts):
            values = draw_functions(self.model, x, b * self.draws, seed)
        if values[0].numel() != b * k:
            raise InputError(
                f"the model must output one number, the expected reward, got shape {list(values.shape[2:])} per row"
            )
        own = values.reshape(b, self.draws, b, k).diagonal(dim1=0, dim2=2)  # [draws, K, B]
        return own.mean(0).argmax(0).cpu()

    @contextmanager
    def _naming_widths(self, contexts: Tensor) -> Iterator[None]:
        """Say in an error of the user's network how wide its inputs are."""
        try:
            yield
        except CredoError:
            raise
        except RuntimeError as error:
            raise InputError(
                f"the model cannot be called on {contexts.shape[1]} features of a context followed by "
                f"{self._arms.shape[1]} of an arm: {error}"
            ) from error

    def _store(self, inputs: Tensor, rewards: Tensor) -> None:
        """Write rows to the buffer, over the oldest ones."""
        if self._inputs is None or self._rewards is None:
            self._inputs = inputs.new_zeros(self.buffer_size, inputs.shape[1])
            self._rewards = inputs.new_zeros(self.buffer_size)
        keep = min(len(rewards), self.buffer_size)
        self.n_rewards += len(rewards)
        slots = torch.arange(self.n_rewards - keep, self.n_rewards, device=inputs.device) % self.buffer_size
        self._inputs[slots] = inputs[-keep:]
        self._rewards[slots] = rewards[-keep:]

    def _buffer(self) -> tuple[Tensor, Tensor]:
        assert self._inputs is not None
        assert self._rewards is not None
        stored = min(self.n_rewards, self.buffer_size)
        return self._inputs[:stored], self._targets(self._rewards[:stored])

    def _targets(self, rewards: Tensor) -> Tensor:
        """Rewards in the shape of the network's output, ``[N]`` or ``[N, 1]``."""
        return rewards if self._target_shape is None else rewards.reshape(-1, *self._target_shape)

    def _take_steps(self, steps: int) -> None:
        """Gradient steps on random minibatches of the buffer, whose rows share the KL."""
        assert self._optimizer is not None
        x, y = self._buffer()
        n, size = len(x), min(self.batch_size, len(x))
        with one_thread(x.device.type == "cpu"), seeded(child_seed(self.seed, _TRAINING, self.n_rewards), x.device):
            for _ in range(steps):
                rows = torch.randint(n, (size,), device=x.device)
                self._optimizer.zero_grad()
                self.model.loss(x[rows], y[rows], n_data=self.n_data or n).backward()
                self._optimizer.step()

    def _refit(self) -> None:
        x, y = self._buffer()
        self._source.fit(self.model, x, y, child_seed(self.seed, _TRAINING, self.n_rewards))
        self._is_fitted = True

    def _check_arm(self, arm: Any) -> Tensor:
        """The numbers of arms, ``[B]``, int64."""
        try:
            arms = torch.as_tensor(arm).reshape(-1).cpu()
        except (TypeError, ValueError, RuntimeError):
            arms = torch.full((1,), torch.nan)
        is_integer = not (arms.is_floating_point() or arms.is_complex() or arms.dtype == torch.bool) or not len(arms)
        if not is_integer or bool(((arms < 0) | (arms >= self.n_arms)).any()):
            raise InputError(f"arm must be an integer between 0 and {self.n_arms - 1}, got {arm!r:.100}")
        return arms.long()

    def _check_arms(self, arms: int | Tensor) -> Tensor:
        if isinstance(arms, int | float | np.number):
            return as_rows(torch.eye(check_integer(arms, "arms", minimum=2)), self.model, "arms")
        features = as_rows(arms, self.model, "arms")
        if features.ndim != 2 or len(features) < 2:
            raise InputError(f"arms must be a number of at least 2, or features [K, A], got {arms!r}")
        return features

    def _check_width(self, contexts: Tensor) -> None:
        if self._inputs is not None and contexts.shape[1] + self._arms.shape[1] != self._inputs.shape[1]:
            expected = self._inputs.shape[1] - self._arms.shape[1]
            raise InputError(f"context must have {expected} features, as before, got {contexts.shape[1]}")
