"""Published data sets, read from a folder of the user.

The folder is ``$CREDO_DATA``, by default ``~/.cache/credo``, with one subfolder for each set. Nothing is downloaded or
shipped, because the sets have their own licenses. Every file is checked against its sha256 before it is read, so that
results always refer to the same data.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from credo.datasets._checksums import SHA256
from credo.datasets.digits import LETTERS, Images
from credo.errors import InputError, unknown_name

Arrays = dict[str, NDArray[Any]]

_CLASSES: dict[str, tuple[str, ...]] = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    "notmnist": tuple(LETTERS),
}


@dataclass(frozen=True, eq=False)
class Split:
    """One division of a table into a training and a test part.

    Attributes:
        x_train: training features ``[N, D]``.
        y_train: training targets ``[N]``.
        x_test: test features ``[M, D]``.
        y_test: test targets ``[M]``.

    Example:
        >>> import numpy as np
        >>> table = Table(np.zeros((4, 2)), np.arange(4.0), np.array([[3]], dtype=np.int32))
        >>> table.split(0).y_test
        array([3.])
    """

    x_train: NDArray[np.float64]
    y_train: NDArray[np.float64]
    x_test: NDArray[np.float64]
    y_test: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Table:
    """A regression table in its original units, with its published train and test splits.

    Attributes:
        x: features ``[N, D]``, not normalized.
        y: targets ``[N]``, not normalized.
        test_rows: row indices of the test part of each split, ``[splits, M]``; all other rows are for training.

    Example:
        >>> table = load("uci/yacht")  # doctest: +SKIP
        >>> table.split(0).x_train.shape  # doctest: +SKIP
        (277, 6)
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    test_rows: NDArray[np.int32]

    def split(self, index: int) -> Split:
        """Return one of the published splits.

        Args:
            index: number of the split, from 0.

        Returns:
            The training and the test part.

        Raises:
            InputError: if there is no split of that number.
        """
        if not 0 <= index < len(self.test_rows):
            raise InputError(f"index must be between 0 and {len(self.test_rows) - 1}, got {index}")
        test = self.test_rows[index]
        train = np.setdiff1d(np.arange(len(self.y)), test)
        return Split(self.x[train], self.y[train], self.x[test], self.y[test])


@dataclass(frozen=True, eq=False)
class Words:
    """A text as word indices, in three parts.

    Attributes:
        train: training part ``[T]``, int64 indices into ``vocabulary``.
        valid: validation part ``[T′]``.
        test: test part ``[T″]``.
        vocabulary: the words, in order of first appearance in the training part.

    Example:
        >>> words = load("ptb")  # doctest: +SKIP
        >>> len(words.vocabulary)  # doctest: +SKIP
        10000
    """

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Mushrooms:
    """The UCI Mushroom data, one-hot encoded.

    Attributes:
        x: zeros and ones ``[8124, 117]``, float32; a missing stalk root is a separate value.
        poisonous: whether each mushroom is poisonous ``[8124]``, bool.
        columns: attribute and value of each column, such as ``"odor=n"``.

    Example:
        >>> load("mushroom").poisonous.sum()  # doctest: +SKIP
        tensor(3916)
    """

    x: Tensor
    poisonous: Tensor
    columns: tuple[str, ...]


def data_folder() -> Path:
    """Return the folder of the data sets.

    Returns:
        ``$CREDO_DATA`` if it is set, else ``~/.cache/credo``.
    """
    return Path(os.environ.get("CREDO_DATA") or "~/.cache/credo").expanduser()


def locate(file: str) -> Path:
    """Return the path of a data file, after checking that it exists and has the published sha256.

    Args:
        file: path in the data folder, such as ``"uci/yacht.npz"``.

    Returns:
        The full path.

    Raises:
        InputError: if the file is unknown, missing or not the published one.
    """
    if file not in SHA256:
        raise unknown_name("data file", file, SHA256)
    path = data_folder() / file
    if not path.is_file():
        raise InputError(
            f"{path.name} is missing: put it at {path}, or set CREDO_DATA to the folder that holds {path.parent.name}/."
        )
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != SHA256[file]:
        raise InputError(
            f"{path} is not the published file (sha256 {found[:12]}…, expected {SHA256[file][:12]}…): replace it."
        )
    return path


def images(name: str) -> Images:
    """Read 28×28 images in [0, 1]; only MNIST has a training part.

    Args:
        name: ``"mnist"``, ``"fashion-mnist"`` or ``"notmnist"``.

    Returns:
        The images.

    Raises:
        InputError: if the name is unknown or a file is missing.
    """
    if name not in _CLASSES:
        raise unknown_name("image set", name, _CLASSES)
    x_test, y_test = _idx(f"{name}/t10k")
    x_train, y_train = _idx(f"{name}/train") if name == "mnist" else (x_test[:0], y_test[:0])
    return Images(x_train, y_train, x_test, y_test, _CLASSES[name])


def uci(name: str) -> Table:
    """Read a UCI regression set with the splits of Hernández-Lobato & Adams (2015).

    Args:
        name: name of the set, such as ``"yacht"``.

    Returns:
        The table with its splits.

    Raises:
        InputError: if the name is unknown or the file is missing.

    References:
        Hernández-Lobato, Adams. Probabilistic backpropagation for scalable learning of Bayesian neural networks.
        ICML, 2015. arXiv:1502.05336.
    """
    if f"uci/{name}.npz" not in SHA256:
        raise unknown_name("UCI set", name, _names_under("uci"))
    stored = arrays(f"uci/{name}.npz")
    return Table(stored["X"], stored["y"], stored["test_idx"])


