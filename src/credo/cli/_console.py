"""What commands show: results on stdout, everything said on the way on stderr, or one JSON object."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.table import Table

from credo._files import to_json
from credo.errors import CredoError

if TYPE_CHECKING:
    import pandas as pd

    from credo.metrics import Score


@contextmanager
def endings() -> Iterator[None]:
    """Errors raised on purpose end in one sentence and exit code 1; an interrupt ends in silence and 130."""
    try:
        yield
    except CredoError as error:
        typer.echo(f"credo: {error}", err=True)
        raise SystemExit(1) from error
    except KeyboardInterrupt as error:
        raise SystemExit(130) from error


class Screen:
    """Where a command prints.

    Args:
        quiet: print nothing but errors.
        as_json: print one JSON object on stdout in place of text.

    Attributes:
        notes: what was noted so far.
    """

    def __init__(self, *, quiet: bool = False, as_json: bool = False) -> None:
        self.notes: list[str] = []
        self.quiet = quiet
        self._as_json = as_json
        self._out = Console(quiet=quiet or as_json, highlight=False)
        self._err = Console(quiet=quiet, stderr=True, highlight=False)

    def say(self, text: str) -> None:
        """Print a line."""
        self._out.print(text, markup=False, soft_wrap=True)

    def show(self, table: RenderableType) -> None:
        """Print a table."""
        self._out.print(table)

    def note(self, sentence: str) -> None:
        """Say something that the user should know, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)
            self._err.print(f"note: {sentence}", style="yellow", markup=False, soft_wrap=True)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Make notes of what the library warns of meanwhile."""

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, UserWarning):
                self.note(str(message))
            else:
                printed(message, category, *place, **more)

        logger = logging.getLogger("credo")
        before = logger.level
        with warnings.catch_warnings():
            warnings.filterwarnings("always", category=UserWarning, module=r"credo(\.|$)")
            printed, warnings.showwarning = warnings.showwarning, show
            if self.quiet:
                logger.setLevel(logging.WARNING)
            try:
                yield
            finally:
                logger.setLevel(before)

    @contextmanager
    def doing(self, what: str) -> Iterator[Callable[[str], None]]:
        """Show on a terminal what is being done; the function given changes what it says."""
        with self._err.status(what) as status:
            yield status.update

    def counting(self, pieces: Iterable[pd.DataFrame], total: int) -> Iterator[pd.DataFrame]:
        """The pieces of a table, with a bar over its ``total`` rows on a terminal."""
        shown = self._err.is_terminal and not self.quiet
        with Progress(console=self._err, transient=True, redirect_stdout=False, disable=not shown) as bar:
            task = bar.add_task("rows", total=total)
            for piece in pieces:
                yield piece
                bar.advance(task, len(piece))

    def finish(self, record: dict[str, Any]) -> None:
        """End with ``record`` and the notes, where JSON is wanted."""
        if self._as_json:
            typer.echo(to_json({**record, "notes": self.notes}).decode())


def score_table(title: str, scores: Sequence[Score]) -> Table:
    """Scores with their intervals."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_style="bold", title_justify="left")
    table.add_column("score", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="center", no_wrap=True)
    table.add_column("better", no_wrap=True)
    for score in scores:
        interval = f"{number(score.lower)} to {number(score.upper)}"
        better = f"near {score.level:g}" if score.better == "level" else score.better
        table.add_row(score.label, number(score.value), interval, better)
    return table


def number(value: float) -> str:
    """A number to four digits; a dash where there is none."""
    return "–" if value != value else f"{value:.4g}"
