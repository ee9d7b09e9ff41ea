"""Run an experiment and write its table and figures, all of them or none."""

from __future__ import annotations

import csv
import datetime
import io
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from credo._arguments import check_integer, check_option
from credo._devices import check_device
from credo._files import check_folder_writable, to_json, write_folder, write_lock
from credo.errors import InputError
from credo.experiments.registry import BUDGETS, Budget, Experiment, Result, Row, RunConfig, get

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLES = ("table.md", "table.json", "table.csv")
MAX_SEED = 2**32 - 1  # of scikit-learn


@dataclass(frozen=True)
class Reproduction:
    """The outcome of :func:`run`.

    Attributes:
        experiment: the experiment that was run.
        result: the rows over all seeds, and the figures of the first seed.
        record: the content of ``table.json``: name, command, date, hardware, rows and more.
        folder: the folder of the tables and figures.

    Example:
        >>> from credo import experiments
        >>> reproduction = experiments.run("beta-bernoulli-update", "smoke", out="reproductions")
        >>> reproduction.files[0]
        PosixPath('reproductions/beta-bernoulli-update/table.md')
    """

    experiment: Experiment
    result: Result
    record: dict[str, Any]
    folder: Path

    @property
    def files(self) -> list[Path]:
        """The files that were written."""
        return [self.folder / name for name in _file_names(self.experiment)]


def run(
    name: str | Experiment,
    budget: Budget = "full",
    seeds: int = 1,
    out: Path | str = "reproductions",
    *,
    seed: int = 0,
    device: str | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Reproduction:
    """Run an experiment with one or more seeds and write its tables and figures to ``out/NAME``.

    Args:
        name: an experiment, or its name, one of :func:`~credo.experiments.names`.
        budget: ``"full"``, ``"quick"`` (about a minute) or ``"smoke"`` (a few seconds).
        seeds: number of runs, each with its own seed; with more than one the table has standard errors.
        out: the folder with one folder for each experiment; a previous run of the same experiment is replaced.
        seed: the first seed; the others follow it.
        device: device to train on, such as ``"cuda"``; ``None`` is the CPU.
        report: called with a short status message at every stage.

    Returns:
        The result, the record and the folder.

    Raises:
        InputError: if the name or an argument is not valid, or the folder cannot be written.
    """
    chosen = name if isinstance(name, Experiment) else get(name)
    check_option(budget, "budget", BUDGETS)
    last_seed = check_integer(seed, "seed", 0) + check_integer(seeds, "seeds", 1) - 1
    if last_seed > MAX_SEED:
        raise InputError(f"the last seed, seed + seeds - 1, must be at most {MAX_SEED}, got {last_seed}")
    check_device(device)
    folder = Path(out) / chosen.name

    from credo import plots

    start = time.perf_counter()
    with write_lock(folder), plots.paper():
        check_folder_writable(folder, _file_names(chosen))
        configs = [RunConfig(budget, seed + k, device, _with_seed(report, k, seeds)) for k in range(seeds)]
        result = Result.pool([_check_figures(chosen.run(config), chosen) for config in configs])
        seconds = time.perf_counter() - start
        record = {
            "name": chosen.name,
            "title": chosen.title,
            "reference": chosen.reference,
            "command": _command(chosen.name, budget, seeds, seed, device),
            "date": datetime.date.today().isoformat(),
            "hardware": _hardware(device),
            "seconds": round(seconds, 1),
            "rows": [_row_record(row) for row in result.rows],
        }
        files = {
            "table.md": _markdown(chosen, result, record).encode(),
            "table.json": to_json(record),
            "table.csv": _csv(result).encode(),
            **{f"{figure}.png": _png(drawn) for figure, drawn in result.figures.items()},
        }
        write_folder(folder, files)
    return Reproduction(chosen, result, record, folder)


def _hardware(device: str | None) -> str:
    """Describe the machine in a few words."""
    where = torch.device(device or "cpu")
    if where.type == "cuda":
        return f"{torch.cuda.get_device_name(where)}, torch {torch.__version__}"
    threads = torch.get_num_threads()
    return f"{platform.machine()}, {threads} thread{'s' if threads > 1 else ''}, torch {torch.__version__}"


def _with_seed(report: Callable[[str], None], k: int, seeds: int) -> Callable[[str], None]:
    """``report`` with the number of the seed before each message, if there are several seeds."""
    return report if seeds == 1 else lambda message: report(f"seed {k + 1} of {seeds}: {message}")


def _check_figures(result: Result, chosen: Experiment) -> Result:
    if set(result.figures) != set(chosen.figures):
        drawn = ", ".join(result.figures) or "none"
        raise InputError(f"{chosen.name} must return the figures {', '.join(chosen.figures)}, got {drawn}")
    return result


def _file_names(chosen: Experiment) -> list[str]:
    return [*TABLES, *(f"{figure}.png" for figure in chosen.figures)]


def _command(name: str, budget: Budget, seeds: int, seed: int, device: str | None) -> str:
    """The command line that reproduces this result."""
    options = [] if budget == "full" else [f"--{budget}"]
    options += [f"--seeds {seeds}"] if seeds > 1 else []
    options += [f"--seed {seed}"] if seed else []
    options += [f"--device {device}"] if device else []
    return " ".join(["credo reproduce", name, *options])


def _row_record(row: Row) -> dict[str, Any]:
    return {
        "quantity": row.quantity,
        "published": row.published,
        "source": row.source or None,
        "mean": row.mean,
        "standard_error": row.standard_error,
        "values": list(row.values),
        "note": row.note or None,
    }


def _csv(result: Result) -> str:
    stream = io.StringIO()
    columns = ["quantity", "published", "source", "mean", "standard_error", "repetitions", "note"]
    writer = csv.DictWriter(stream, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows({**_row_record(row), "repetitions": len(row.values)} for row in result.rows)
    return stream.getvalue()


def _markdown(chosen: Experiment, result: Result, record: dict[str, Any]) -> str:
    lines = [f"# {chosen.title}", "", f"*{chosen.reference}*", "", chosen.description, ""]
    lines += ["| quantity | published | ours | note |", "|---|---|---|---|"]
    for row in result.rows:
        published = "–" if row.published is None else f"{row.published:g} ({row.source})"
        cells = (row.quantity, published, row.ours, row.note)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    repetitions = max((len(row.values) for row in result.rows), default=1)
    spread = f", mean ± standard error of {repetitions} repetitions" if repetitions > 1 else ""
    lines += ["", f"`{record['command']}`, {record['date']}, {record['hardware']}{spread}.", ""]
    lines += [f"![{figure}]({figure}.png)\n" for figure in result.figures]
    return "\n".join(lines)


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()
