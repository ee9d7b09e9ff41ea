"""Data to learn from: made on the spot, bundled with scikit-learn, or read from a folder of the user's.

``toy``
    one-dimensional regression problems with a known answer;
``digits``
    8×8 digits, the same rotated, and letters that are none of them;
``ring``
    points in the plane with modes to find;
``files``
    MNIST and its relatives, the UCI regression sets, Penn Treebank and others, from ``$CREDO_DATA``.
"""

from credo.datasets.digits import Images, letters, load_digits, rotate
from credo.datasets.files import Mushrooms, Split, Table, Words, available, data_folder, load
from credo.datasets.ring import Ring, ring_of_gaussians
from credo.datasets.toy import Curve, blundell_curve, heteroscedastic_sine, sine_with_gap

__all__ = [
    "Curve",
    "Images",
    "Mushrooms",
    "Ring",
    "Split",
    "Table",
    "Words",
    "available",
    "blundell_curve",
    "data_folder",
    "heteroscedastic_sine",
    "letters",
    "load",
    "load_digits",
    "ring_of_gaussians",
    "rotate",
    "sine_with_gap",
]
