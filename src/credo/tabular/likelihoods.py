"""The likelihood of a quantity in a table: what it can be, how targets are encoded for it, and how one is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo._arguments import check_option
from credo._threads import one_thread
from credo.data import Batch
from credo.errors import InputError
from credo.likelihoods import Beta, Gaussian, Likelihood, NegativeBinomial, Poisson, StudentT
from credo.methods import MAP
from credo.methods._fold_training import FoldSchedule, fit_on_folds
from credo.predictive import RealPredictive
from credo.predictive.bounded import LogNormalComponents
from credo.predictive.components import RealComponents
from credo.predictive.location_scale import GaussianComponents
from credo.seeding import seeded
from credo.tabular import stacked
from credo.tabular.methods import NetworkSpec, TrainingPlan
from credo.tabular.predictions import predict_features

FAMILIES = ("gaussian", "student_t", "log_normal", "poisson", "negative_binomial", "beta")
LIKELIHOODS = ("auto", *FAMILIES)

STUDENT_T_DF = 4.0
"""The degrees of freedom of Student-t noise: its tails are heavy, and its variance is finite."""

CLEAR = 2.0
"""Standard errors by which a likelihood must be better than the Gaussian to be chosen."""

MIN_STEPS = 500
"""With fewer steps of training likelihoods are not compared, as that would take most of the time."""
MAX_ROWS = 4_000
"""The largest number of rows by which likelihoods are compared."""

_STEPS = 400  # of a short training
_MAX_COUNT = 1000  # integers that go beyond are treated as real numbers
_MIN_ROWS = 50
_MIN_GAIN = 0.02  # nats per row
_LARGEST_DIFFERENCE = 3.0  # nats: one row alone decides nothing
_MIN_RELATIVE_SPREAD = 0.2  # below, a log-normal is hardly different from a Gaussian


@dataclass(frozen=True)
class TargetFamily:
    """A likelihood, and the encoding of the target for it.

    Real targets are standardized, for a log-normal their logarithms; counts and shares are not, but the output of the
    network has an offset, such that 0 is the mean of the training targets.

    Attributes:
        name: one of :data:`FAMILIES`.
        center: the mean of the targets, or of their logarithms; for counts and shares the offset.
        scale: the standard deviation of the targets, or of their logarithms; 1 for counts and shares.
        lower: the lower end of a share.
        upper: the upper end of a share.
        note: why it was chosen; empty if it was not chosen from several.
    """

    name: str
    center: float
    scale: float
    lower: float = 0.0
    upper: float = 1.0
    note: str = ""

    @classmethod
    def learn(cls, name: str, values: NDArray[np.float64], center: float, scale: float) -> TargetFamily:
        """Fit the encoding to the training targets.

        Args:
            name: one of :data:`FAMILIES`.
            values: the training targets ``[N]``.
            center: the mean of the standardized target.
            scale: its standard deviation.

        Returns:
            The family.

        Raises:
            InputError: if the likelihood gives some target no probability.
        """
        _check_possible(name, values)
        if name in ("gaussian", "student_t"):
            return cls(name, center, scale)
        if name == "log_normal":
            logs = np.log(values)
            return cls(name, float(logs.mean()), float(logs.std()) or 1.0)
        mean = float(values.mean())
        if name != "beta":
            return cls(name, math.log(max(mean, 1.0 / len(values))), 1.0)
        margin = 0.5 / max(len(values) - 1, 1)  # Smithson & Verkuilen 2006
        reaches_end = bool(values.min() < 1e-6 or values.max() > 1 - 1e-6)
        lower, upper = (-margin, 1 + margin) if reaches_end else (0.0, 1.0)
        share = (mean - lower) / (upper - lower)
        return cls(name, math.log(share / (1 - share)), 1.0, lower, upper)

    @property
    def discrete(self) -> bool:
        """Whether targets are counts."""
        return self.name in ("poisson", "negative_binomial")

    def likelihood(self, noise_varies: bool) -> tuple[int, Likelihood]:
        """The number of outputs of the network and the likelihood given them, with noise per row or one for all."""
        noise = "heteroscedastic" if noise_varies else "learned"
        outputs = 2 if noise_varies else 1
        match self.name:
            case "student_t":
                return outputs, StudentT(STUDENT_T_DF, noise)
            case "poisson":
                return 1, Poisson(self.center)
            case "negative_binomial":
                return outputs, NegativeBinomial(noise, offset=self.center)
            case "beta":
                return outputs, Beta(noise, lower=self.lower, upper=self.upper, offset=self.center)
            case _:
                return outputs, Gaussian(noise)

    def encode(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """Targets as the network is trained on them ``[N]``."""
        _check_possible(self.name, values)
        if self.discrete or self.name == "beta":
            return values.astype(np.float32)
        shown = np.log(values) if self.name == "log_normal" else values
        return np.asarray((shown - self.center) / self.scale, dtype=np.float32)

    def decode(self, encoded: NDArray[Any]) -> Tensor:
        """The inverse of :meth:`encode`."""
        values = torch.from_numpy(encoded.astype(np.float64))
        if self.discrete or self.name == "beta":
            return values
        values = values * self.scale + self.center
        return values.exp() if self.name == "log_normal" else values

    def to_target_units(self, components: RealComponents) -> RealComponents:
        """The components of an encoded target in the target's own units."""
        if self.discrete or self.name == "beta":
            return components
        if self.name != "log_normal":
            return components.rescaled(self.scale, self.center)
        assert isinstance(components, GaussianComponents)
        log_y = components.rescaled(self.scale, self.center)
        return LogNormalComponents(log_y.mean, 0.5 * log_y.log_variance)

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TargetFamily:
        """The inverse of :meth:`get_config`."""
        return cls(**config)


