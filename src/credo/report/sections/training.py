"""What was trained, and how."""

from __future__ import annotations

import platform
from typing import Any

import torch

from credo import plots
from credo._text import counted
from credo._version import __version__
from credo.methods import DeepEnsemble
from credo.methods.base import Method
from credo.report import figures
from credo.report.evidence import Evidence
from credo.report.page import Facts, Gallery, Part, Picture, Section
from credo.report.wording import cut, number
from credo.tabular import methods
from credo.tabular.base import TableEstimator


def section(evidence: Evidence) -> Section:
    """The settings and the course of training."""
    model = evidence.model
    parts: list[Part] = [Facts(_settings(model))]
    if model.history_:
        parts.append(Gallery([_course(model)]))
    return Section("training", "What was trained, and how", parts)


def method_title(model: TableEstimator) -> str:
    """What the method is called."""
    known = model.method in methods.names()
    return methods.get(model.method).title if known else type(model.model_).__name__


def rows_trained_on(model: TableEstimator) -> int | None:
    """How many rows moved the weights, where the method knows."""
    count: int | None = getattr(_members(model.model_)[0], "n_data", None)
    return count


def _settings(model: TableEstimator) -> list[tuple[str, str]]:
    members = _members(model.model_)
    first, several = members[0], len(members) > 1
    card: dict[str, Any] = first._describe_networks()
    rows, prior = rows_trained_on(model), _text(getattr(first, "prior", None))
    epochs = max((int(entry["epoch"]) for entry in model.history_), default=0)
    seconds = sum(entry.get("seconds", 0.0) for entry in model.history_)
    settings = {
        "Method": method_title(model) + (f", {len(members)} networks" if several else ""),
        "Settings of the method": first.extra_repr().replace(f"prior={prior}", "").strip(" ,"),
        "Network": _network(card),
        "Weights": f"{card['parameters']:,}" + (" in each network" if several else ""),
        "Prior": prior,
        "Likelihood": _text(getattr(first, "likelihood", None)),
        "Rows trained on": f"{rows:,}" if rows else "",
        "Epochs": f"{epochs:,}" if epochs else "",
        "Batch": counted(methods.TrainingPlan.make(rows, batch_size=model.batch_size).batch_size, "row")
        if rows
        else "",
        "Learning rate": f"{number(model.lr, trim=True)} at the start, decaying to 0",
        "Time": f"{number(seconds, 2)} s of training" if seconds else "",
        "Draws for a prediction": f"{model.samples:,}",
        "Calibration": _text(model.calibrator_) or "none",
        "Seed": str(model.seed_),
        "Versions": f"credo {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    }
    return [(term, cut(told, 300)) for term, told in settings.items() if told]


def _members(method: Method) -> list[Method]:
    """The networks of an ensemble; of any other method, itself."""
    return [m for m in method.members if isinstance(m, Method)] if isinstance(method, DeepEnsemble) else [method]


def _network(card: dict[str, Any]) -> str:
    if card.get("architecture", {}).get("name") != "mlp":
        return str(card["class"])
    config = card["architecture"]["config"]
    widths = " → ".join(f"{width:,}" for width in (config["in_features"], *config["hidden"], config["out_features"]))
    return f"{widths}, {config['activation']}"


def _text(part: object) -> str:
    return "" if part is None else repr(part)


def _course(model: TableEstimator) -> Picture:
    run = [entry["nll"] for entry in model.history_ if entry.get("member", 0) == 0]
    several = len(_members(model.model_)) > 1
    return figures.draw(
        lambda ax: plots.training_curves(model.history_, ax),
        alt=f"Training curves: the negative log likelihood{' of the first network' if several else ''} goes from "
        f"{number(run[0])} to {number(run[-1])} nats per row in {counted(len(run), 'epoch')}.",
        caption="The course of training: how badly the training rows are explained, and, where the method has it, what "
        "the complexity of the weights costs.",
    )
