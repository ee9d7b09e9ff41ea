"""The methods of ``tables.py``: credo with its defaults, others with theirs and what their documentation advises.

Each takes the training rows of a split and returns a function from new rows to their predictive distribution. credo,
CatBoost and LightGBM take tables as they are; the others get missing values imputed and words as indicator columns, and
the linear models and Gaussian processes standardized columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import optimize, stats
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import BayesianRidge, LogisticRegression, PoissonRegressor
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from table_data import Split
from table_scores import SMALLEST_MASS, Distribution, QuantileDistribution

import credo
from credo.predictive import ClassPredictive, RealPredictive
from credo.predictive.classes import CategoricalComponents
from credo.predictive.counts import NegativeBinomialComponents, PoissonComponents
from credo.predictive.location_scale import GaussianComponents

Predict = Callable[[pd.DataFrame], Distribution]
Method = Callable[[Split, str, int], Predict]

MAX_LEVELS = 30
"""Most frequent words of a column that get an indicator of their own; the others share one."""
MAX_GP_ROWS = 1_000
MAX_ARD_COLUMNS = 20
VIRTUAL_ENSEMBLES = 10
VALIDATION = 0.2
PATIENCE = 50
TAIL_LEVELS = (0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)
QUANTILE_LEVELS = (*TAIL_LEVELS, 0.5, *(1.0 - level for level in reversed(TAIL_LEVELS)))


def gaussian(mean: NDArray[Any], variance: NDArray[Any]) -> RealPredictive:
    """A mixture of Gaussians with equal weights, ``[S, B]`` or a single one, ``[B]``."""
    mean, variance = (torch.from_numpy(np.atleast_2d(np.asarray(a, dtype=np.float64)).copy()) for a in (mean, variance))
    return RealPredictive(GaussianComponents(mean, variance.log()))


def categorical(p: NDArray[Any]) -> ClassPredictive:
    """Class probabilities, ``[B, C]``, none below 10⁻¹²."""
    clipped = np.clip(np.asarray(p, dtype=np.float64), SMALLEST_MASS, None)
    return ClassPredictive(CategoricalComponents(torch.from_numpy(clipped).log()[None]))


def encode(split: Split, scale: bool) -> Pipeline:
    """Numbers from a table: medians for missing values, indicators for words, and standardized if ``scale``."""
    numbers = [name for name in split.x if name not in split.words]
    words = make_pipeline(
        SimpleImputer(strategy="constant", fill_value="missing"),
        OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=MAX_LEVELS, sparse_output=False),
    )
    columns = ColumnTransformer([("numbers", SimpleImputer(strategy="median"), numbers), ("words", words, split.words)])
    return make_pipeline(columns, StandardScaler()) if scale else make_pipeline(columns)


def fit_credo(split: Split, task: str, seed: int) -> Predict:
    """``credo.Regressor`` or ``credo.Classifier``."""
    estimator = credo.Classifier if task == "classes" else credo.Regressor
    model = estimator(random_state=seed).fit(split.x, split.y)

    def predict(x: pd.DataFrame) -> Distribution:
        found: Distribution = model.predict_dist(x)
        return found

    predict.notes = [str(note) for note in model.notes_]  # type: ignore[attr-defined]
    return predict


def fit_linear(split: Split, task: str, seed: int) -> Predict:
    """scikit-learn's ``BayesianRidge``, ``LogisticRegression``, or ``PoissonRegressor`` with a dispersion.

    The dispersion of counts, by maximum likelihood on the training rows, makes them negative binomial.
    """
    encoder = encode(split, scale=True)
    z = encoder.fit_transform(split.x)
    if task == "classes":
        model = LogisticRegression(max_iter=5000).fit(z, split.y)
        return lambda x: categorical(model.predict_proba(encoder.transform(x)))
    if task == "counts":
        model = PoissonRegressor(max_iter=5000).fit(z, split.y)
        rates = model.predict(z)

        def loss(log_dispersion: float) -> float:
            shape = np.exp(-log_dispersion)
            return -float(stats.nbinom.logpmf(split.y, shape, shape / (shape + rates)).sum())

        best = optimize.minimize_scalar(loss, bounds=(-10.0, 5.0), method="bounded").x

        def predict(x: pd.DataFrame) -> Distribution:
            log_mean = torch.from_numpy(np.log(model.predict(encoder.transform(x))))[None]
            return RealPredictive(NegativeBinomialComponents(log_mean, torch.full_like(log_mean, float(best))))

        return predict
    model = BayesianRidge().fit(z, split.y)

    def predict_gaussian(x: pd.DataFrame) -> Distribution:
        mean, std = model.predict(encoder.transform(x), return_std=True)
        return gaussian(mean, std**2)

    return predict_gaussian


def fit_gp(split: Split, task: str, seed: int) -> Predict:
    """scikit-learn's Gaussian process with a squared exponential kernel, on at most 1,000 rows."""
    rows = np.random.default_rng(seed).permutation(len(split.y))[:MAX_GP_ROWS]
    encoder = encode(split, scale=True)
    z = encoder.fit_transform(split.x)
    columns = z.shape[1]
    if task == "classes":
        model = GaussianProcessClassifier(1.0 * RBF(np.sqrt(columns)), random_state=seed).fit(z[rows], split.y[rows])
        return lambda x: categorical(model.predict_proba(encoder.transform(x)))
    length = np.full(columns, np.sqrt(columns)) if columns <= MAX_ARD_COLUMNS else np.sqrt(columns)
    kernel = ConstantKernel() * RBF(length, (1e-2, 1e4)) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed).fit(z[rows], split.y[rows])

    def predict(x: pd.DataFrame) -> Distribution:
        mean, std = model.predict(encoder.transform(x), return_std=True)
        return gaussian(mean, np.maximum(std, 1e-6 * model._y_train_std) ** 2)

    return predict


