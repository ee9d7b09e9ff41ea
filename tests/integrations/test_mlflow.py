"""The MLflow flavor against stores in a folder: what comes back predicts the same numbers."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

import credo
from credo.errors import InputError
from credo.integrations import mlflow as flavor
from credo.tabular.predictions import to_frame

pytestmark = [
    pytest.mark.extras,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
pyfunc = pytest.importorskip("mlflow.pyfunc", reason="needs the extra mlflow")


@pytest.fixture
def saved(regressor, table, tmp_path):
    flavor.save_model(regressor, tmp_path / "saved", input_example=table.head(3))
    return tmp_path / "saved"


def test_pyfunc_predicts_the_same_numbers_in_float_columns(regressor, table, saved):
    found = pyfunc.load_model(str(saved)).predict(table.set_axis(table.index + 7, axis=0))
    expected = to_frame(regressor.predict_dist(table), regressor.target_)
    assert list(found) == ["mean", "std", "epistemic", "aleatoric", "lower", "upper"]
    assert set(found.dtypes) == {np.dtype("float64")}
    assert list(found.index) == list(table.index + 7)
    np.testing.assert_allclose(found.to_numpy(), expected.to_numpy(), rtol=1e-12)


def test_level_and_quantiles_are_parameters(regressor, table, saved):
    found = pyfunc.load_model(str(saved)).predict(table, params={"level": 0.5, "quantiles": [0.25, 0.75, 0.9]})
    np.testing.assert_allclose(found["lower"], found["quantile_0.25"], rtol=1e-6)
    np.testing.assert_allclose(found["upper"], found["quantile_0.75"], rtol=1e-6)
    np.testing.assert_allclose(found["quantile_0.9"], regressor.predict_dist(table).quantile(0.9).numpy(), rtol=1e-12)


def test_signature_names_columns_and_parameters(saved):
    signature = pyfunc.load_model(str(saved)).metadata.signature
    assert signature.inputs.input_names() == ["size", "color", "day"]
    assert [str(one.type.name) for one in signature.inputs.inputs] == ["double", "string", "datetime"]
    assert signature.outputs.input_names() == ["mean", "std", "epistemic", "aleatoric", "lower", "upper"]
    assert {one.type.name for one in signature.outputs.inputs} == {"double"}
    assert [one.name for one in signature.params] == ["level", "quantiles"]


def test_batches_predict_as_the_whole(table, saved):
    """As Spark's workers call it: other indices, a few rows at a time."""
    model = pyfunc.load_model(str(saved))
    parts = [model.predict(table.iloc[start : start + 50].reset_index(drop=True)) for start in range(0, len(table), 50)]
    np.testing.assert_allclose(pd.concat(parts).to_numpy(), model.predict(table).to_numpy(), rtol=1e-9)


def test_classes_have_a_probability_each(classifier, table, tmp_path):
    flavor.save_model(classifier, tmp_path / "saved")
    model = pyfunc.load_model(str(tmp_path / "saved"))
    found = model.predict(table)
    assert list(found) == model.metadata.signature.outputs.input_names()
    assert list(found) == ["p_high", "p_low", "entropy", "mutual_information"]
    np.testing.assert_allclose(found[["p_high", "p_low"]].sum(axis=1), 1.0, rtol=1e-6)
    with pytest.raises(InputError, match="quantiles are those of a quantity"):
        flavor.PyfuncModel(classifier).predict(table, {"quantiles": [0.5]})


def test_the_estimator_itself_comes_back(regressor, table, saved):
    loaded = flavor.load_model(str(saved))
    assert isinstance(loaded, credo.Regressor)
    np.testing.assert_array_equal(loaded.predict(table), regressor.predict(table))


def test_nothing_is_pickled(saved):
    names = {path.suffix for path in saved.rglob("*") if path.is_file()}
    assert not names & {".pkl", ".pickle", ".pt", ".pth", ".joblib"}


def test_a_model_logged_to_a_store_comes_back_by_its_name(regressor, table, tmp_path, monkeypatch):
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="needs mlflow, not mlflow-skinny, for a database as a store")
    assert sqlalchemy is not None
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    with mlflow.start_run():
        mlflow.log_params(regressor.get_params())
        info = credo.mlflow.log_model(regressor, registered_model_name="tables")
    for uri in (info.model_uri, "models:/tables/1"):
        np.testing.assert_array_equal(credo.mlflow.load_model(uri).predict(table), regressor.predict(table))
    found = pyfunc.load_model(info.model_uri).predict(table)
    np.testing.assert_allclose(found["mean"], regressor.predict(table), rtol=1e-12)


def test_a_model_logged_to_a_folder_comes_back(regressor, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    with mlflow.start_run():
        info = credo.mlflow.log_model(regressor)
    np.testing.assert_array_equal(credo.mlflow.load_model(info.model_uri).predict(table), regressor.predict(table))


def test_wrong_parameters_and_models_are_named(regressor, table, tmp_path):
    with pytest.raises(InputError, match="level must be a number between 0 and 1"):
        flavor.PyfuncModel(regressor).predict(table, {"level": 95.0})
    with pytest.raises(InputError, match="fitted Regressor or Classifier"):
        flavor.save_model(credo.Regressor(), tmp_path / "saved")


def test_without_mlflow_a_sentence_says_what_to_install(regressor, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=r"needs the extra `mlflow`: pip install credo\[mlflow\]"):
        flavor.save_model(regressor, tmp_path / "saved")
