"""Output of the commands: results on stdout, status and notes on stderr, or one JSON object on stdout."""

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
def exit_codes() -> Iterator[None]:
    """Turn errors of credo into one line on stderr and exit code 1, and an interrupt into exit code 130."""
    try:
        yield
    except CredoError as error:
        typer.echo(f"credo: {error}", err=True)
        raise SystemExit(1) from error
    except KeyboardInterrupt as error:
        raise SystemExit(130) from error


class Output:
    """Prints the results of a command.

    Args:
        quiet: print nothing but errors.
        as_json: print one JSON object on stdout instead of text.

    Attributes:
        notes: all notes so far.
    """

    def __init__(self, *, quiet: bool = False, as_json: bool = False) -> None:
        self.notes: list[str] = []
        self.quiet = quiet
        self._as_json = as_json
        self._out = Console(quiet=quiet or as_json, highlight=False)
        self._err = Console(quiet=quiet, stderr=True, highlight=False)

    def print(self, text: str) -> None:
        """Print a line."""
        self._out.print(text, markup=False, soft_wrap=True)

    def print_table(self, table: RenderableType) -> None:
        """Print a table."""
        self._out.print(table)

    def print_note(self, sentence: str) -> None:
        """Print a note on stderr; the same note is printed once."""
        if sentence not in self.notes:
            self.notes.append(sentence)
            self._err.print(f"note: {sentence}", style="yellow", markup=False, soft_wrap=True)

    def print_json(self, record: dict[str, Any]) -> None:
        """Print ``record`` and the notes as JSON, if JSON is requested."""
        if self._as_json:
            typer.echo(to_json({**record, "notes": self.notes}).decode())

    @contextmanager
    def collect_warnings(self) -> Iterator[None]:
        """Print the warnings of the library as notes."""

        def show(message: Warning | str, category: type[Warning], *args: Any, **options: Any) -> None:
            if issubclass(category, UserWarning):
                self.print_note(str(message))
            else:
                show_other(message, category, *args, **options)

        logger = logging.getLogger("credo")
        level = logger.level
        with warnings.catch_warnings():
            warnings.filterwarnings("always", category=UserWarning, module=r"credo(\.|$)")
            show_other, warnings.showwarning = warnings.showwarning, show
            if self.quiet:
                logger.setLevel(logging.WARNING)
            try:
                yield
            finally:
                logger.setLevel(level)

    @contextmanager
    def status(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show a status line on a terminal; yields a function that updates it."""
        with self._err.status(text) as status:
            yield status.update

    def track(self, chunks: Iterable[pd.DataFrame], total: int) -> Iterator[pd.DataFrame]:
        """Yield the chunks of a table with ``total`` rows, with a progress bar on a terminal."""
        is_shown = self._err.is_terminal and not self.quiet
        with Progress(console=self._err, transient=True, redirect_stdout=False, disable=not is_shown) as bar:
            task = bar.add_task("rows", total=total)
            for chunk in chunks:
                yield chunk
                bar.advance(task, len(chunk))


def score_table(title: str, scores: Sequence[Score]) -> Table:
    """Return a table of scores with their confidence intervals."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_style="bold", title_justify="left")
    table.add_column("metric", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="center", no_wrap=True)
    table.add_column("better", no_wrap=True)
    for score in scores:
        interval = f"{format_number(score.lower)} to {format_number(score.upper)}"
        better = f"near {score.level:g}" if score.better == "level" else score.better
        table.add_row(score.label, format_number(score.value), interval, better)
    return table


def format_number(value: float) -> str:
    """Return a number with four significant digits; a dash for NaN."""
    return "–" if value != value else f"{value:.4g}"
