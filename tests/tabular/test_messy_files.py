"""Files as spreadsheets of several countries write them: every value is read right, noted, or refused."""

from __future__ import annotations

import datetime
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from credo.errors import InputError
from credo.tabular.columns import Columns
from credo.tabular.files import read_chunks, read_table
from credo.tabular.targets import RegressionTarget, guess_task, known_rows
from tabular.hostile import to_csv

NAN = math.nan


@dataclass(frozen=True)
class Column:
    """A column ``v`` of a file beside integers, its values, and words of the notes about it.

    Attributes:
        name: what is special about it.
        cells: its texts; they are repeated, so that the column is not short.
        values: the numbers, the dates, or the labels that they are read as; NaN or ``None`` where missing.
        words: each occurs in the notes; empty: there are no notes.
        delimiter: of the file.
        encoding: of the file.
        options: of ``read_table``.
    """

    name: str
    cells: Sequence[str]
    values: Sequence[Any]
    words: tuple[str, ...] = ()
    delimiter: str = ","
    encoding: str = "utf-8"
    options: Mapping[str, Any] = field(default_factory=dict)


def day(text: str) -> float:
    """Days since 1970 of a date in ISO 8601."""
    moment = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
    return moment.timestamp() / 86_400.0


DATES = ["2024-01-31", "2023-12-05", "2022-07-14"]
DAYS = [day(text) for text in DATES]
THOUSANDS, DECIMAL = "',' as the mark between thousands", "',' as the decimal mark"

