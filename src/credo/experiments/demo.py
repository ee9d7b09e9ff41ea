"""The demo: a regression and a classification table of scikit-learn, from rows to a report."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from credo.tabular.runs import Run


@dataclass(frozen=True)
class Job:
    """A fitted table.

    Attributes:
        title: what the table is about.
        run: the model, the held-out rows and the scores on them.
        folder: the run folder with the model and the report.
    """

    title: str
    run: Run
    folder: Path

    @property
    def report(self) -> Path:
        """The path of the report."""
        from credo.tabular.runs import REPORT

        return self.folder / REPORT


def run_demo(
    out: Path | str = "demo",
    *,
    seed: int = 0,
    epochs: int | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> list[Job]:
    """Fit the diabetes table (regression) and the digits (classification), and write a report on each.

    Args:
        out: folder for the run folders; created if it does not exist.
        seed: seed of the split, the training and the draws.
        epochs: passes over each table; by default by its size.
        report: called with a short status message at every stage.

    Returns:
        The fitted tables, in the order of the run folders ``diabetes`` and ``digits``.

    Raises:
        InputError: if a run folder cannot be written.
    """
    from credo.tabular.files import reserve_folder
    from credo.tabular.runs import FILES, MARKER, fit_run

    out = Path(out)
    tables = _tables()
    jobs = []
    with ExitStack() as stack:
        for name in tables:
            stack.enter_context(reserve_folder(out / name, FILES, MARKER))
        for name, (title, frame, target) in tables.items():
            report(f"fitting {name}")
            run = fit_run(frame, target, epochs=epochs, seed=seed, source=f"{name}, from scikit-learn")
            report(f"writing the report on {name}")
            run.save(out / name)
            jobs.append(Job(title, run, out / name))
    return jobs


def _tables() -> dict[str, tuple[str, pd.DataFrame, str]]:
    """Title, table and target of each table, by name."""
    from sklearn.datasets import load_diabetes, load_digits

    diabetes = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": "progression"})
    digits = load_digits(as_frame=True).frame.rename(columns={"target": "digit"})
    return {
        "diabetes": ("Progression of diabetes in a year, from ten measurements", diabetes, "progression"),
        "digits": ("Handwritten digits, from 64 pixels", digits, "digit"),
    }