def penn_treebank() -> Words:
    """Read the Penn Treebank at word level, with ``<eos>`` at the end of every line."""
    parts: dict[str, list[str]] = {}
    for part in ("train", "valid", "test"):
        with gzip.open(locate(f"ptb/ptb.{part}.txt.gz"), "rt", encoding="utf-8") as stream:
            parts[part] = stream.read().replace("\n", " <eos> ").split()
    index = {word: i for i, word in enumerate(dict.fromkeys(parts["train"]))}
    encoded = {part: torch.tensor([index[word] for word in words]) for part, words in parts.items()}
    return Words(encoded["train"], encoded["valid"], encoded["test"], tuple(index))


def mushroom() -> Mushrooms:
    """Read the UCI Mushroom data, 22 categorical attributes as 117 one-hot columns."""
    with gzip.open(locate("mushroom/agaricus-lepiota.data.gz"), "rt", encoding="ascii") as stream:
        rows = np.array([line.split(",") for line in stream.read().split()])
    values = [np.unique(rows[:, j]) for j in range(1, rows.shape[1])]
    one_hot = np.concatenate([rows[:, [j]] == v for j, v in enumerate(values, start=1)], axis=1)
    columns = tuple(f"{name}={v}" for name, vs in zip(_MUSHROOM_ATTRIBUTES, values, strict=True) for v in vs)
    return Mushrooms(torch.from_numpy(one_hot).float(), torch.from_numpy(rows[:, 0] == "p"), columns)


def arrays(file: str) -> Arrays:
    """Read the arrays of an ``.npz`` file by their stored names.

    Args:
        file: path in the data folder, such as ``"small/oil_flow.npz"``.

    Returns:
        The arrays by name.

    Raises:
        InputError: if the file is unknown, missing or not the published one.
    """
    with np.load(locate(file)) as stored:
        return {key: stored[key] for key in stored.files}


def load(name: str) -> Images | Table | Words | Mushrooms | Arrays:
    """Read a data set by its name.

    Args:
        name: one of :func:`available`, such as ``"mnist"``, ``"uci/yacht"``, ``"ptb"`` or ``"small/old_faithful"``.

    Returns:
        :class:`Images`, :class:`Table`, :class:`Words` or :class:`Mushrooms`; for the small sets and CamVid the arrays
        of their file by name.

    Raises:
        InputError: if the name is unknown, or a file is missing or not the published one.
    """
    loaders = _loaders()
    if name not in loaders:
        raise unknown_name("data set", name, loaders)
    return loaders[name]()


def available() -> dict[str, bool]:
    """List the data sets.

    Returns:
        The names for :func:`load`, and whether the files of each are in the data folder.
    """
    folder = data_folder()
    needed: dict[str, list[str]] = {name: [] for name in _loaders()}
    for file in SHA256:
        needed[_set_of(file)].append(file)
    return {name: all((folder / file).is_file() for file in files) for name, files in needed.items()}


def _loaders() -> dict[str, Callable[[], Images | Table | Words | Mushrooms | Arrays]]:
    loaders: dict[str, Callable[[], Images | Table | Words | Mushrooms | Arrays]] = {
        name: partial(images, name) for name in _CLASSES
    }
    loaders |= {f"uci/{name}": partial(uci, name) for name in _names_under("uci")}
    loaders |= {"ptb": penn_treebank, "mushroom": mushroom, "camvid": partial(arrays, "camvid/camvid_120x160.npz")}
    loaders |= {f"small/{name}": partial(arrays, f"small/{name}.npz") for name in _names_under("small")}
    return loaders


def _set_of(file: str) -> str:
    """The name of the set of a file; in ``uci`` and ``small`` every file is a set."""
    folder = file.partition("/")[0]
    return file.removesuffix(".npz") if folder in ("uci", "small") else folder


def _names_under(folder: str) -> list[str]:
    return [Path(file).stem for file in SHA256 if file.startswith(f"{folder}/")]


def _idx(prefix: str) -> tuple[Tensor, Tensor]:
    """Read images ``[N, 1, 28, 28]`` in [0, 1] and labels ``[N]`` from the two gzipped IDX files of a prefix."""
    with gzip.open(locate(f"{prefix}-images-idx3-ubyte.gz")) as stream:
        pixels = np.frombuffer(stream.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(locate(f"{prefix}-labels-idx1-ubyte.gz")) as stream:
        labels = np.frombuffer(stream.read(), np.uint8, offset=8)
    return torch.from_numpy(pixels.astype(np.float32) / 255.0), torch.from_numpy(labels.astype(np.int64))


_MUSHROOM_ATTRIBUTES = (
    "cap-shape",
    "cap-surface",
    "cap-color",
    "bruises",
    "odor",
    "gill-attachment",
    "gill-spacing",
    "gill-size",
    "gill-color",
    "stalk-shape",
    "stalk-root",
    "stalk-surface-above-ring",
    "stalk-surface-below-ring",
    "stalk-color-above-ring",
    "stalk-color-below-ring",
    "veil-type",
    "veil-color",
    "ring-number",
    "ring-type",
    "spore-print-color",
    "population",
    "habitat",
)
