"""The section on the data: how each column was read and used."""

from __future__ import annotations

import pandas as pd

from credo.report.data import _column_table
from credo.tabular.columns import Columns


def test_columns_are_shown_as_they_were_read():
    frame = pd.DataFrame({"price": ["1.234,50 €", "99 €", "3,5"] * 4, "day": ["31.12.2024", "01.02.2023", "?"] * 4})
    table = _column_table(Columns.learn(frame).summary())
    written = [column.heading for column in table.columns].index("Written")
    assert [row[written].text for row in table.rows] == [
        "decimal commas, thousands separated by '.', in EUR",
        "day before month",
    ]
