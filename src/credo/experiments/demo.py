"""The library in one minute: a curve with a gap, and digits beside images that are none.

The curve asks whether the epistemic uncertainty opens where there are no data, and whether the aleatoric one finds
the noise. The digits ask whether a classifier is less sure of a rotated digit and of a letter than of a plain digit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from credo import plots
from credo.errors import InputError
from credo.experiments import demo_curve, demo_digits
from credo.experiments.recipe import one_thread


@dataclass(frozen=True)
class Demo:
    """What the demo found.

    Attributes:
        curve: one row a method.
        digits: one row a method.
        figures: the pictures that it wrote.
        noise: the true standard deviation of the curve's noise.
        most_entropy: the entropy of knowing nothing about ten classes, in nats.
        seconds: how long everything took.
    """

    curve: list[demo_curve.CurveRow]
    digits: list[demo_digits.DigitsRow]
    figures: list[Path]
    noise: float
    most_entropy: float
    seconds: float


def run_demo(
    out: Path | str = "demo",
    *,
    seed: int = 0,
    effort: float = 1.0,
    samples: int = 200,
    report: Callable[[str], None] = lambda _: None,
) -> Demo:
    """Train, measure, and write three pictures.

    Args:
        out: folder for the pictures; made where it does not exist.
        seed: fixes the data, the training and the draws.
        effort: multiplies the number of epochs; below 1 for a quick look.
        samples: posterior draws per prediction.
        report: told in a few words what is being done.
    """
    start = time.perf_counter()
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out must be a folder that can be written to, got {out}: {error.strerror}") from error
    with plots.paper(), one_thread():
        curve = demo_curve.run(seed, effort, samples, report)
        digits = demo_digits.run(seed, effort, samples, report)
        written = []
        for name, figure in {"curve": curve.figure, **digits.figures}.items():
            written.append(out / f"{name}.png")
            figure.savefig(written[-1])
    return Demo(curve.rows, digits.rows, written, demo_curve.NOISE, math.log(10), time.perf_counter() - start)
