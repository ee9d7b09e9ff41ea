"""The classical models find the same on a GPU as on the CPU; skipped where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from credo.decomposition import PCA, BayesianPCA, ProbabilisticPCA
from credo.gaussian_process import GaussianProcessRegressor
from credo.linear import BayesianLinearRegression, BayesianLogisticRegression
from credo.mixture import GaussianMixture, KMeans, VariationalGaussianMixture
from credo.sequence import GaussianHMM

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

ROWS, COLUMNS = 600, 5
CENTERS = np.array([[4.0, 0, 0, 0, 0], [0, 4.0, 0, 0, 0], [0, 0, 4.0, 0, 0]])

MODELS = {
    "linear": (BayesianLinearRegression(), ("coef_", "sigma_", "log_evidence_")),
    "linear, polynomial": (BayesianLinearRegression("polynomial"), ("coef_", "log_evidence_")),
    "linear, variational": (BayesianLinearRegression(hyperparameters="variational"), ("coef_", "lower_bound_")),
    "linear, ard": (BayesianLinearRegression(hyperparameters="ard"), ("coef_", "log_evidence_")),
    "logistic, laplace": (BayesianLogisticRegression(method="laplace"), ("coef_",)),
    "logistic, variational": (BayesianLogisticRegression(method="variational"), ("coef_", "lower_bound_")),
    "k-means": (KMeans(3, random_state=0), ("inertia_",)),
    "mixture, full": (GaussianMixture(3, random_state=0), ("lower_bound_",)),
    "mixture, diag": (GaussianMixture(3, covariance_type="diag", random_state=0), ("lower_bound_",)),
    "mixture, tied": (GaussianMixture(3, covariance_type="tied", random_state=0), ("lower_bound_",)),
    "mixture, spherical": (GaussianMixture(3, covariance_type="spherical", random_state=0), ("lower_bound_",)),
    "variational mixture": (VariationalGaussianMixture(3, random_state=0), ("lower_bound_",)),
    "pca": (PCA(3), ("components_", "explained_variance_")),
    "ppca": (ProbabilisticPCA(3), ("components_", "noise_variance_")),
    "ppca by em": (ProbabilisticPCA(3, method="em", random_state=0), ("noise_variance_",)),
    "bayesian pca": (BayesianPCA(), ("lower_bound_",)),
    "hmm": (GaussianHMM(3, random_state=0), ("lower_bound_", "transmat_")),
    "gaussian process": (GaussianProcessRegressor(), ("log_evidence_",)),
}


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(0)
    classes = random.integers(3, size=ROWS)
    X = CENTERS[classes] + random.normal(size=(ROWS, COLUMNS))
    return X, X @ np.arange(COLUMNS) + random.normal(size=ROWS), classes


@pytest.mark.parametrize("name", MODELS)
def test_same_answer_as_on_the_cpu(name, table):
    X, y, classes = table
    model, attributes = MODELS[name]
    X, y = (X[:100], y[:100]) if name == "gaussian process" else (X, y)
    target = classes if name.startswith("logistic") else y
    here, there = (_fitted(model, X, target, device) for device in (None, "cuda"))
    for attribute in attributes:
        found, expected = np.asarray(getattr(there, attribute)), np.asarray(getattr(here, attribute))
        # iterations stop where a gain is small, so that rounding may end them a step apart
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for method in ("predict", "transform", "score_samples", "predict_proba"):
        if hasattr(there, method):
            assert np.isfinite(getattr(there, method)(X[:7])).all()


def test_rows_move_block_by_block_where_they_do_not_fit(table, monkeypatch):
    monkeypatch.setattr("credo._rows._SHARE_OF_DEVICE_MEMORY", 0.0)
    X, y, _ = table
    whole, pieces = _fitted(PCA(3), X, y, None), _fitted(PCA(3), X, y, "cuda")
    np.testing.assert_allclose(pieces.components_, whole.components_, rtol=1e-10, atol=1e-10)


def _fitted(model, X, y, device):
    from sklearn.base import clone

    return clone(model).set_params(device=device).fit(X, y)