NUMBERS = (
    Column("plain", ["1.5", "-2", "3e2"], [1.5, -2.0, 300.0]),
    Column("decimal commas", ["3,14", "2,5", "-7"], [3.14, 2.5, -7.0], ("decimal commas", "'3,14' is 3.14"), ";"),
    Column("quoted decimal commas", ["3,14", "2,5", "7"], [3.14, 2.5, 7.0], ("decimal commas",)),
    Column("leading decimal comma", [",5", "1,25", "2"], [0.5, 1.25, 2.0], ("decimal commas",)),
    Column("three decimals below one", ["0,123", "4,567", "8,910"], [0.123, 4.567, 8.91], ("decimal commas",)),
    Column("thousands and decimals", ["1,234.50", "12", "999.9"], [1234.5, 12.0, 999.9], ("'1,234.50' is 1234.5",)),
    Column("two separators", ["1,234,567", "1,234", "5"], [1234567.0, 1234.0, 5.0], ("separated by ','",)),
    Column("points between thousands", ["1.234.567", "1.234", "5"], [1234567.0, 1234.0, 5.0], ("separated by '.'",)),
    Column("German", ["1.234,50", "12", "999,9"], [1234.5, 12.0, 999.9], ("'1.234,50' is 1234.5",), ";"),
    Column("spaces", ["1 234", "12 345,5", "7"], [1234.0, 12345.5, 7.0], ("decimal commas",), ";"),
    Column("narrow spaces", ["1\u202f234,5", "2\u00a0345,5", "7"], [1234.5, 2345.5, 7.0], ("decimal commas",), ";"),
    Column("Swiss", ["1'234.50", "12'345", "7.5"], [1234.5, 12345.0, 7.5]),
    Column("Swiss typography", ["1’234.50", "12’345", "7.5"], [1234.5, 12345.0, 7.5]),
    Column("Indian", ["12,34,567", "1,234", "99"], [1234567.0, 1234.0, 99.0], ("separated by ','",)),
    Column("only 1,234", ["1,234", "5,678", "12,345"], [1234.0, 5678.0, 12345.0], (THOUSANDS, "--decimal ,")),
    Column("only 1,234; semicolons", ["1,234", "5,678"], [1.234, 5.678], (DECIMAL, "decimal='.'"), ";"),
    Column("1,234 by choice", ["1,234", "5,678"], [1.234, 5.678], ("decimal commas",), options={"decimal": ","}),
    Column("1,234; point by choice", ["1,234", "5,678"], [1234, 5678], ("by ','",), ";", options={"decimal": "."}),
    Column("only 1.234", ["1.234", "5.678"], [1.234, 5.678], ("'.' as the decimal mark", "--decimal ,")),
    Column("1.234; semicolons", ["1.234", "5.678"], [1234.0, 5678.0], ("'.' as the mark between",), ";"),
    Column("1.234 by choice", ["1.234", "5.678"], [1234.0, 5678.0], ("separated by '.'",), options={"decimal": ","}),
    Column("long integers", ["1,234", "1500", "99"], [1.234, 1500.0, 99.0], (DECIMAL, "decimal='.'")),
    Column("dollars", ["$1,234.50", "$12", "-$3.25"], [1234.5, 12.0, -3.25], ("in USD",)),
    Column("dollars, integers", ["$1,234", "$12,345"], [1234.0, 12345.0], ("in USD", "'$1,234' is 1234")),
    Column("euros", ["1.234,50 €", "12 €", "-3,25 €"], [1234.5, 12.0, -3.25], ("in EUR",), ";"),
    Column("pounds", ["£1,234.50", "£12", "15.5"], [1234.5, 12.0, 15.5], ("in GBP",)),
    Column("won", ["₩1,234", "₩12,345,678", "￦99"], [1234.0, 12345678.0, 99.0], ("in KRW",)),
    Column("won, in words", ["1,234원", "12,345원"], [1234.0, 12345.0], ("in KRW",)),
    Column("yen", ["¥1,234", "￥99"], [1234.0, 99.0], ("in JPY",)),
    Column("codes of currencies", ["USD 1,234.50", "12 USD", "USD 7"], [1234.5, 12.0, 7.0], ("in USD",)),
    Column("percent", ["12.5%", "3 %", "-1%"], [12.5, 3.0, -1.0], ("in %",)),
    Column("percent with commas", ["12,5 %", "3 %", "0"], [12.5, 3.0, 0.0], ("decimal commas, in %",), ";"),
    Column("accounting negatives", ["(1,234.50)", "(12)", "7"], [-1234.5, -12.0, 7.0], ("'(1,234.50)' is -1234.5",)),
    Column("Unicode minus", ["−1.5", "–2.5", "3.5"], [-1.5, -2.5, 3.5]),
    Column("trailing minus", ["1.5-", "2.5", "3.5"], [-1.5, 2.5, 3.5]),
    Column("plus signs", ["+1.5", "-2.5", "+3"], [1.5, -2.5, 3.0]),
    Column("exponents", ["1.5E+03", "2e-2", "3"], [1500.0, 0.02, 3.0]),
    Column("exponents with commas", ["1,5E+03", "2,25e-2", "3"], [1500.0, 0.0225, 3.0], ("decimal commas",), ";"),
    Column("full-width minus", ["－1.5", "2.5"], [-1.5, 2.5]),
    Column("words for true", ["Yes", "NO", "yes", "Y", "n"], [1, 0, 1, 1, 0], ("words for true and false",)),
    Column("true in any case", ["TRUE", "false", "True"], [1.0, 0.0, 1.0]),
    Column("ja", ["ja", "Nein", "JA"], [1.0, 0.0, 1.0], ("words for true and false",)),
    Column("ones and words", ["1", "no", "yes", "0"], [1.0, 0.0, 1.0, 0.0], ("words for true and false",)),
    *(
        Column(f"missing as {text}", ["1.5", text, "2.5", "3"], [1.5, NAN, 2.5, 3.0], ("missing",))
        for text in ("?", "-", "--", "n.a.", "unknown", ".", "#DIV/0!", "k.A.", "—", "NULL", "", "N/A", "na")
    ),
    Column("ISO dates", DATES, DAYS, ("dates",)),
    Column("day first", ["31.01.2024", "05.12.2023", "14.07.2022"], DAYS, ("day before month",)),
    Column("day first with slashes", ["31/01/2024", "05/12/2023", "14/07/2022"], DAYS, ("day before month",)),
    Column("month first", ["1/31/2024", "12/5/2023", "7/14/2022"], DAYS, ("month before day",)),
    Column("times", ["2024-01-31 12:00", "2023-12-05 18:00"], [DAYS[0] + 0.5, DAYS[1] + 0.75], ("dates",)),
    Column("American times", ["1/31/2024 12:00 PM", "12/5/2023 6:00 AM"], [DAYS[0] + 0.5, DAYS[1] + 0.25], ("month",)),
    Column("names of months", ["31 Jan 2024", "Dec 5, 2023", "14-Jul-2022"], DAYS, ("dates",)),
    Column("German months", ["31. Januar 2024", "5. Dez. 2023", "14. Juli 2022"], DAYS, ("dates",)),
    Column("Korean dates", ["2024년 1월 31일", "2023. 12. 5.", "2022.07.14"], DAYS, ("dates",)),
    Column("compact dates", ["20240131", "20231205", "20220714"], DAYS, ("as numbers: types=", "'20240131'")),
    Column("compact as numbers", ["20240131", "20231205"], [20240131, 20231205], options={"types": {"v": "number"}}),
    Column("ambiguous dates", ["03/04/2024", "05/06/2024"], [day("2024-03-04"), day("2024-05-06")], ("--dayfirst",)),
    Column(
        "ambiguous dates; semicolons",
        ["03/04/2024", "05/06/2024"],
        [day("2024-04-03"), day("2024-06-05")],
        ("--monthfirst",),
        ";",
    ),
    Column(
        "ambiguous dates by choice",
        ["03/04/2024", "05/06/2024"],
        [day("2024-04-03"), day("2024-06-05")],
        ("day before month",),
        options={"dayfirst": True},
    ),
    Column("short years", ["31.01.24", "05.12.24", "14.07.24"], [day(f"2024-{d}") for d in ("01-31", "12-05", "07-14")],
           ("--monthfirst",)),
    Column("a few words", ["1.5", "2.5", "3"] * 4 + ["seven"], [1.5, 2.5, 3.0] * 4 + [NAN], ("'seven' in row 12",)),
)  # fmt: skip

