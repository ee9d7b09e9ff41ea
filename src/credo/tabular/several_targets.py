"""Several quantities as the targets of one network, encoded one by one, and the correlation of their noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo._text import listed, quoted
from credo.errors import InputError, LoadError, UnsupportedError, unknown_name
from credo.predictive import RealPredictive
from credo.predictive.components import average
from credo.predictive.joint import JointGaussianComponents, to_correlation
from credo.predictive.location_scale import GaussianComponents
from credo.tabular.dialects import Dialect
from credo.tabular.targets import RegressionTarget

_SHRINKAGE = 1e-6  # towards independent noise, so that the density of equal targets is finite


@dataclass(frozen=True)
class RegressionTargets:
    """Several quantities, each encoded as a :class:`credo.tabular.RegressionTarget` is.

    Attributes:
        targets: one per column, with different names.
        notes: sentences about them, and about rows left out.

    Example:
        >>> import pandas as pd
        >>> targets = RegressionTargets.learn(pd.DataFrame({"a": [1.0, 3.0], "b": [5.0, 4.0]}))
        >>> targets.names
        ('a', 'b')
    """

    targets: tuple[RegressionTarget, ...]
    notes: tuple[str, ...] = ()

    constant = False

    @classmethod
    def learn(cls, y: Any, dialect: Dialect | None = None) -> RegressionTargets:
        """Fit to the training targets.

        Args:
            y: a data frame or an array ``[N, K]``; a row with a missing target is left out.
            dialect: what is known about the writing of the table; ``None``: what the targets show.

        Returns:
            The targets.

        Raises:
            InputError: if names repeat, or a target cannot be used or is the same in every row.
        """
        frame = as_target_frame(y)
        if not frame.columns.is_unique:
            raise InputError(f"the targets must have different names, got {listed([quoted(n) for n in frame])}")
        targets = tuple(RegressionTarget.learn(frame[name], dialect) for name in frame)
        for target in targets:
            if target.constant:
                raise InputError(f"the target {quoted(target.name)} is the same in every row: leave it out")
        found = cls(targets, tuple(note for target in targets for note in target.notes))
        left_out = len(frame) - int(found.known(frame).sum())
        if left_out:
            found = cls(targets, (*found.notes, f"Rows left out, because a target is missing: {left_out:,}."))
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the targets."""
        return tuple(target.name for target in self.targets)

    @property
    def name(self) -> str:
        """The names, joined by commas."""
        return ",".join(self.names)

    @property
    def center(self) -> NDArray[np.float64]:
        """The means of the training targets ``[K]``."""
        return np.array([target.mean for target in self.targets])

    @property
    def scale(self) -> NDArray[np.float64]:
        """Their standard deviations ``[K]``."""
        return np.array([target.scale for target in self.targets])

    def index(self, name: str) -> int:
        """The position of a target, by its name."""
        if name not in self.names:
            raise unknown_name("target", name, self.names)
        return self.names.index(name)

    def known(self, y: Any) -> NDArray[np.bool]:
        """The rows of ``y`` ``[N, K]`` in which every target is known ``[N]``."""
        frame = self._frame(y)
        return np.asarray(np.all([target.known(frame[target.name]) for target in self.targets], axis=0))

    def parse(self, y: Any) -> NDArray[np.float64]:
        """The targets as numbers ``[N, K]``."""
        frame = self._frame(y)
        return np.column_stack([target.parse(frame[target.name]) for target in self.targets])

    def encode(self, y: Any) -> NDArray[np.float32]:
        """Targets to train on ``[N, K]``, each as :meth:`RegressionTarget.encode` does."""
        frame = self._frame(y)
        return np.column_stack([target.encode(frame[target.name]) for target in self.targets])

    def get_config(self) -> dict[str, object]:
        """The attributes as JSON values."""
        return {"targets": [target.get_config() for target in self.targets], "notes": list(self.notes)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RegressionTargets:
        """The inverse of :meth:`get_config`."""
        try:
            return cls(tuple(map(RegressionTarget.from_config, config["targets"])), tuple(config["notes"]))
        except (KeyError, TypeError) as error:
            raise LoadError(f"the saved description of the targets is damaged: {error!r}") from error

    def _frame(self, y: Any) -> pd.DataFrame:
        frame = as_target_frame(y)
        if isinstance(y, pd.DataFrame):
            absent = [quoted(name) for name in self.names if name not in frame]
            if absent:
                raise InputError(f"the targets must include {listed(absent)}, as in training")
            return frame[list(self.names)]
        if frame.shape[1] != len(self.targets):
            raise InputError(f"y must have the {len(self.targets)} columns of training, got {frame.shape[1]}")
        return frame.set_axis(list(self.names), axis=1)


def has_several_targets(y: Any) -> bool:
    """Whether ``y`` has more than one column."""
    shape = getattr(y, "shape", None) or np.asarray(y).shape  # no numpy function on objects that only convert to arrays
    return len(shape) == 2 and shape[1] > 1


def check_one_target(target: object, use: str) -> None:
    """Raise ``UnsupportedError`` if ``use``, such as ``"export"``, would get a model of several targets."""
    if isinstance(target, RegressionTargets):
        raise UnsupportedError(
            f"{use} is for one target, and this model has {listed([quoted(name) for name in target.names])}: "
            "fit a model for each of them"
        )


def as_target_frame(y: Any) -> pd.DataFrame:
    """Targets ``[N, K]`` as a data frame; the columns of an array are called y0, y1 and so on."""
    if isinstance(y, pd.DataFrame):
        return y.rename(columns=str)
    values = np.asarray(y)
    return pd.DataFrame(values, columns=[f"y{k}" for k in range(values.shape[1])])


def to_target_units(
    components: GaussianComponents, targets: RegressionTargets, correlation: NDArray[np.float64] | None
) -> GaussianComponents:
    """Gaussians of encoded targets ``[S, N, K]`` in the units of the targets, with the correlation of their noise."""
    scale, center = torch.from_numpy(targets.scale), torch.from_numpy(targets.center)
    assert components.noise is not None
    assert components.epistemic is not None
    parts = {
        "mean": center + scale * components.mean,
        "log_variance": components.log_variance + 2.0 * scale.log(),
        "noise": scale.square() * components.noise,
        "epistemic": scale.square() * components.epistemic,
    }
    if correlation is None:
        return GaussianComponents(**parts)
    return JointGaussianComponents(**parts, correlation=to_correlation(correlation))


def noise_correlation(predictive: RealPredictive, y: Tensor) -> NDArray[np.float64]:
    """Estimate the correlation R of the noise of several targets, the same for all rows, from residuals.

        z_ik = (y_ik − m_k(x_i)) / σ_k(x_i),    R_kl = Σ_i z_ik z_il / √(Σ_i z_ik² Σ_i z_il²)

    The maximum likelihood estimate, given means and standard deviations. For linear regressions on the same columns,
    with constant noise, fitting the means one by one is maximum likelihood too (Zellner 1962), so that both steps
    together are.

    Args:
        predictive: the predictions of the training rows ``[N, K]``.
        y: their targets ``[N, K]``.

    Returns:
        R ``[K, K]``.

    Reference: A. Zellner. An efficient method of estimating seemingly unrelated regressions and tests for aggregation
    bias. Journal of the American Statistical Association 57(298), 1962.
    """
    z = ((y - predictive.mean) / predictive.aleatoric.sqrt()).numpy()
    products = z.T @ z
    norm = np.sqrt(np.diag(products))
    correlation = (1.0 - _SHRINKAGE) * products / np.outer(norm, norm)
    np.fill_diagonal(correlation, 1.0)
    return np.asarray(correlation, dtype=np.float64)


def target_covariance(predictive: RealPredictive) -> Tensor:
    """The covariance of the targets of each row, over noise and draws.

        C = mean_s (N_s + V_s) + mean_s (m_s − m̄)(m_s − m̄)ᵀ

    with N_s the covariance of the noise of draw s, and V_s the rest of its variance, which is independent.

    Args:
        predictive: Gaussian predictions of several targets ``[N, K]``.

    Returns:
        C ``[N, K, K]``.
    """
    components = predictive.components
    if not isinstance(components, GaussianComponents) or components.mean.ndim != 3:
        raise InputError("the covariance of targets needs Gaussian predictions of several targets, [N, K]")
    centered = components.mean - predictive.mean
    epistemic = average(centered[..., :, None] * centered[..., None, :], predictive.weights)
    if isinstance(components, JointGaussianComponents):
        return epistemic + average(components.covariance, predictive.weights)
    return epistemic + average(components.variance, predictive.weights).diag_embed()


def marginal_components(predictive: RealPredictive, k: int) -> GaussianComponents:
    """The Gaussians of the k-th of several targets ``[S, N]``."""
    components = predictive.components
    assert isinstance(components, GaussianComponents)
    parts = (components.mean, components.log_variance, components.noise, components.epistemic)
    return GaussianComponents(*(None if part is None else part[..., k] for part in parts))  # type: ignore[arg-type]


def correlation_of(predictive: RealPredictive) -> Tensor:
    """The correlation of the targets of each row ``[N, K, K]``, from :func:`target_covariance`."""
    covariance = target_covariance(predictive)
    std = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    return covariance / (std[..., :, None] * std[..., None, :])


def pairs(names: Sequence[str]) -> list[tuple[int, int]]:
    """The positions of all pairs of targets."""
    return [(k, j) for k in range(len(names)) for j in range(k + 1, len(names))]
