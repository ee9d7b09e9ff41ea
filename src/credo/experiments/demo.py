"""The main job in a minute: two tables that come with scikit-learn, from rows to a report."""

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
    """A table that was learned.

    Attributes:
        title: what it is about.
        run: the model, the rows it has not seen, and what it is worth on them.
        folder: where both and the report lie.
    """

    title: str
    run: Run
    folder: Path

    @property
    def report(self) -> Path:
        """The page to open."""
        from credo.tabular.runs import REPORT

        return self.folder / REPORT


def run_demo(
    out: Path | str = "demo",
    *,
    seed: int = 0,
    epochs: int | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> list[Job]:
    """Learn the diabetes table (a number) and the digits (a class), and write a run folder with a report for each.

    Args:
        out: folder for the run folders; made where it does not exist.
        seed: decides everything that is random.
        epochs: passes over each table; by default by its size.
        report: told in a few words what is being done.
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
            report(f"learning {name}")
            run = fit_run(frame, target, epochs=epochs, seed=seed, source=f"{name}, from scikit-learn")
            report(f"drawing the report on {name}")
            run.save(out / name)
            jobs.append(Job(title, run, out / name))
    return jobs


def _tables() -> dict[str, tuple[str, pd.DataFrame, str]]:
    """Title, table and target, by name."""
    from sklearn.datasets import load_diabetes, load_digits

    diabetes = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": "progression"})
    digits = load_digits(as_frame=True).frame.rename(columns={"target": "digit"})
    return {
        "diabetes": ("How far diabetes goes in a year, from ten measurements", diabetes, "progression"),
        "digits": ("Which digit it is, from 64 pixels", digits, "digit"),
    }
