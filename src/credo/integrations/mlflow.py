"""An MLflow flavor: tables that are saved, logged, registered and served by MLflow.

A model is the folder that ``model.save`` writes; nothing is pickled. Its pyfunc takes a data frame of raw columns and
returns a data frame of floats, so that ``mlflow.pyfunc.spark_udf`` can apply it to a Spark table. Needs the extra
``mlflow``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from credo._arguments import check_fraction
from credo._version import __version__
from credo.errors import InputError, missing_extra
from credo.io import load
from credo.tabular.base import TableEstimator
from credo.tabular.predictions import column_names, to_frame
from credo.tabular.several_targets import check_one_target
from credo.tabular.targets import ClassTarget

if TYPE_CHECKING:
    from mlflow.models import Model, ModelSignature
    from mlflow.models.model import ModelInfo

FLAVOR_NAME = "credo"
_FOLDER = "credo"
_LABEL = "class"
_TYPES = {"number": "double", "date": "datetime"}


def save_model(
    model: TableEstimator,
    path: str | Path,
    *,
    mlflow_model: Model | None = None,
    signature: ModelSignature | None = None,
    input_example: Any = None,
    pip_requirements: Sequence[str] | None = None,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Save a fitted estimator as an MLflow model.

    Args:
        model: a fitted :class:`credo.Regressor` or :class:`credo.Classifier`.
        path: a folder that does not exist.
        mlflow_model: the description that the flavor is added to; ``None``: a new one.
        signature: columns and parameters; ``None``: those of :func:`infer_signature`.
        input_example: rows to store beside the model, such as ``X.head()``.
        pip_requirements: what a server installs; ``None``: this version of credo.
        metadata: a dictionary to store with the description.

    Raises:
        InputError: the model is not a fitted estimator of tables, or MLflow is not installed.
    """
    try:
        from mlflow import pyfunc
        from mlflow.models import Model
        from mlflow.models.model import MLMODEL_FILE_NAME
        from mlflow.models.utils import _save_example
        from mlflow.utils.environment import _mlflow_conda_env, _PythonEnv
        from mlflow.utils.model_utils import _validate_and_prepare_target_save_path
    except ImportError as error:
        raise missing_extra("credo.mlflow", "mlflow", error) from error
    import yaml

    _check_model(model)
    folder = Path(path).absolute()
    _validate_and_prepare_target_save_path(str(folder))
    description = Model() if mlflow_model is None else mlflow_model
    if input_example is not None:
        _save_example(description, input_example, str(folder))
    description.signature = infer_signature(model) if signature is None else signature
    if metadata is not None:
        description.metadata = metadata
    model.save(folder / _FOLDER)
    requirements = [f"credo[mlflow]=={__version__}"] if pip_requirements is None else list(pip_requirements)
    pyfunc.add_to_model(
        description, loader_module=__name__, data=_FOLDER, conda_env="conda.yaml", python_env="python_env.yaml"
    )
    description.add_flavor(FLAVOR_NAME, credo_version=__version__, data=_FOLDER, estimator=type(model).__name__)
    description.save(str(folder / MLMODEL_FILE_NAME))
    environment = _mlflow_conda_env(additional_pip_deps=requirements)
    (folder / "conda.yaml").write_text(yaml.safe_dump(environment, default_flow_style=False))
    (folder / "requirements.txt").write_text("\n".join(requirements))
    _PythonEnv.current().to_yaml(str(folder / "python_env.yaml"))


def log_model(
    model: TableEstimator, name: str = "model", *, registered_model_name: str | None = None, **options: Any
) -> ModelInfo:
    """Log a fitted estimator to the active MLflow run, or to a new one.

    Args:
        model: as for :func:`save_model`.
        name: the name of the logged model.
        registered_model_name: register a version under this name too.
        **options: further arguments of :func:`save_model` and of ``mlflow.models.Model.log``.

    Returns:
        What MLflow knows of it; ``info.model_uri`` is for :func:`load_model` and ``mlflow.pyfunc.load_model``.
    """
    try:
        from mlflow.models import Model
    except ImportError as error:
        raise missing_extra("credo.mlflow", "mlflow", error) from error
    import credo.integrations.mlflow as flavor

    _check_model(model)  # before a run is started
    return Model.log(
        artifact_path=None,
        name=name,
        flavor=flavor,
        registered_model_name=registered_model_name,
        model=model,
        **options,
    )


