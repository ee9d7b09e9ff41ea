"""Data sets: synthetic, bundled with scikit-learn, or read from a folder of the user.

``synthetic``
    one-dimensional regression curves, and a ring of Gaussians;
``digits``
    the 8×8 digits of scikit-learn, rotated images, and printed letters;
``files``
    MNIST and related sets, the UCI regression sets, Penn Treebank and others, from ``$CREDO_DATA``;
``photographs``
    pairs of low and high resolution, from the photographs of scikit-learn;
``scenes``
    images with a class for every pixel: CamVid from ``$CREDO_DATA``, and drawn streets;
``captions``
    scenes of several digits, described in words.
"""

from credo.datasets.captions import CaptionedScenes, captioned_scenes
from credo.datasets.digits import Images, letters, load_digits, rotate
from credo.datasets.files import Mushrooms, Split, Table, Words, available, data_folder, load
from credo.datasets.photographs import ImagePairs, blur_and_sample, photographs
from credo.datasets.scenes import Scenes, camvid, median_frequency_weights, street_scenes
from credo.datasets.synthetic import (
    Curve,
    Ring,
    blundell_curve,
    heteroscedastic_sine,
    ring_of_gaussians,
    sine_with_gap,
)

__all__ = [
    "CaptionedScenes",
    "Curve",
    "ImagePairs",
    "Images",
    "Mushrooms",
    "Ring",
    "Scenes",
    "Split",
    "Table",
    "Words",
    "available",
    "blundell_curve",
    "blur_and_sample",
    "camvid",
    "captioned_scenes",
    "data_folder",
    "heteroscedastic_sine",
    "letters",
    "load",
    "load_digits",
    "median_frequency_weights",
    "photographs",
    "ring_of_gaussians",
    "rotate",
    "sine_with_gap",
    "street_scenes",
]
