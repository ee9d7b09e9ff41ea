"""From a fitted estimator and rows that it has not seen to one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from credo._files import whole_file
from credo._text import counted
from credo._version import __version__
from credo.report import headline, sections, verdict
from credo.report.evidence import gather
from credo.report.page import Page, to_html
from credo.report.sections.training import method_title, rows_trained_on
from credo.report.wording import cut, rows, today
from credo.seeding import check_seed
from credo.tabular.runs import Evaluation


def render(
    model: Any,
    X: Any,
    y: Any,
    *,
    title: str | None = None,
    source: str | None = None,
    seed: int = 0,
    evaluation: Evaluation | None = None,
) -> str:
    """A report on how a fitted estimator does on held-out rows, as one HTML file that needs nothing else.

    It opens with what was predicted and how well, in words, and with warnings where the rows speak against the model
    beyond what chance explains; then come scores, calibration, the sources of the uncertainty, single rows, the data
    and the training. Everything from the data is escaped.

    Args:
        model: a fitted :class:`credo.Regressor` or :class:`credo.Classifier`.
        X: rows that it was not trained on, as ``model.predict_dist`` takes them.
        y: their targets ``[N]``; rows without one are left out.
        title: the heading; by default what is predicted.
        source: where the data come from, such as a file name, for the line below the heading.
        seed: of the resampling and the other draws of the report itself.
        evaluation: the predictions for these rows, if they were made before; ``None``: they are made.
    """
    found = gather(model, X, y, check_seed(seed), evaluation)
    trained = rows_trained_on(model)
    byline = [
        cut(source or "", 80),
        method_title(model),
        f"{counted(trained, 'row')} trained on" if trained else "",
        rows(len(found.forecast)),
        today(),
    ]
    return to_html(
        Page(
            title=title or headline.title(found),
            byline=list(filter(None, byline)),
            headline=headline.headline(found),
            verdict=verdict.judge(found),
            tiles=headline.tiles(found),
            sections=sections.all_of(found),
            footer=f"Made by credo {__version__}.",
        )
    )


def write(path: str | Path, model: Any, X: Any, y: Any, **options: Any) -> Path:
    """Write :func:`render`'s page to ``path``, whole or not at all, and say where it is.

    Args:
        path: the file; an earlier one is replaced.
        model: a fitted estimator.
        X: rows that it was not trained on.
        y: their targets.
        options: those of :func:`render`.
    """
    with whole_file(path) as part:
        part.write_text(render(model, X, y, **options), encoding="utf-8")
    return Path(path)