def load_model(model_uri: str, dst_path: str | None = None) -> TableEstimator:
    """Load an estimator from a folder or store of MLflow.

    Args:
        model_uri: such as ``"models:/concrete/1"``, ``"runs:/RUN/model"`` or a folder.
        dst_path: where to download it to; ``None``: a temporary folder.

    Returns:
        The estimator, as :func:`credo.load` returns it.
    """
    try:
        from mlflow.tracking.artifact_utils import _download_artifact_from_uri
        from mlflow.utils.model_utils import _get_flavor_configuration
    except ImportError as error:
        raise missing_extra("credo.mlflow", "mlflow", error) from error
    folder = _download_artifact_from_uri(artifact_uri=model_uri, output_path=dst_path)
    found = _get_flavor_configuration(model_path=folder, flavor_name=FLAVOR_NAME)
    estimator = load(Path(folder) / found["data"])
    _check_model(estimator)
    return estimator  # type: ignore[no-any-return]


def infer_signature(model: TableEstimator) -> ModelSignature:
    """The columns that a model needs, the columns that it returns, and the parameters ``level`` and ``quantiles``.

    Args:
        model: a fitted estimator.

    Returns:
        The signature. Columns of numbers are doubles and dates are datetimes, unless they were read from text in one of
        several ways of writing; those and labels are strings.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    written = model.columns_.formats
    inputs = [
        ColSpec("string" if one.name in written else _TYPES.get(one.kind, "string"), one.name, required=False)
        for one in model.columns_.summaries
    ]
    outputs = [ColSpec("double", name) for name in column_names(model.target_) if name != _LABEL]
    parameters = [ParamSpec("level", "double", 0.95), ParamSpec("quantiles", "double", [], (-1,))]
    if isinstance(model.target_, ClassTarget):
        parameters = []
    return ModelSignature(Schema(inputs), Schema(outputs), ParamSchema(parameters) if parameters else None)


class PyfuncModel:
    """What ``mlflow.pyfunc.load_model`` calls.

    Args:
        estimator: a fitted estimator.
    """

    def __init__(self, estimator: TableEstimator) -> None:
        self.estimator = estimator

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Predict rows.

        Args:
            model_input: a data frame with the columns of training, or an array.
            params: for a quantity, ``level``, the probability of the interval, 0.95 if it is left out, and
                ``quantiles``, probabilities between 0 and 1.

        Returns:
            Floats, with the index of the input: ``mean``, ``std``, ``epistemic``, ``aleatoric``, ``lower``, ``upper``
            and ``quantile_q`` for each of ``quantiles``; or ``p_<class>`` for each class, ``entropy`` and
            ``mutual_information``.

        Raises:
            InputError: a column is absent, or a parameter is not a probability.
        """
        given = params or {}
        target = self.estimator.target_
        level = check_fraction(given.get("level", 0.95), "level")
        quantiles = [check_fraction(float(q), "quantiles") for q in given.get("quantiles", ())]
        if quantiles and isinstance(target, ClassTarget):
            raise InputError("quantiles are those of a quantity, and the target of this model is a class")
        if quantiles:
            check_one_target(target, "the parameter 'quantiles'")
        predictive = self.estimator.predict_dist(model_input)
        frame = to_frame(predictive, target, level).drop(columns=_LABEL, errors="ignore").astype("float64")
        for q in quantiles:
            frame[f"quantile_{q:g}"] = predictive.quantile(q).double().numpy()
        return frame.set_axis(model_input.index, axis=0) if isinstance(model_input, pd.DataFrame) else frame


def _load_pyfunc(path: str) -> PyfuncModel:
    """Called by ``mlflow.pyfunc.load_model`` with the folder of the data."""
    return PyfuncModel(load(path))


def _check_model(model: object) -> None:
    if not isinstance(model, TableEstimator) or not hasattr(model, "model_"):
        raise InputError(
            f"the MLflow flavor is for a fitted Regressor or Classifier, got {type(model).__name__}; log the folder "
            "that model.save writes with mlflow.log_artifacts"
        )
