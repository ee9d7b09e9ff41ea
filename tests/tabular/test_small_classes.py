"""Classification of small tables, compared with logistic regression."""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import credo


def test_linear_classes_match_logistic_regression():
    """200 rows, log odds 1.5 x₀ − x₁ + x₂/2, and two columns that do nothing.

    Both estimate 6 numbers that matter, which costs about 6/(2·200) = 0.015 nats over the truth. A difference of
    0.01 is most of that again, and five standard errors of a paired difference over 4,000 rows, 0.1/√4000 = 0.002.
    """
    rng = np.random.default_rng(1000)
    x = rng.normal(size=(4200, 5))
    y = (rng.random(4200) < expit(x @ np.array([1.5, -1.0, 0.5, 0.0, 0.0]))).astype(np.int64)
    exact = LogisticRegression().fit(x[:200], y[:200]).predict_proba(x[200:])
    p = credo.Classifier(epochs=400, random_state=0).fit(x[:200], y[:200]).predict_dist(x[200:])
    assert credo.metrics.nll(p, torch.from_numpy(y[200:])) < log_loss(y[200:], exact) + 0.01
