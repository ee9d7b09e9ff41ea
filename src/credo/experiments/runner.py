"""Run an experiment, and leave a folder with its table and figures that is whole or not there at all."""

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

from credo._devices import check_device
from credo._files import rehearse_folder, reserved, to_json, write_folder
from credo.errors import InputError, unknown_name
from credo.experiments.registry import EFFORTS, Effort, Experiment, Result, Row, Setting, get

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLES = ("table.md", "table.json", "table.csv")
LARGEST_SEED = 2**32 - 1  # scikit-learn's


@dataclass(frozen=True)
class Reproduction:
    """An experiment that has been run.

    Attributes:
        experiment: which.
        result: its rows over all seeds, and the figures of the first.
        record: what ``table.json`` holds: name, command, date, hardware, rows and more.
        folder: where the tables and figures lie.
    """

    experiment: Experiment
    result: Result
    record: dict[str, Any]
    folder: Path

    @property
    def files(self) -> list[Path]:
        """What was written."""
        return [self.folder / name for name in _file_names(self.experiment)]


def run(
    name: str | Experiment,
    effort: Effort = "full",
    seeds: int = 1,
    out: Path | str = "reproductions",
    *,
    seed: int = 0,
    device: str | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Reproduction:
    """Run an experiment with ``seeds`` seeds and write its tables and figures to ``out/NAME``.

    Args:
        name: an experiment, or its name, one of :func:`~credo.experiments.names`.
        effort: ``"full"``, ``"quick"`` (about a minute) or ``"smoke"`` (a few seconds).
        seeds: how many times to run it; with more than one the table says by how much the numbers vary.
        out: the folder that holds one folder for each experiment; a previous run of the same one is replaced.
        seed: the first seed; the others follow it.
        device: where to train, such as ``"cuda"``; the CPU where ``None``.
        report: told in a few words what is being done.
    """
    chosen = name if isinstance(name, Experiment) else get(name)
    if effort not in EFFORTS:
        raise unknown_name("effort", effort, EFFORTS)
    _check_whole("seeds", seeds, 1, LARGEST_SEED)
    _check_whole("seed", seed, 0, LARGEST_SEED - seeds + 1)
    check_device(device)
    folder = Path(out) / chosen.name

    from credo import plots

    start = time.perf_counter()
    with reserved(folder), plots.paper():
        rehearse_folder(folder, _file_names(chosen))
        settings = [Setting(effort, seed + k, device, _counted(report, k, seeds)) for k in range(seeds)]
        result = Result.pooled([_checked(chosen.run(setting), chosen) for setting in settings])
        seconds = time.perf_counter() - start
        record = {
            "name": chosen.name,
            "title": chosen.title,
            "reference": chosen.reference,
            "command": _command(chosen.name, effort, seeds, seed, device),
            "date": datetime.date.today().isoformat(),
            "hardware": hardware(device),
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


def hardware(device: str | None) -> str:
    """The machine in a few words, for the record."""
    where = torch.device(device or "cpu")
    if where.type == "cuda":
        return f"{torch.cuda.get_device_name(where)}, torch {torch.__version__}"
    threads = torch.get_num_threads()
    return f"{platform.machine()}, {threads} thread{'s' if threads > 1 else ''}, torch {torch.__version__}"


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"{name} must be an integer from {least} to {most}, got {value!r}")


def _counted(report: Callable[[str], None], k: int, seeds: int) -> Callable[[str], None]:
    """``report`` that says which of several seeds is at work."""
    return report if seeds == 1 else lambda doing: report(f"seed {k + 1} of {seeds}: {doing}")


def _checked(result: Result, chosen: Experiment) -> Result:
    if set(result.figures) != set(chosen.figures):
        drawn = ", ".join(result.figures) or "none"
        raise InputError(f"{chosen.name} must draw the figures it registered, {', '.join(chosen.figures)}, got {drawn}")
    return result


def _file_names(chosen: Experiment) -> list[str]:
    return [*TABLES, *(f"{figure}.png" for figure in chosen.figures)]


def _command(name: str, effort: Effort, seeds: int, seed: int, device: str | None) -> str:
    """The command line that gives this result again."""
    options = [] if effort == "full" else [f"--{effort}"]
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