def fit_forest(split: Split, task: str, seed: int) -> Predict:
    """scikit-learn's random forest; quantities with the quantiles of its out-of-bag residuals, the levels of LightGBM.

    A vote for every class is added to those of the trees, so that no class has probability 0.
    """
    encoder = encode(split, scale=False)
    z = encoder.fit_transform(split.x)
    if task == "classes":
        forest = RandomForestClassifier(random_state=seed).fit(z, split.y)

        def predict_classes(x: pd.DataFrame) -> Distribution:
            votes = len(forest.estimators_) * forest.predict_proba(encoder.transform(x)) + 1.0
            return categorical(votes / votes.sum(1, keepdims=True))

        return predict_classes
    model = RandomForestRegressor(oob_score=True, random_state=seed).fit(z, split.y)
    residuals = np.quantile(split.y - model.oob_prediction_, QUANTILE_LEVELS)

    def predict(x: pd.DataFrame) -> Distribution:
        mean = model.predict(encoder.transform(x))
        return QuantileDistribution(np.array(QUANTILE_LEVELS), mean + residuals[:, None], mean, float(split.y.std()))

    return predict


def fit_ngboost(split: Split, task: str, seed: int) -> Predict:
    """NGBoost with its Normal, Poisson or categorical distribution, stopped early on a fifth of the training rows."""
    from ngboost import NGBClassifier, NGBRegressor
    from ngboost.distns import Normal, Poisson, k_categorical

    encoder = encode(split, scale=False)
    z = encoder.fit_transform(split.x)
    stratify = split.y if task == "classes" else None
    old, new, y_old, y_new = train_test_split(z, split.y, test_size=VALIDATION, random_state=seed, stratify=stratify)
    options: dict[str, Any] = {"random_state": seed, "verbose": False}
    if task == "classes":
        model = NGBClassifier(Dist=k_categorical(split.classes), **options)
        model.fit(old, y_old, X_val=new, Y_val=y_new, early_stopping_rounds=PATIENCE)
        return lambda x: categorical(model.predict_proba(encoder.transform(x)))
    model = NGBRegressor(Dist=Poisson if task == "counts" else Normal, **options)
    model.fit(old, y_old, X_val=new, Y_val=y_new, early_stopping_rounds=PATIENCE)

    def predict(x: pd.DataFrame) -> Distribution:
        found = model.pred_dist(encoder.transform(x))
        if task == "counts":
            return RealPredictive(PoissonComponents(torch.from_numpy(np.log(found.params["mu"]))[None]))
        return gaussian(found.params["loc"], found.params["scale"] ** 2)

    return predict


