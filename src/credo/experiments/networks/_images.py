"""Digits beside images of something else, and what a classifier of digits makes of both, as a record for JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from credo import metrics
from credo.datasets import Images, letters, load_digits, photographs, rotate
from credo.datasets.files import images
from credo.experiments.networks._records import Record, density, hold_out_last, rounded

if TYPE_CHECKING:
    from credo.predictive import Predictive

ENTROPY_BINS = 40
GLYPHS = "KLMNPQRTUVWXYabcdefghkmnpqrtuvwxy&@#%?$"
"""Characters that are neither digits, nor like them in every typeface, nor among the letters of notMNIST, A to J."""
HELD_OUT_OTHERS = 2000


class Data(NamedTuple):
    """Digits, and images of something else by the names of their sets."""

    digits: Images
    others: dict[str, Tensor]


class Predict(Protocol):
    """The prediction for images, by the draws of the experiment or by a given number of them."""

    def __call__(self, x: Tensor, draws: int = ..., /) -> Predictive: ...


def load(smoke: bool = False, seed: int = 0, hold_out: int = 0) -> Data:
    """MNIST beside Fashion-MNIST and notMNIST, or 8×8 digits beside letters.

    Args:
        smoke: whether to load the images that need no files.
        seed: of the split of the 8×8 digits, and of the letters.
        hold_out: number of training images at the end that take the place of the test images, to choose settings. The
            other images, which must not choose settings either, then make way for printed characters that notMNIST does
            not have, crops of photographs, and held-out digits turned by 90°.
    """
    digits = hold_out_last(load_digits(seed=seed) if smoke else images("mnist"), hold_out)
    if hold_out:
        return Data(digits, _others_for_choices(digits.x_test[:HELD_OUT_OTHERS], seed))
    if smoke:
        return Data(digits, {"letters": letters(450, seed=seed)})
    return Data(digits, {"Fashion-MNIST": images("fashion-mnist").x_test, "notMNIST": images("notmnist").x_test})


def _others_for_choices(digits: Tensor, seed: int) -> dict[str, Tensor]:
    """Images that are in no test, of the size of ``digits``, ``[N, 1, H, H]``."""
    size = digits.shape[-1]
    return {
        "glyphs": letters(HELD_OUT_OTHERS, seed, size=size, characters=GLYPHS),
        "photographs": photographs(1, crop=size).y_train,
        "digits at 90°": rotate(digits, 90.0),
    }


def measure_images(tested: Predictive, data: Data, predict: Predict) -> Record:
    """Errors, likelihood and calibration on the test digits, and how well uncertainty separates other images from them.

    Args:
        tested: the prediction for the test digits.
        data: digits and other images.
        predict: makes the other predictions.

    Returns:
        Counts of misclassified digits, by ``tested`` and with no draws; NLL and calibration error of ``tested``; the
        density of its entropy; for each set of other images that of theirs, and the AUROC by both uncertainties.
    """
    y = data.digits.y_test
    return {
        "test_images": len(y),
        "wrong": int((tested.mode != y).sum()),
        "wrong_mean_weights": int((predict(data.digits.x_test, 0).mode != y).sum()),
        "nll": rounded(metrics.nll(tested, y)),
        "ece": rounded(metrics.ece(tested, y)),
        "entropy": entropy_density(tested),
        "others": {name: _compare(tested, predict(x)) for name, x in data.others.items()},
    }


def entropy_density(p: Predictive) -> list[float]:
    """The density of the entropy on a grid from 0 to that of equal probabilities."""
    largest = math.log(p.mean.shape[-1])
    counts = torch.histc(p.entropy.float().clamp(0.0, largest), ENTROPY_BINS, 0.0, largest)
    return density(counts, len(p.entropy), largest / ENTROPY_BINS)


def _compare(tested: Predictive, other: Predictive) -> Record:
    return {
        "auroc_entropy": rounded(metrics.auroc(tested.entropy, other.entropy)),
        "auroc_mutual_information": rounded(metrics.auroc(tested.mutual_information, other.mutual_information)),
        "entropy": entropy_density(other),
    }


def percent_wrong(record: Record, key: str = "wrong") -> float:
    """The test error of a record in percent; ``key="wrong_mean_weights"``: with no draws."""
    return 100.0 * int(record[key]) / int(record["test_images"])
