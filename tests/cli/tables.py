"""Tables and pages for the tests of the command line."""

from __future__ import annotations

import pandas as pd

from tabular.hostile import TARGET, good_columns

PAGE = "<p>a report</p>"


def table(rows: int = 60, task: str = "regression") -> pd.DataFrame:
    """Two numbers, a color and a target that depends on all of them."""
    frame = pd.DataFrame(good_columns(rows))
    if task == "classification":
        frame[TARGET] = pd.cut(frame[TARGET], 3, labels=["low", "middle", "high"]).astype(str)
    return frame