def fit_catboost(split: Split, task: str, seed: int) -> Predict:
    """CatBoost: ``RMSEWithUncertainty`` and up to 10 virtual ensembles, or ``MultiClass``; stopped early as NGBoost."""
    from catboost import CatBoostClassifier, CatBoostRegressor

    def words(x: pd.DataFrame) -> pd.DataFrame:
        return x.assign(**{name: x[name].astype("object").fillna("missing").astype(str) for name in split.words})

    stratify = split.y if task == "classes" else None
    parts = train_test_split(words(split.x), split.y, test_size=VALIDATION, random_state=seed, stratify=stratify)
    old, new, y_old, y_new = parts
    options: dict[str, Any] = {"random_seed": seed, "thread_count": 1, "verbose": False, "allow_writing_files": False}
    fit: dict[str, Any] = {"cat_features": split.words, "eval_set": (new, y_new), "early_stopping_rounds": PATIENCE}
    if task == "classes":
        model = CatBoostClassifier(loss_function="MultiClass", **options).fit(old, y_old, **fit)
        return lambda x: categorical(model.predict_proba(words(x)))
    model = CatBoostRegressor(loss_function="RMSEWithUncertainty", posterior_sampling=True, **options)
    model.fit(old, y_old, **fit)

    ensembles = min(VIRTUAL_ENSEMBLES, model.tree_count_ // 2)  # each ends at another tree of the second half

    def predict(x: pd.DataFrame) -> Distribution:
        if ensembles == 0:
            return gaussian(*model.predict(words(x)).T)
        found = model.virtual_ensembles_predict(
            words(x), prediction_type="VirtEnsembles", virtual_ensembles_count=ensembles, thread_count=1
        )
        return gaussian(found[:, :, 0].T, found[:, :, 1].T)

    return predict


def fit_lightgbm(split: Split, task: str, seed: int) -> Predict:
    """LightGBM: 17 quantiles, made conformal on a quarter of the training rows, or classes with early stopping.

    Each pair of quantiles that bounds a central interval is moved apart or together by the quantile of the scores
    max(lower − y, y − upper) of the rows that were kept for it (Romano et al. 2019). The mean comes from a model of its
    own.
    """
    import lightgbm

    levels = {name: pd.CategoricalDtype(sorted(split.x[name].dropna().unique())) for name in split.words}
    stratify = split.y if task == "classes" else None
    share = VALIDATION if task == "classes" else 0.25
    parts = train_test_split(split.x.astype(levels), split.y, test_size=share, random_state=seed, stratify=stratify)
    old, new, y_old, y_new = parts
    options: dict[str, Any] = {"random_state": seed, "n_jobs": 1, "verbose": -1}
    if task == "classes":
        stop = [lightgbm.early_stopping(PATIENCE, verbose=False)]
        model = lightgbm.LGBMClassifier(n_estimators=1000, **options)
        model.fit(old, y_old, eval_set=[(new, y_new)], callbacks=stop)
        return lambda x: categorical(model.predict_proba(x.astype(levels)))

    def fit(**loss: Any) -> Any:
        return lightgbm.LGBMRegressor(**loss, **options).fit(old, y_old)

    models, mean = [fit(objective="quantile", alpha=level) for level in QUANTILE_LEVELS], fit()
    found = np.sort([model.predict(new) for model in models], axis=0)
    shifts = np.zeros(len(models))
    for i, level in enumerate(TAIL_LEVELS):
        scores = np.maximum(found[i] - y_new, y_new - found[-1 - i])
        rank = min(1.0, (1.0 - 2.0 * level) * (1.0 + 1.0 / len(scores)))
        shifts[-1 - i] = np.quantile(scores, rank, method="higher")
        shifts[i] = -shifts[-1 - i]

    def predict(x: pd.DataFrame) -> Distribution:
        x = x.astype(levels)
        quantiles = np.sort([model.predict(x) for model in models], axis=0) + shifts[:, None]
        return QuantileDistribution(np.array(QUANTILE_LEVELS), quantiles, mean.predict(x), float(split.y.std()))

    return predict


METHODS: dict[str, Method] = {
    "credo": fit_credo,
    "catboost": fit_catboost,
    "ngboost": fit_ngboost,
    "lightgbm": fit_lightgbm,
    "gp": fit_gp,
    "forest": fit_forest,
    "linear": fit_linear,
}


def fit(method: str, split: Split, task: str, seed: int) -> Predict:
    """Fit one method on one thread, without its warnings."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return METHODS[method](split, task, seed)