LABELS = (
    Column("words", ["red", "blue"], ["red", "blue"]),
    Column("unknown among words", ["red", "unknown", "blue"], ["red", "unknown", "blue"], ("used as a category",)),
    Column("codes", ["01234", "00007", "99999"], ["1234", "7", "99999"], ("leading zeros",)),
    Column("two orders of dates", ["13/01/2024", "01/13/2024"], ["13/01/2024", "01/13/2024"], ("Not read as dates",)),
    Column("Latin-1", ["grün", "weiß"], ["grün", "weiß"], ("cp1252", "--encoding"), encoding="cp1252"),
    Column("Korean", ["서울", "부산"], ["서울", "부산"], ("cp949", "encoding="), encoding="cp949"),
    Column("EUC-KR", ["서울", "부산"], ["서울", "부산"], ("cp949",), encoding="euc-kr"),
    Column(
        "Latin-1 by choice", ["grün", "weiß"], ["grün", "weiß"], encoding="latin-1", options={"encoding": "latin-1"}
    ),
    Column("byte order mark", ["grün", "weiß"], ["grün", "weiß"], encoding="utf-8-sig"),
    Column("UTF-16", ["grün", "weiß"], ["grün", "weiß"], delimiter="\t", encoding="utf-16"),
    Column("UTF-16 without a mark", ["green", "white"], ["green", "white"], delimiter="\t", encoding="utf-16-le"),
    Column("bars", ["a,b", "c;d"], ["a,b", "c;d"], delimiter="|"),
    Column("quotes", ['say "hi"', "a,b"], ['say "hi"', "a,b"]),
)


def write(folder: Path, case: Column, cells: Sequence[str]) -> Path:
    path = folder / "t.csv"
    table = {"k": [(7 * i) % 101 for i in range(len(cells))], "v": cells}
    path.write_bytes(to_csv(table, case.delimiter).decode().encode(case.encoding))
    return path


