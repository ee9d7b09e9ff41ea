"""Predictions as columns: what they mean, what they are called, and how files of them are made."""

from __future__ import annotations

import math
import warnings
import weakref

import numpy as np
import pandas as pd
import pytest
import torch

from credo.calibration import SplitConformal
from credo.errors import InputError
from credo.predictive import ClassPredictive, RealPredictive
from credo.predictive.classes import CategoricalComponents
from credo.predictive.location_scale import GaussianComponents
from credo.tabular import Classifier, Regressor, predictions
from credo.tabular.predictions import chunk_rows, column_names, predict_file, to_frame, true_values
from credo.tabular.table_files import TableFile, open_table
from credo.tabular.targets import ClassTarget, RegressionTarget

QUANTITY = RegressionTarget("price", mean=10.0, scale=2.0)


def gaussian(draws=50, rows=7):
    stream = torch.Generator().manual_seed(0)
    mean, log_variance = (torch.randn(draws, rows, generator=stream, dtype=torch.float64) for _ in range(2))
    return RealPredictive(GaussianComponents(mean, log_variance))


def categorical(classes=3, draws=50, rows=7):
    logits = torch.randn(draws, rows, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return ClassPredictive(CategoricalComponents(logits.log_softmax(-1)))


def test_quantities_have_standard_deviations_that_add_up_in_squares():
    p = gaussian()
    frame = to_frame(p, QUANTITY, level=0.8)
    assert list(frame.columns) == column_names(QUANTITY) == ["mean", "std", "epistemic", "aleatoric", "lower", "upper"]
    np.testing.assert_allclose(frame["mean"], p.mean)
    np.testing.assert_allclose(frame["std"], p.std)
    np.testing.assert_allclose(frame["std"] ** 2, frame["epistemic"] ** 2 + frame["aleatoric"] ** 2)
    np.testing.assert_allclose(p.cdf(torch.tensor(frame["upper"])) - p.cdf(torch.tensor(frame["lower"])), 0.8)


def test_calibrated_intervals_are_the_ones_shown():
    p = SplitConformal(scores=[3.0] * 40)(gaussian())
    frame = to_frame(p, QUANTITY)
    np.testing.assert_allclose(frame["upper"] - frame["mean"], 3.0 * frame["std"])


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (np.array(["a b", "p_c", "é"]), ["p_a b", "p_p_c", "p_é"]),
        (np.array([1, 2, 30]), ["p_1", "p_2", "p_30"]),
        (np.array([1.0, 2.0, 30.0]), ["p_1", "p_2", "p_30"]),
    ],
)
def test_classes_have_probabilities_by_their_names(labels, names):
    p = categorical()
    target = ClassTarget("kind", labels)
    frame = to_frame(p, target)
    assert list(frame.columns) == column_names(target) == ["class", *names, "entropy", "mutual_information"]
    assert frame["class"].tolist() == labels[p.mean.argmax(-1)].tolist()
    np.testing.assert_allclose(frame[names].sum(axis=1), 1.0)
    np.testing.assert_allclose(frame["entropy"], p.entropy)
    np.testing.assert_allclose(frame["mutual_information"], p.mutual_information)
    assert (frame["mutual_information"] <= math.log(3)).all()


def test_true_values_are_in_the_terms_of_the_prediction():
    y = pd.Series(["12", "8.5"], name="price")
    # z is stored in float32: 2⁻²⁴ of it, in the units of the target.
    np.testing.assert_allclose(true_values(QUANTITY, y), [12.0, 8.5], atol=2.0 * 2.0**-24)
    assert true_values(ClassTarget("kind", np.array([3, 5])), pd.Series([5.0, 3.0])).tolist() == [1, 0]


@pytest.fixture(scope="module")
def model():
    stream = np.random.default_rng(0)
    frame = pd.DataFrame({"x": stream.normal(size=40), "kind": ["a", "b"] * 20})
    return Regressor("map", epochs=1, random_state=0).fit(frame, pd.Series(stream.normal(size=40), name="y"))


@pytest.fixture
def source(tmp_path):
    """Ten rows, whose kinds training did not have, but for the last."""
    kinds = ["c", "c", "d", "d", "d", "e", "e", "e", "e", "a"]
    frame = pd.DataFrame({"id": range(10), "x": np.linspace(-1.0, 1.0, 10), "kind": kinds, "y": 0.0})
    frame.to_csv(tmp_path / "new.csv", index=False)
    return open_table(tmp_path / "new.csv")


def test_a_file_is_predicted_piece_by_piece(model, source, monkeypatch):
    monkeypatch.setattr(predictions, "_MAX_CHUNK_ROWS", 3)
    with pytest.warns(UserWarning, match="The same in") as caught:
        chunks = list(predict_file(model, source, keep=["id"]))
    assert [len(piece) for piece in chunks] == [3, 3, 3, 1]
    frame = pd.concat(chunks, ignore_index=True)
    assert frame.pop("id").tolist() == [str(k) for k in range(10)]
    with pytest.warns(UserWarning, match="Ignored|count as other"):
        whole = to_frame(model.predict_dist(source.read()), model.target_)
    pd.testing.assert_frame_equal(frame, whole, rtol=1e-12)
    said = [str(warning.message) for warning in caught]
    assert len(said) == 2
    assert said[0].endswith("no such column: 'id'. The same in 3 later chunks of the table.")
    assert said[1].endswith("'kind' (3 rows, such as 'c', 'd'). The same in 2 later chunks of the table.")


class Stack(TableFile):
    """A table of many chunks, which knows how many of them are still in memory."""

    names = ("x", "kind")

    def __init__(self, chunks):
        self.n_rows = 2 * chunks
        self._made = []
        self._pieces = chunks

    def read(self):
        raise NotImplementedError

    def chunks(self, rows, as_text=()):
        for _ in range(self._pieces):
            piece = pd.DataFrame({"x": [0.0, 0.5], "kind": ["a", "b"]})
            self._made.append(weakref.ref(piece))
            yield piece
            del piece

    def in_memory(self):
        return sum(made() is not None for made in self._made)


def test_pieces_are_let_go_of_one_by_one(model):
    """Memory does not rise with the length of a file; ``itertools.tee`` would keep up to 57 chunks."""
    source = Stack(20)
    kept = [source.in_memory() for _ in predict_file(model, source, keep=["kind"])]
    assert len(kept) == 20
    assert max(kept) <= 1
    assert source.in_memory() == 0


def test_a_file_in_one_piece_is_noted_as_it_is(model, source):
    with pytest.warns(UserWarning, match="such column|such as") as caught:
        list(predict_file(model, source))
    assert not any("The same in" in str(warning.message) for warning in caught)


def test_warnings_of_others_are_not_swallowed(model, source, monkeypatch):
    def read(self, frame):
        warnings.warn("soon gone", DeprecationWarning, stacklevel=2)

    monkeypatch.setattr("credo.tabular.columns.Columns.read", read)
    with pytest.raises(DeprecationWarning, match="soon gone"):
        list(predict_file(model, source))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": ["ID"]}, "unknown column to keep 'ID'"),
        ({"level": 1.0}, "level must be a number between 0 and 1"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(model, source, options, words):
    with pytest.raises(InputError, match=words):
        predict_file(model, source, **options)


def test_many_classes_make_small_pieces(model):
    assert chunk_rows(model) == predictions._MAX_CHUNK_ROWS
    many = Classifier(samples=100)
    many.target_ = ClassTarget("y", np.arange(1000))
    assert chunk_rows(many) == 2**22 // 100_000
    many.target_ = ClassTarget("y", np.arange(10**6))
    assert chunk_rows(many) == 1
