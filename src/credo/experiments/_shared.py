"""Data and drawing functions that several experiments use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from credo.datasets import Images, load_digits
from credo.datasets.files import arrays, images

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from credo.experiments.registry import RunConfig


SINE_NOISE = 0.3
"""The standard deviation of the noise (Bishop, appendix A): β = 11.1."""
SYNTHETIC_ERUPTIONS = 150
_REPORTED = ("discriminator", "generator", "wasserstein", "categorical_information", "diversity", "seconds")
ERUPTION_LABELS = ("length of an eruption, minutes", "time to the next, minutes")


def handwritten_digits(config: RunConfig) -> Images:
    """MNIST for a full run, else the 8×8 digits of scikit-learn."""
    return images("mnist") if config.budget == "full" else load_digits(seed=config.seed)


def report_epochs(config: RunConfig, name: str, epochs: int) -> Callable[[Any, dict[str, float]], None]:
    """A function for ``fit(on_epoch_end=...)`` that reports every epoch of the training of ``name``."""

    def report(model: Any, metrics: dict[str, float]) -> None:
        terms = [f"{key.replace('_', ' ')} {metrics[key]:.3g}" for key in _REPORTED if key in metrics]
        config.report(f"{name}: epoch {metrics['epoch']:.0f} of {epochs}, {', '.join(terms)}")

    return report


def eruptions(config: RunConfig) -> NDArray[np.float64]:
    """Length of 272 eruptions and time to the next, ``[272, 2]``; for a smoke run, two Gaussian clusters."""
    if config.budget != "smoke":
        return np.asarray(arrays("small/old_faithful.npz")["X"], np.float64)
    random = np.random.default_rng(config.seed)
    long = random.random((SYNTHETIC_ERUPTIONS, 1)) < 0.65
    mean, deviation = np.where(long, (4.3, 80.0), (2.0, 54.5)), np.where(long, (0.4, 6.0), (0.25, 6.0))
    common = random.normal(size=(SYNTHETIC_ERUPTIONS, 1))
    return mean + deviation * (0.6 * common + 0.8 * random.normal(size=(SYNTHETIC_ERUPTIONS, 2)))


@dataclass(frozen=True, eq=False)
class CarbonDioxide:
    """Monthly means of the carbon dioxide over Mauna Loa.

    Attributes:
        date: years, ``[N]``.
        ppm: parts per million, ``[N]``.
        split: date of the first forecast.
    """

    date: NDArray[np.float64]
    ppm: NDArray[np.float64]
    split: float

    @property
    def past(self) -> NDArray[np.bool_]:
        """The rows to fit to."""
        return self.date < self.split


def carbon_dioxide(config: RunConfig) -> CarbonDioxide:
    """NOAA's monthly means from March 1958, with forecasts from 2004.

    For a smoke run a synthetic series of the same kind: a rising curve with a season and correlated noise, 30 years of
    every third month, with forecasts from year 18.
    """
    if config.budget != "smoke":
        stored = arrays("small/mauna_loa_co2.npz")
        return CarbonDioxide(stored["decimal_date"], stored["co2"], 2004.0)
    random, t = np.random.default_rng(config.seed), np.arange(120) / 4.0 + 0.1
    drift = np.cumsum(random.normal(size=120)) * 0.05
    season = 3.0 * np.sin(2.0 * np.pi * t) + 0.8 * np.sin(4.0 * np.pi * t + 1.0)
    ppm = 315.0 + 0.7 * t + 0.012 * t**2 + season + drift + 0.2 * random.normal(size=120)
    return CarbonDioxide(1958.0 + t, ppm, 1976.0)


def standardize(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale every column to mean 0 and standard deviation 1."""
    scaled: NDArray[np.float64] = (x - x.mean(0)) / x.std(0)
    return scaled


@dataclass(frozen=True, eq=False)
class SineData:
    """Observations of sin(2πx) with Gaussian noise.

    Attributes:
        x: inputs, ``[N, 1]``.
        y: targets, ``[N]``.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]

    def first(self, n: int) -> SineData:
        """Return the first ``n`` observations."""
        return SineData(self.x[:n], self.y[:n])


def sine(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """sin(2πx) for inputs ``[N, 1]``, ``[N]``."""
    values: NDArray[np.float64] = np.sin(2.0 * np.pi * x[:, 0])
    return values


def sine_evenly_spaced(n: int, random: np.random.Generator) -> SineData:
    """Return ``n`` observations at inputs spread evenly over [0, 1], as in Bishop's chapter 1."""
    return _observe_sine(np.linspace(0.0, 1.0, n)[:, None], random)


def sine_at_random(n: int, random: np.random.Generator) -> SineData:
    """Return ``n`` observations at inputs drawn uniformly from [0, 1], in random order."""
    return _observe_sine(random.uniform(size=(n, 1)), random)


def unit_grid(n: int = 200) -> NDArray[np.float64]:
    """Return evenly spaced inputs for a figure, ``[n, 1]``."""
    return np.linspace(0.0, 1.0, n)[:, None]


def _observe_sine(x: NDArray[np.float64], random: np.random.Generator) -> SineData:
    return SineData(x, sine(x) + SINE_NOISE * random.normal(size=len(x)))


def add_legend(figure: Figure, ax: Axes, prefix: str = "", **options: Any) -> None:
    """Add the legend of one panel below all panels, with ``prefix`` before each label."""
    handles, labels = ax.get_legend_handles_labels()
    labels = [prefix + label for label in labels]
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), **options)


def add_ellipse(
    ax: Axes, mean: NDArray[np.float64], covariance: NDArray[np.float64], deviations: float = 1.0, **style: Any
) -> None:
    """Draw the contour of a Gaussian in the plane, ``deviations`` standard deviations from its mean."""
    from matplotlib.patches import Ellipse

    variances, axes = np.linalg.eigh(covariance)
    width, height = 2.0 * deviations * np.sqrt(variances)
    angle = np.degrees(np.arctan2(axes[1, 0], axes[0, 0]))
    ax.add_patch(Ellipse((mean[0], mean[1]), width, height, angle=angle, **style))
