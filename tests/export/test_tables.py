"""Tables as ONNX graphs: raw columns with gaps, unseen categories and dates give the numbers of ``predict_dist``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import Tensor

import credo
from credo.errors import InputError, UnsupportedError
from tabular.hostile import mixed_frame

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")

pytestmark = [
    pytest.mark.extras,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # about the rows, as they should be
]

OPTIONS: dict[str, Any] = {"epochs": 2, "samples": 10, "random_state": 0}


def training_frame() -> pd.DataFrame:
    codes = [("1", "2.0", "007", "1.0", "red", "True")[i % 6] for i in range(len(mixed_frame()))]
    return mixed_frame().assign(code=pd.Series(codes, dtype=object))


def target(frame: pd.DataFrame) -> pd.Series:
    return frame["plain"] + (frame["word"] == "red") + 0.1 * np.random.default_rng(0).normal(size=len(frame))


def new_frame() -> pd.DataFrame:
    """Gaps, categories that training did not have, other spellings of those it had, and values outside the range."""
    frame = training_frame()
    cells: list[tuple[int, str, object]] = [
        *((3, "plain", np.nan), (4, "plain", 9.0), (5, "word", "violet"), (6, "word", None), (7, "word", " red ")),
        *((8, "date", None), (9, "date", "2031-02-28 12:34:56.5"), (10, "word", "1.0"), (11, "code", " 7 ")),
        *((12, "code", "TRUE"), (13, "tail", 1e30), (14, "gaps", np.inf), (15, "date", "2023-02-30")),
        *((16, "rare", "NA"), (17, "rare", " town 3"), (18, "word", "01"), (19, "code", "\u3000red\u00a0")),
    ]
    for row, column, cell in cells:
        frame.loc[row, column] = cell
    return frame


def run(path: Path, model: Any, frame: pd.DataFrame) -> dict[str, np.ndarray[Any, Any]]:
    session = runtime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, credo.export.column_inputs(model, frame)), strict=True))


def expected(p: credo.Predictive) -> dict[str, Tensor]:
    lower, upper = p.interval(0.8)
    quantiles = p.quantile((0.05, 0.5, 0.95)).movedim(0, -1)
    moments = {"mean": p.mean, "std": p.std, "epistemic": p.epistemic.sqrt(), "aleatoric": p.aleatoric.sqrt()}
    return {**moments, "quantiles": quantiles, "lower": lower, "upper": upper}


@pytest.mark.parametrize(
    ("options", "precision", "tolerance"),
    [
        ({"method": "bbb", "noise": "heteroscedastic"}, "float64", 1e-9),
        ({"method": "stacked"}, "float64", 1e-9),
        ({"method": "ensemble", "noise": "learned", "calibrate": "conformal"}, "float32", 2e-5),
        ({"method": "bbb", "noise": "learned", "calibrate": "quantile", "calibration_fraction": 0.9}, "float64", 1e-7),
    ],
    ids=["bbb", "stacked", "conformal", "recalibrated"],
)
def test_a_regressor(options: dict[str, Any], precision: str, tolerance: float, tmp_path: Path) -> None:
    """Errors relative to mean and std of the row.

    In double precision up to the end of bisections; in single, 2⁻²⁴ times some hundred roundings is 1e-5.

    Recalibrated moments use knots that Python finds in 32 bisections, an error of 2⁻³² of the bracket.
    """
    frame = training_frame()
    fraction = {"calibration_fraction": 0.5, **options}
    model = credo.Regressor(**OPTIONS, **fraction, likelihood="gaussian").fit(frame, target(frame))
    model.export(tmp_path / "model.onnx", level=0.8, precision=precision)
    new = new_frame()
    for rows in (new, new.iloc[4:5], new.iloc[20:22]):
        found, wanted = run(tmp_path / "model.onnx", model, rows), expected(model.predict_dist(rows))
        assert found.keys() == wanted.keys()
        size = tolerance * (wanted["mean"].abs() + wanted["std"]).numpy()
        for name, values in wanted.items():
            error = np.abs(found[name] - values.numpy()).reshape(len(rows), -1).max(axis=1)
            assert (error <= size).all(), name


def test_a_distilled_table(tmp_path: Path) -> None:
    """A mixture of Gaussians with both parts of its variance; in double precision up to the end of bisections."""
    frame = training_frame()
    teacher = credo.Regressor("ensemble", **OPTIONS, likelihood="gaussian").fit(frame, target(frame))
    student = credo.distill(teacher, frame, augmentation=0, epochs=2)
    student.export(tmp_path / "model.onnx", level=0.8, precision="float64")
    found, wanted = run(tmp_path / "model.onnx", student, new_frame()), expected(student.predict_dist(new_frame()))
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values.numpy(), rtol=1e-9, atol=1e-9, err_msg=name)


def test_a_classifier(tmp_path: Path) -> None:
    frame = training_frame()
    labels = np.where(target(frame) > 0, "high", "low")
    options = {"calibrate": "temperature", "calibration_fraction": 0.4, "class_weight": "balanced"}
    model = credo.Classifier("bbb", **OPTIONS, **options).fit(frame, labels)
    model.export(tmp_path / "model.onnx")
    found, p = run(tmp_path / "model.onnx", model, new_frame()), model.predict_dist(new_frame())
    assert set(found) == {"class", "probabilities", "entropy", "mutual_information"}
    assert (found["class"] == model.predict(new_frame())).all()
    np.testing.assert_allclose(found["probabilities"], p.mean.numpy(), rtol=1e-11)
    np.testing.assert_allclose(found["entropy"], p.entropy.numpy(), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(found["mutual_information"], p.mutual_information.numpy(), rtol=1e-11, atol=1e-12)


def test_features_are_those_of_python_to_the_last_bit(tmp_path: Path) -> None:
    """Scaling is in double precision in both; asinh and waves may differ by a rounding before they become float32."""
    import onnx
    from onnx import helper

    from credo.export.builder import Builder
    from credo.export.columns import add_preprocessing

    columns = credo.tabular.Columns.learn(training_frame())
    b = Builder(np.float64, "columns/")
    found = add_preprocessing(b, columns)
    b.nodes.append(helper.make_node("Identity", [found.features], ["features"]))
    output = helper.make_tensor_value_info("features", onnx.TensorProto.FLOAT, ["rows", None])
    graph = helper.make_graph(b.nodes, "columns", found.inputs, [output], list(b.constants.values()))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    session = runtime.InferenceSession(
        helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    )
    model = credo.Regressor("map", epochs=1, random_state=0, likelihood="gaussian")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(training_frame(), target(training_frame()))
        for frame in (training_frame(), new_frame()):
            (features,) = session.run(None, credo.export.column_inputs(model, frame))
            np.testing.assert_allclose(features, columns.encode(frame), rtol=1.2e-7, atol=1.2e-7)


def test_what_cannot_be_exported_is_said_in_a_sentence(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(40.0), "word": ["long " * 40, "short"] * 20})
    model = credo.Regressor("map", epochs=1, random_state=0, likelihood="gaussian").fit(frame, frame["x"])
    with pytest.raises(UnsupportedError, match="more than 100 characters"):
        model.export(tmp_path / "model.onnx")
    with pytest.raises(InputError, match="precision"):
        model.export(tmp_path / "model.onnx", precision="float16")
    renamed = credo.Regressor("map", epochs=1, random_state=0, likelihood="gaussian")
    renamed.fit(frame[["x"]].set_axis(["mean"], axis=1), frame["x"])
    with pytest.raises(InputError, match="names of outputs, mean"):
        renamed.export(tmp_path / "model.onnx")
