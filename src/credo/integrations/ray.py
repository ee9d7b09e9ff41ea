"""Ray: members of an ensemble, folds of a cross-validation and a comparison of methods as Ray tasks.

A task whose worker is lost is started again by Ray, from the same arguments and seeds, and ends in the same result.
Needs the extra ``ray``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd
import torch

from credo.errors import missing_extra
from credo.methods import DeepEnsemble
from credo.methods.network import NetworkMethod
from credo.seeding import check_seed, derive
from credo.tabular.comparison import Comparison
from credo.tabular.comparison import compare as compare_methods
from credo.training.options import FitKeywords, FitOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["compare", "fit_ensemble", "joblib_backend", "run_tasks"]

RETRIES = 3
"""How often a task is started again after its worker was lost."""

Result = TypeVar("Result")


def run_tasks(
    function: Callable[..., Result], arguments: Iterable[tuple[Any, ...]], *, retries: int = RETRIES, **resources: Any
) -> list[Result]:
    """Call a function with each of several tuples of arguments, as Ray tasks.

    Args:
        function: a function without side effects, written in Python; it and its arguments are pickled.
        arguments: one tuple per call.
        retries: how often a call is started again after its worker was lost; errors of the function are raised.
        **resources: what a task needs, such as ``num_cpus=1`` or ``num_gpus=0.5``.

    Returns:
        The results, in the order of ``arguments``.

    Raises:
        InputError: Ray is not installed.

    Example:
        >>> from credo.integrations.ray import run_tasks  # doctest: +SKIP
        >>> run_tasks(lambda x, y: x**y, [(2, 3), (3, 2)])  # doctest: +SKIP
        [8, 9]
    """
    ray = _ray()
    task = ray.remote(function).options(max_retries=retries, **resources)
    results: list[Result] = ray.get([task.remote(*given) for given in arguments])
    return results


def fit_ensemble(ensemble: DeepEnsemble, data: Any, **options: Unpack[FitKeywords]) -> DeepEnsemble:
    """Train the members of an ensemble at once, each as a Ray task.

    Args:
        ensemble: as for :meth:`credo.DeepEnsemble.fit`; it is changed in place.
        data: as for every method; put on Ray's object store once.
        **options: see :class:`credo.training.FitOptions`; ``logger``, ``on_epoch_end`` and ``checkpoint`` act where a
            member is trained. A seed gives the members that ``members_at_once=False`` gives on one machine.

    Returns:
        The ensemble itself.

    Raises:
        InputError: an option is wrong, or Ray is not installed.
    """
    ray = _ray()
    FitOptions.from_keywords(options)
    members, seed, folder = ensemble._models(), options.get("seed"), options.get("checkpoint")
    shared = ray.put(data)
    tasks = []
    for i, member in enumerate(members):
        own: FitKeywords = {**options, "seed": None if seed is None else derive(check_seed(seed), i)}
        if folder is not None:
            own["checkpoint"] = f"{folder}/member_{i}"
        tasks.append((copy.deepcopy(member), shared, own))
    for i, trained in enumerate(run_tasks(_fit_member, tasks)):
        ensemble.members[i] = trained.to(members[i].device)
    ensemble.history = [{"member": i, **entry} for i, m in enumerate(ensemble._models()) for entry in m.history]
    return ensemble


def compare(frame: pd.DataFrame, target: str, *, n_jobs: int = -1, **options: Any) -> Comparison:
    """:func:`credo.tabular.comparison.compare` with the folds as Ray tasks.

    Args:
        frame: the table.
        target: the column to predict.
        n_jobs: the number of folds at once; -1: as many as Ray has processors.
        **options: further arguments of :func:`credo.tabular.comparison.compare`.

    Returns:
        The comparison, the same as without Ray.
    """
    with joblib_backend():
        return compare_methods(frame, target, n_jobs=n_jobs, **options)


def joblib_backend() -> AbstractContextManager[Any]:
    """A block in which whatever takes ``n_jobs`` runs on Ray, such as ``sklearn.model_selection.cross_val_score``.

    Returns:
        The context of joblib, for a ``with`` statement.

    Raises:
        InputError: Ray is not installed.

    Example:
        >>> with credo.ray.joblib_backend():  # doctest: +SKIP
        ...     cross_val_score(credo.Regressor(), X, y, n_jobs=-1)
    """
    import joblib

    _ray()
    from ray.util.joblib import register_ray

    register_ray()
    return joblib.parallel_config(backend="ray")  # type: ignore[no-any-return]


def _fit_member(member: NetworkMethod, data: Any, options: FitKeywords) -> NetworkMethod:
    torch.set_num_threads(1)
    return member.fit(data, **options).cpu()


def _ray() -> Any:
    """The library, connected to a cluster, or to one of this machine."""
    try:
        import ray
    except ImportError as error:
        raise missing_extra("credo.ray", "ray", error) from error
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    return ray