def candidates(values: NDArray[np.float64]) -> list[str]:
    """The likelihoods to compare for a target, the Gaussian first, by its values.

    Counts are integers from 0 to at most 1,000; shares lie between 0 and 1; a log-normal needs positive numbers that
    spread by more than a fifth of their mean.

    Args:
        values: the training targets ``[N]``.

    Returns:
        Some of :data:`FAMILIES`.
    """
    lowest, highest = float(values.min()), float(values.max())
    if len(values) < _MIN_ROWS or lowest == highest:
        return ["gaussian"]
    if lowest >= 0 and highest <= 1 and highest - lowest < 1 + 1e-12 and not set(np.unique(values)) <= {0.0, 1.0}:
        return ["gaussian", "student_t", "beta"]
    if lowest >= 0 and highest <= _MAX_COUNT and bool((values == np.round(values)).all()):
        return ["gaussian", "poisson", "negative_binomial"]
    spreads = lowest > 0 and values.std() > _MIN_RELATIVE_SPREAD * values.mean()
    return ["gaussian", "student_t", *(["log_normal"] if spreads else [])]


def choose_family(
    families: list[TargetFamily],
    values: NDArray[np.float64],
    parts: Sequence[NDArray[np.intp]],
    predict: Callable[[TargetFamily], list[RealPredictive]],
) -> TargetFamily:
    """Choose a likelihood by the log probability of targets that a short training did not see.

    Each part of the rows is predicted by a short training on the others. Counts are compared by the probability of the
    count, for continuous distributions that of the interval y ± ½; other targets by densities in their own units.
    Another likelihood than the first is chosen if it is better by more than :data:`CLEAR` standard errors of the paired
    differences, of which none counts for more than 3 nats, so that no row alone is the reason for it. It must also be
    better on average of the differences as they are: a log-normal that is a little better for most rows, and gives a
    few very small ones no chance, is not.

    Args:
        families: the candidates; the first one is the default.
        values: the training targets ``[N]``.
        parts: the rows that are predicted without them.
        predict: from a family to the predictions of every part, in the target's units.

    Returns:
        The chosen family, with a note.
    """
    counts = any(family.discrete for family in families)
    scores = []
    for family in families:
        by_part = [_log_prob(p, values[part], counts) for p, part in zip(predict(family), parts, strict=True)]
        scores.append(np.concatenate(by_part))
    default, others = families[0], families[1:]
    gains = [score - scores[0] for score in scores[1:]]
    robust = [np.clip(gain, -_LARGEST_DIFFERENCE, _LARGEST_DIFFERENCE) for gain in gains]
    means = [float(gain.mean()) for gain in robust]
    errors = [float(gain.std(ddof=1)) / math.sqrt(len(gain)) for gain in robust]
    clear = [
        mean > max(CLEAR * error, _MIN_GAIN) and gain.mean() > 0.0
        for mean, error, gain in zip(means, errors, gains, strict=True)
    ]
    best = max(range(len(others)), key=lambda k: (clear[k], means[k]))
    name, standard_errors = (
        others[best].name.replace("_", " "),
        means[best] / errors[best] if errors[best] else math.inf,
    )
    measured = f"{gains[best].mean():+.2f} nats per held-out row, {standard_errors:.1f} standard errors"
    if clear[best]:
        note = f"The {name} likelihood was chosen over the {default.name} one: {measured}."
        return TargetFamily(**{**asdict(others[best]), "note": note})
    note = f"The {default.name} likelihood was kept: no other is clearly better (best: {name}, {measured})."
    return TargetFamily(**{**asdict(default), "note": note})


