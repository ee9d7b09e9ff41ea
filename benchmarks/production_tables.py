"""Tables of the pages about production: what was measured of exported, distilled, served and distributed models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from board import result


def _source(found: dict[str, Any]) -> str:
    return f"`{found['command']}`, {found['date']}, {found.get('hardware') or found['machine']}."


def _rows_of(part: str) -> list[dict[str, Any]]:
    return [row for row in result("export_cpu")["rows"] if row["part"] == part]


def onnx() -> str:
    """Milliseconds per row of ONNX Runtime and Python, and the largest differences over the hostile files."""
    (corpus,) = _rows_of("corpus")
    lines = ["| batch | Python | ONNX Runtime, float64 | float32 |", "|---|---|---|---|"]
    for row in _rows_of("latency"):
        cells = (f"{row[f'ms_per_row_{name}']:.3g}" for name in ("python", "onnx_float64", "onnx_float32"))
        lines.append(f"| {row['batch']:,} | {' | '.join(cells)} |")
    differences = (
        f"Largest difference from Python over {corpus['compared']} of {corpus['files']} hostile files, relative where "
        f"numbers exceed 1: {corpus['largest_difference_of_features']:.1e} in the features, "
        f"{corpus['largest_difference_of_predictions']:.1e} in the predictions of {corpus['exported']} of them."
    )
    return "\n".join([*lines, "", differences, _source(result("export_cpu"))])


def distillation() -> str:
    """What distilled models lost on test rows, and the time of their forward pass."""
    lines = [
        "| model | teacher | log likelihood, teacher | student | nats lost | KL | forward pass |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in _rows_of("distill"):
        lost = f"{row['nats_lost']:.4f} ± {row['nats_lost_standard_error']:.4f}"
        kl = f"{row['kl_test_rows']:.4f} ± {row['kl_standard_error']:.4f}"
        lines.append(
            f"| {row['table']} | {row['teacher']} | {row['log_likelihood_teacher']:.4f} | "
            f"{row['log_likelihood_student']:.4f} | {lost} | {kl} | {row['forward_ratio']:.2f}× |"
        )
    return "\n".join([*lines, "", _source(result("export_cpu"))])


def serve_load() -> str:
    """Requests per second and latency of servers with the same clients."""
    found = result("serve_load")
    lines = [
        "| server | requests/s | p50, ms | p99, ms | errors | CPU ms per request | memory, MiB | p50 | p99 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['server']} | {row['requests_per_s']:,.0f} | {row['p50_ms']:.1f} | {row['p99_ms']:.1f} | "
        f"{row['errors']} | {row['cpu_ms_per_request']:.2f} | {row['memory_first_mib']:.0f}, then "
        f"{row['memory_last_mib']:.0f} | {row['p50_ratio']:.2f}× | {row['p99_ratio']:.2f}× |"
        for row in found["rows"]
    ]
    return "\n".join([*lines, "", _source(found)])


def dask_scale() -> str:
    """Wall and CPU seconds of Dask fits on one and on two workers."""
    found = result("dask_scale")
    one, two = found["rows"]
    lines = ["| | 1 worker | 2 workers | one process, chunks |", "|---|---|---|---|"]
    for name, key in (("BayesianLinearRegression", "regression"), ("PCA", "pca")):
        cells = [f"{row[key]['wall_s']:.0f} ({row[key]['cpu_s']:.0f})" for row in (one, two)]
        alone = f"– ({found['one_process']['cpu_s']:.0f})" if key == "regression" else "–"
        title = f"`{name}`, wall seconds (CPU seconds of the workers)"
        lines.append(f"| {title} | {cells[0]} | {cells[1]} | {alone} |")
    return "\n".join([*lines, "", _source(found)])


def ray_ensemble() -> str:
    """Seconds of an ensemble in one process and on Ray workers."""
    found = result("ray_ensemble")
    lines = ["| | seconds | equal to one process |", "|---|---|---|"]
    for row in found["rows"]:
        workers = row["workers"]
        title = "one process" if not workers else f"{workers} worker{'s' if workers > 1 else ''}"
        equal = "" if not workers else "to the bit" if row["is_equal"] else "no"
        lines.append(f"| {title} | {row['seconds']:.1f} | {equal} |")
    return "\n".join([*lines, "", _source(found)])


PRODUCTION: dict[str, Callable[[], str]] = {
    "dask_scale": dask_scale,
    "distillation": distillation,
    "onnx": onnx,
    "ray_ensemble": ray_ensemble,
    "serve_load": serve_load,
}
