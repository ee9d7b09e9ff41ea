"""Write the tables of README and docs from ``benchmarks/results/*.json``.

    python benchmarks/fill_tables.py [--check]

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from board import BOARD, RESULTS, best_published, result
from production_tables import PRODUCTION
from table_report import TABLE_BOARD

from credo.experiments.networks.lenet_by_method import LABELS
from credo.experiments.registry import Row

ROOT = Path(__file__).parent.parent


def uci() -> str:
    """The default on the UCI tables, beside Bayes by Backprop and published values."""
    found, earlier = result("uci_auto"), {row["set"]: row for row in result("uci_bbb")["rows"]}
    lines = [
        "| table | splits | log likelihood | best published | RMSE | MC dropout, published | 95 % intervals cover "
        '| `method="bbb"`: log likelihood | RMSE | cover |',
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(found["rows"], key=lambda row: row["set"].lower()):
        other, digits = earlier[row["set"]], 5 if row["rmse"] < 0.01 else 3
        cells = [
            row["set"],
            str(row["splits"]),
            f"{row['log_likelihood']:.2f} ± {row['log_likelihood_se']:.2f}",
            f"{best_published(row['set']):.2f}",
            f"{row['rmse']:.{digits}f} ± {row['rmse_se']:.{digits}f}",
            f"{row['published_rmse']:.2f}",
            f"{row['coverage']:.1%}",
            f"{other['log_likelihood']:.2f}",
            f"{other['rmse']:.{digits}f}",
            f"{other['coverage']:.1%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"`{found['command']}`, {found['date']}, {found['hardware']}."])


def uci_short() -> str:
    """The log likelihood on the UCI tables, one line a quantity."""
    rows = sorted(result("uci_auto")["rows"], key=lambda row: row["set"].lower())
    earlier = {row["set"]: row for row in result("uci_bbb")["rows"]}
    sampled = [result(f"uci_posteriors/{row['set']}_hmc")["rows"][0] for row in rows]
    lines = {
        "default settings": [f"{row['log_likelihood']:.2f}" for row in rows],
        "95 % intervals cover": [f"{row['coverage']:.1%}" for row in rows],
        "Bayes by Backprop": [f"{earlier[row['set']]['log_likelihood']:.2f}" for row in rows],
        "sampled posterior (`HMC`)": [f"{row['log_likelihood']:.2f}" for row in sampled],
        "best published": [f"{best_published(row['set']):.2f}" for row in rows],
    }
    head = f"| | {' | '.join(row['set'].split('-')[0] for row in rows)} |\n|---|{'---|' * len(rows)}"
    return "\n".join([head, *(f"| {name} | {' | '.join(cells)} |" for name, cells in lines.items())])


def classical() -> str:
    """Fit times beside scikit-learn's, and on a GPU."""
    cpu, gpu = result("classical_cpu"), result("classical_gpu")
    on_gpu = {row["task"]: row["seconds"] for row in gpu["rows"]}
    lines = ["| | ours | scikit-learn | ratio | objectives differ by | ours on a GPU |", "|---|---|---|---|---|---|"]
    for row in cpu["rows"]:
        cells = [
            row["task"],
            f"{row['seconds']:.3g} s",
            f"{row['their_seconds']:.3g} s",
            f"{row['ratio']:.2f}×",
            f"{row['difference']:.0e}",
            f"{on_gpu[row['task']]:.3g} s" if row["task"] in on_gpu else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    machines = "; ".join(f"{found['hardware']}, {found['date']}" for found in (cpu, gpu))
    return "\n".join([*lines, "", f"{machines}."])


def vae_mnist() -> str:
    """Test log likelihood on MNIST beside the published one."""
    lines = ["| objective | epochs | −log p(x) | published | active units | published |", "|---|---|---|---|---|---|"]
    found = [result(f"vae_mnist_{objective}") for objective in ("elbo", "iwae")]
    for row in (row for content in found for row in content["rows"]):
        name = "ELBO" if row["objective"] == "elbo" else f"IWAE, k = {row['k']}"
        cells = [name, str(row["epochs"]), f"{row['nll']:.2f} ± {row['nll_se']:.2f}", f"{row['published_nll']:.2f}"]
        lines.append(f"| {' | '.join([*cells, str(row['active_units']), str(row['published_active_units'])])} |")
    source = "Published: Burda et al. (2016), Table 1, after 3,280 epochs."
    return "\n".join([*lines, "", f"{source} {found[0]['hardware']}, {found[0]['date']}."])


def _cells(found: dict[str, Any], name: str, columns: dict[str, tuple[str, str, Callable[[Any], str]]]) -> str:
    """A line of the table: for every column the formatted value of a row, by its race and key, if there is one."""
    by_race = {row["race"]: row for row in found["rows"] if row["name"] == name}
    cells = []
    for race, key, form in columns.values():
        value = by_race.get(race, {}).get(key)
        cells.append("" if value is None else form(value))
    return " | ".join(cells)


def _peer_table(columns: dict[str, tuple[str, str, Callable[[Any], str]]], machine: str = "cpu") -> str:
    """The rows that take part in a race of the columns, with the machine."""
    found = result(f"peers_{machine}")
    names = dict.fromkeys(
        row["name"] for race, _, _ in columns.values() for row in found["rows"] if row["race"] == race
    )
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| {name} | {_cells(found, name, columns)} |" for name in names]
    return "\n".join([*lines, "", f"{found['hardware']}, {found['date']}."])


def _times(value: float) -> str:
    return f"{value:.2f}×"


def _three_digits(value: float) -> str:
    return f"{value:.3g}"


def peers() -> str:
    """Train step, prediction, peak memory and checks of mean-field posteriors by other libraries."""
    versions = result("peers_cpu")["versions"]
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items() if name not in ("credo", "torch"))
    absent = "; ".join(f"{name}: {reason}" for name, reason in result("peers_cpu")["absent"].items())
    table = _peer_table(
        {
            "step, MLP": ("train step, MLP", "cpu_ratio", _times),
            "step, CNN": ("train step, CNN", "cpu_ratio", _times),
            "predict, MLP": ("predict, MLP", "cpu_ratio", _times),
            "predict, CNN": ("predict, CNN", "cpu_ratio", _times),
            "memory of a step": ("train step, MLP, memory", "ratio", _times),
            "of a prediction": ("predict, MLP, memory", "ratio", _times),
            "KL / exact": ("posterior checks", "kl", _three_digits),
            "variance / exact": ("posterior checks", "conv_variance", _three_digits),
        }
    )
    return f"{table} {libraries}. Not raced: {absent}."