def read(path: Path, options: Mapping[str, Any]) -> tuple[pd.DataFrame, Columns, str]:
    """The table, its columns and all notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = read_table(path, **options)
    columns = Columns.learn(table)
    return table, columns, " ".join([*(str(warning.message) for warning in caught), *columns.notes])


def named(cases: Sequence[Column]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def values_of(columns: Columns, table: pd.DataFrame) -> np.ndarray:
    return columns.parse(table).values[:, columns.scaling.names.index("v")]


@named(NUMBERS)
def test_numbers_and_dates(case, tmp_path):
    """The values; and the same ones for every row in a file of its own, in chunks, and after a round trip."""
    repeats = max(1, 12 // len(case.cells))
    table, columns, notes = read(write(tmp_path, case, [*case.cells] * repeats), case.options)
    assert [word for word in case.words if word.casefold() not in notes.casefold()] == []
    assert bool(notes) == bool(case.words)
    np.testing.assert_allclose(values_of(columns, table), np.array([*case.values] * repeats, dtype=float), rtol=1e-12)
    again = Columns.from_config(columns.get_config())
    for cell, value in zip(case.cells, case.values, strict=True):
        path = write(tmp_path, case, [cell])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            alone = read_table(path, encoding=case.options.get("encoding"))
            (chunk,) = read_chunks(path, as_text=again.formats)
        for row in (alone, chunk):
            np.testing.assert_allclose(values_of(again, row), [float(value)], rtol=1e-12)


@named(LABELS)
def test_labels(case, tmp_path):
    repeats = 12 // len(case.cells)
    table, columns, notes = read(write(tmp_path, case, [*case.cells] * repeats), case.options)
    assert [word for word in case.words if word.casefold() not in notes.casefold()] == []
    assert bool(notes) == bool(case.words)
    (category,) = columns.categories
    assert sorted(category.kept) == sorted(case.values)
    if case.name != "codes":
        assert table["v"].tolist() == [*case.cells] * repeats


UNREADABLE = {
    "another decimal mark": (["1.5", "2.5"], "2,5"),
    "thousands where there were none": (["1.5", "2.5"], "1,234"),
    "a currency": (["1.5", "2.5"], "$2.50"),
    "another currency": (["$1.5", "$2.5"], "€2.50"),
    "no percent sign": (["1.5%", "2.5%"], "2.5"),
    "month first": (["31/01/2024", "14/07/2022"], "07/14/2022"),
    "a word": (["1.5", "2.5"], "much"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_values_that_training_cannot_read_are_missing_and_named(name, tmp_path):
    cells, new = UNREADABLE[name]
    columns = Columns.learn(pd.DataFrame({"k": range(12), "v": cells * 6}))
    with pytest.warns(UserWarning, match="count as missing") as caught:
        rows = columns.read(pd.DataFrame({"k": [1, 2], "v": [cells[0], new]}, index=[7, 8]))
    assert np.isnan(rows.values[:, columns.scaling.names.index("v")]).tolist() == [False, True]
    assert any(f"as in training count as missing: 'v' (1 value: '{new}' in row 8)" in str(w.message) for w in caught)


def test_other_columns_decide_in_doubt(tmp_path):
    """Decimal commas, and days after the twelfth, in a column decide about another one, also in a part of the rows."""
    n = 24
    table = {
        "v": ["1,234", "5,678"] * (n // 2),
        "w": ["3,5", "2,25"] * (n // 2),
        "d": ["03/04/2024", "05/06/2024"] * (n // 2),
        "e": ["31/12/2024", "01/02/2024"] * (n // 2),
    }
    path = tmp_path / "t.csv"
    path.write_bytes(to_csv(table))
    frame = read_table(path)
    columns = Columns.learn(frame.drop(columns=["w", "e"]).iloc[3:9])
    parsed = columns.parse(frame.iloc[:2]).values
    np.testing.assert_allclose(parsed, [[1.234, day("2024-04-03")], [5.678, day("2024-06-05")]])
    assert "'v' ('5,678' is 5.678)" in " ".join(columns.notes)


def test_numbers_of_another_reader_are_noted():
    columns = Columns.learn(pd.DataFrame({"v": ["1.234", "2.345.678", "17"] * 4}))
    with pytest.warns(UserWarning, match=r"Numbers that were text in training \(.*\) are used as they are: 'v'"):
        columns.read(pd.DataFrame({"v": [1.234, 17.0]}))


@pytest.mark.parametrize(
    "head",
    ["Sales 2024\n", "Sales 2024\n\n", "# a comment, with a comma\n# more\n", "Sales 2024,,\n", "sep=,\n"],
    ids=["title", "title and blank line", "comments", "title with delimiters", "sep="],
)
def test_lines_above_the_header_are_skipped(head, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(head + "a,b,c\n1,x,2\n3,y,4\n5,x,6\n")
    with pytest.warns(UserWarning, match="begins with lines that are no part of the table"):
        table = read_table(path)
    assert list(table.columns) == ["a", "b", "c"]
    assert table["c"].tolist() == [2, 4, 6]


def test_lines_of_several_lengths_are_no_preamble(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2,3\n4,5,6\n")
    with pytest.raises(InputError, match="line 2"):
        read_table(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [("Shift-JIS", "値,名\n1,日本語のひらがな\n".encode("shift-jis")), ("bytes", b"a,b\n1,\x81\x8d\x8f\x90\n")],
)
def test_other_encodings_are_refused(name, content, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is not text in UTF-8 \(byte 0x.. in line [12]\): give its encoding"):
        read_table(path)
    with pytest.raises(InputError, match="encoding must be one that Python knows"):
        read_table(path, encoding="nonsense")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decimal": ";"}, "decimal"),
        ({"dayfirst": "yes"}, "dayfirst must be True or False"),
        ({"types": {"v": "int"}}, "column type"),
        ({"types": {"nothing": "date"}}, "no column 'nothing'"),
    ],
)
def test_bad_choices_raise(options, words, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(to_csv({"v": [1, 2]}))
    with pytest.raises(InputError, match=words):
        read_table(path, **options)


TARGETS = {
    "a question mark": (["?", *(f"{i}.5" for i in range(49))], "('?' in 1 row)", [0]),
    "decimal commas": ([f"{i},5" for i in range(50)], "decimal commas", []),
    "a word": (["much", *(f"{i}.5" for i in range(49))], "is not a number: 1 value: 'much' in row 0", [0]),
    "missing": ([None, None, *range(48)], "2 of 50 rows", [0, 1]),
    "euros": ([f"{i}.000,50 €" for i in range(1, 51)], "in EUR", []),
}


@pytest.mark.parametrize("name", TARGETS)
def test_numeric_targets(name):
    cells, words, missing = TARGETS[name]
    y = pd.Series(cells, name="y")
    assert guess_task(y) == "regression"
    target = RegressionTarget.learn(y)
    assert words in " ".join(target.notes)
    assert np.flatnonzero(~known_rows(y, target)).tolist() == missing
    again = RegressionTarget.from_config(target.get_config())
    assert again == target
    assert np.isfinite(again.standardize(y.drop(missing))).all()


def test_mostly_numeric_target_is_refused():
    y = pd.Series([*(f"{i}.5" for i in range(40)), *["low", "high"] * 5], name="y")
    with pytest.raises(InputError, match=r"'y' holds numbers and other texts: not read as numbers.*'high'.*--task"):
        guess_task(y)


def test_mistyped_target_is_clipped_and_named():
    """One value a million times too large: the scale is that of the others, and the row is named."""
    y = np.linspace(100.0, 500.0, 60)
    wrong = pd.Series(np.where(np.arange(60) == 17, y * 1e6, y), name="y")
    target, clean = RegressionTarget.learn(wrong), RegressionTarget.learn(y)
    assert target.scale == pytest.approx(clean.scale, rel=0.05)
    (note,) = target.notes
    assert f"1 value: '{y[17] * 1e6:.6g}' in row 17: check" in note
    z = target.encode(wrong)
    assert z[17] == z.max() == z[-1]
    assert target.standardize(wrong)[17] > 1e6
    tail = np.exp(3.0 * np.random.default_rng(0).normal(size=400))
    assert RegressionTarget.learn(tail).limits is None


def test_corpus_is_large():
    assert len(NUMBERS) + len(LABELS) + len(UNREADABLE) + len(TARGETS) >= 60