@dataclass(frozen=True, eq=False)
class ShortTraining:
    """Trains a few small networks, each on most of the rows, to compare likelihoods by the rows that they hold out.

    Attributes:
        features: those of all rows ``[N, D]``.
        values: their targets ``[N]``.
        weight: how often each row counts ``[N]``; ``None``: once.
        parts: the rows that each network holds out.
        activation: the activation function between hidden layers.
        plan: the plan of the training that is to follow.
        noise_varies: whether the noise differs from row to row.
        seed: the random seed.
    """

    features: NDArray[Any]
    values: NDArray[np.float64]
    weight: NDArray[np.float32] | None
    parts: Sequence[NDArray[np.intp]]
    activation: str
    plan: TrainingPlan
    noise_varies: bool
    seed: int

    def __call__(self, family: TargetFamily) -> list[RealPredictive]:
        """Train, and predict the rows of every part in the target's units."""
        outputs, likelihood = family.likelihood(self.noise_varies)
        plan = replace(self.plan, batch_size=min(self.plan.batch_size, 256))
        spec = NetworkSpec(
            self.features.shape[1], outputs, likelihood, stacked.HIDDEN, self.activation, plan, self.features
        )
        with seeded(self.seed, torch.device("cpu")):
            ensemble = stacked.build(spec, scales=[1.0])
        members = [member for member in ensemble.members if isinstance(member, MAP)][: len(self.parts)]
        weight = None if self.weight is None else torch.from_numpy(self.weight)
        targets = torch.from_numpy(family.encode(self.values)[:, None])
        schedule = FoldSchedule(_STEPS, plan.batch_size, stacked.RATE * plan.lr)
        with one_thread(True):
            fit_on_folds(
                members, Batch(torch.from_numpy(self.features), targets, weight), self.parts, schedule, seed=self.seed
            )
        return [self._predict(member, family, part) for member, part in zip(members, self.parts, strict=True)]

    def _predict(self, member: MAP, family: TargetFamily, rows: NDArray[np.intp]) -> RealPredictive:
        predictive = predict_features(member.double()._predictor(0, None), self.features[rows])
        assert isinstance(predictive, RealPredictive)
        components = predictive.components.map(lambda t: t.squeeze(-1))
        return replace(predictive, components=family.to_target_units(components))


def check_likelihood(name: object) -> str:
    """Raise ``InputError`` unless ``name`` is one of :data:`LIKELIHOODS`."""
    return check_option(name, "likelihood", LIKELIHOODS)


def _log_prob(predictive: RealPredictive, values: NDArray[np.float64], counts: bool) -> NDArray[np.float64]:
    y = torch.from_numpy(values)
    if counts and not predictive.components.discrete:
        probability = predictive.cdf(y + 0.5) - predictive.cdf(y - 0.5)
        return np.asarray(probability.clamp(min=1e-12).log().numpy())
    return np.asarray(predictive.log_prob(y).numpy())


def _check_possible(name: str, values: NDArray[np.float64]) -> None:
    """Raise ``InputError`` if a likelihood gives some of the targets no probability."""
    lowest, highest = float(values.min()), float(values.max())
    if name == "log_normal" and lowest <= 0:
        raise InputError(f"likelihood='log_normal' needs positive targets, but the smallest is {lowest:g}")
    if name == "beta" and not 0 <= lowest <= highest <= 1:
        raise InputError(f"likelihood='beta' needs targets from 0 to 1, but they go from {lowest:g} to {highest:g}")
    if name in ("poisson", "negative_binomial") and (lowest < 0 or bool((values != np.round(values)).any())):
        raise InputError(f"likelihood={name!r} needs counts, integers from 0, but the targets hold other numbers")