def peers_dropout() -> str:
    """MC dropout of a network's own layers by other libraries."""
    return _peer_table(
        {
            "100 draws": ("MC dropout, MLP", "cpu_ratio", _times),
            "memory": ("MC dropout, MLP, memory", "ratio", _times),
            "a draw is one function": ("dropout checks", "one_mask_per_draw", lambda value: "yes" if value else "no"),
        }
    )


def uci_posteriors() -> str:
    """Sampled posteriors of a small network on the UCI tables, with their convergence."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS / "uci_posteriors").glob("*_hmc.json")]
    lines = [
        "| table | setting | best published | log likelihood | RMSE | 95 % intervals cover | median R-hat "
        "| effective draws | seconds, all splits |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted((content["rows"][0] for content in found), key=lambda row: row["set"].lower()):
        cells = [
            row["set"],
            row["setting"],
            f"{row['published_log_likelihood']:.2f}",
            f"{row['log_likelihood']:.2f} ± {row['log_likelihood_se']:.2f}",
            f"{row['rmse']:.3g}",
            f"{row['coverage']:.1%}",
            f"{row['r_hat_median']:.2f}",
            f"{row['effective_draws_median']:.0f}",
            f"{row['seconds']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{found[0]['hardware']}, {found[0]['date']}."])


def lenet_by_method() -> str:
    """LeNet on MNIST by every method that was run."""
    paths = (RESULTS / "lenet_by_method").glob("*_seed0.json")
    found = sorted((json.loads(path.read_text(encoding="utf-8")) for path in paths), key=lambda r: float(r["nll"]))
    on_gpu = next(record for record in found if "NVIDIA" in record["hardware"])
    lines = [
        "| method | test error | NLL | ECE | AUROC, Fashion-MNIST | AUROC, notMNIST | training |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in found:
        cells = [LABELS[record["variant"]], f"{100 * record['wrong'] / record['test_images']:.2f} %"]
        cells += [f"{record['nll']:.3g}", f"{record['ece']:.4f}"]
        cells += [f"{other['auroc_entropy']:.3f}" for other in record["others"].values()]
        is_timed = record["hardware"] == on_gpu["hardware"]
        cells.append(f"{record['train_seconds']:.0f} s" if is_timed else "on a CPU")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{on_gpu['hardware']}, {on_gpu['date']}, one seed."])


def peers_gpu() -> str:
    """Train steps, captured ones, prediction, MC dropout and memory on a GPU."""
    return _peer_table(
        {
            "step, MLP": ("train step, MLP", "ratio", _times),
            "step, CNN": ("train step, CNN", "ratio", _times),
            "captured, MLP": ("train step, MLP, captured", "ratio", _times),
            "captured, CNN": ("train step, CNN, captured", "ratio", _times),
            "predict, MLP": ("predict, MLP", "ratio", _times),
            "predict, CNN": ("predict, CNN", "ratio", _times),
            "MC dropout": ("MC dropout, MLP", "ratio", _times),
            "memory of a step": ("train step, MLP, memory", "ratio", _times),
            "of a prediction": ("predict, MLP, memory", "ratio", _times),
        },
        "gpu",
    )


def speed() -> str:
    """Races of credo and the best other library, whose posterior is over all weights too."""
    lines = ["| over the deterministic network | credo | best other library |", "|---|---|---|"]
    races = {
        "training step": "train step, {}",
        "captured training step": "train step, {}, captured",
        "prediction by draws": "predict, {}",
        "MC dropout": "MC dropout, {}",
        "memory of a step": "train step, {}, memory",
    }
    smaller = ("deterministic", "loop over forwards", "laplace-torch, last layer")
    for machine in ("cpu", "gpu"):
        for title, race in races.items():
            for network in ("MLP", "CNN"):
                rows = [row for row in result(f"peers_{machine}")["rows"] if row["race"] == race.format(network)]
                ratios = {row["name"]: row.get("cpu_ratio") or row.get("ratio") for row in rows}
                others = {k: v for k, v in ratios.items() if v and not k.startswith(("credo", *smaller))}
                if ratios.get("credo") and others:
                    best = min(others, key=lambda name: others[name])
                    ours, theirs = f"{ratios['credo']:.2f}×", f"{others[best]:.2f}× ({best})"
                    ours, theirs = (
                        (f"**{ours}**", theirs) if ratios["credo"] <= others[best] else (ours, f"**{theirs}**")
                    )
                    lines.append(f"| {machine.upper()}: {title}, {network} | {ours} | {theirs} |")
    machines = [result(f"peers_{machine}") for machine in ("cpu", "gpu")]
    return "\n".join([*lines, "", "; ".join(f"{found['hardware']}, {found['date']}" for found in machines) + "."])


def fit_gpu() -> str:
    """Seconds per epoch of ``fit`` on a GPU; those of IVON and of AdamW are of a run of their own."""
    columns = ("MLP", "LeNet")
    runs = [result("peers_gpu"), result("ivon_step_gpu")]
    seconds = {(row["race"], row["name"]): row["seconds"] for run in runs for row in run["rows"] if "seconds" in row}
    names = dict.fromkeys(name for race, name in seconds if race.startswith("fit, "))
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    cells = {name: [f"{seconds[f'fit, {title}', name]:.2f} s" for title in columns] for name in names}
    lines += [f"| {name} | {' | '.join(found)} |" for name, found in cells.items()]
    dates = " and ".join(run["date"] for run in runs)
    return "\n".join([*lines, "", f"{runs[0]['hardware']}, {dates} (IVON and AdamW)."])


def convergence() -> str:
    """The ELBO and validation scores of posteriors with plain Adam and with the default settings."""
    found = result("convergence")
    lines = [
        "| task | prior | optimizer | steps | ELBO per datum | validation NLL | accuracy | epistemic (nats) | scale |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        if row["optimizer"] not in ("Adam", "NaturalAdam, r = 0.1"):
            continue
        accuracy = f"{row['validation_accuracy']:.1%}" if "validation_accuracy" in row else ""
        epistemic = f"{row['mutual_information']:.3f}" if "mutual_information" in row else ""
        cells = [row["task"], row["prior"], row["optimizer"].split(",")[0], f"{row['steps']:,}", f"{row['elbo']:.2f}"]
        cells += [f"{row['validation_nll']:.3f}", accuracy, epistemic, f"{row['median_scale']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"`{found['command']}`, {found['date']}, {found['hardware']}."])


def moments() -> str:
    """Prediction by moments beside sampling, and its cost."""
    found = result("moments")
    lines = [
        "| regression, hidden layers | mean differs by | predictive std ratio | epistemic std ratio |",
        "|---|---|---|---|",
    ]
    for row in found["rows"]:
        if row["kind"] == "regression":
            std, epistemic = (
                f"{row[f'{name}_ratio_smallest']:.3f} to {row[f'{name}_ratio_largest']:.3f}"
                for name in ("std", "epistemic")
            )
            error = f"{row['mean_error_largest']:.3f} (median {row['mean_error_median']:.3f})"
            lines.append(f"| {row['task']}, {row['hidden_layers']} | {error} | {std} | {epistemic} |")
    lines += [
        "",
        "| MNIST | posterior | accuracy, sampled | moments | NLL, sampled | moments "
        "| mutual information, sampled | moments |",
        "|---|---|---|---|---|---|---|---|",
    ]
    names = {
        "narrow prior": "mean-field, prior scale 0.1",
        "wide prior": "mean-field, prior scale 1",
        "dropout": "MC dropout, p = 0.1",
    }
    for row in found["rows"]:
        if row["kind"] == "mnist":
            cells = [row["task"], names[row["method"]]]
            cells += [f"{row[f'accuracy_{by}']:.1%}" for by in ("sampled", "moments")]
            cells += [
                f"{row[f'{score}_{by}']:.3f}"
                for score in ("nll", "mutual_information")
                for by in ("sampled", "moments")
            ]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| cost, 1,000 rows | moments | 10 draws |", "|---|---|---|"]
    for row in found["rows"]:
        if row["kind"] == "cost":
            lines.append(f"| {row['task']} | {row['moments']:.1f}× | {row['ten_draws']:.1f}× |")
    return "\n".join([*lines, "", f"`{found['command']}`, {found['date']}, {found['hardware']}."])


def reproductions(*names: str) -> str:
    """The tables of ``credo reproduce`` one below the other."""
    lines = ["| | quantity | published | ours |", "|---|---|---|---|"]
    found = {name: result(name.replace("-", "_")) for name in names}
    for name, content in found.items():
        for i, row in enumerate(content["rows"]):
            published = "" if row["published"] is None else f"{row['published']:g}"
            values = tuple(row["values"])
            ours = Row(row["quantity"], values).ours if len(values) > 1 else f"{values[0]:.4g}"
            title = f"`{name}`" if i == 0 else ""
            lines.append(f"| {title} | {row['quantity']} | {published} | {ours} |")
    machines = "; ".join(dict.fromkeys(content["hardware"] for content in found.values()))
    notes = [f"`{name}`: {content['note']}." for name, content in found.items() if "note" in content]
    return "\n".join([*lines, "", f"{machines}; {max(content['date'] for content in found.values())}.", *notes])


def generative() -> str:
    """The generative models on MNIST and on Frey faces."""
    return reproductions("vae-manifold", "vae-samples", "gan-mnist", "infogan-codes")


TABLES: dict[str, Callable[[], str]] = {
    "classical": classical,
    "convergence": convergence,
    "generative": generative,
    "lenet_by_method": lenet_by_method,
    "moments": moments,
    "peers": peers,
    "peers_dropout": peers_dropout,
    "peers_gpu": peers_gpu,
    "fit_gpu": fit_gpu,
    "speed": speed,
    "uci": uci,
    "uci_posteriors": uci_posteriors,
    "uci_short": uci_short,
    "vae_mnist": vae_mnist,
    **BOARD,
    **PRODUCTION,
    **TABLE_BOARD,
}


def filled(text: str) -> str:
    def fill(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and exit with 1 if a page is stale")
    check, stale = parser.parse_args().check, []
    docs = ROOT / "docs"
    for page in [ROOT / "README.md", *sorted(docs.glob("*.md")), *sorted((docs / "howto").glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        new = filled(text)
        if new != text:
            stale.append(page.name)
            if not check:
                page.write_text(new, encoding="utf-8")
    print("up to date" if not stale else f"changed: {', '.join(stale)}")
    return int(bool(stale) and check)


if __name__ == "__main__":
    sys.exit(main())
