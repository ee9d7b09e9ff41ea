"""The rows of a model as types: a pydantic model made from its columns, and the OpenAPI document of the server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from credo._text import closest_name, listed, quoted
from credo.serving.options import Refusal
from credo.serving.served_model import FLAGS, Request, ServedModel
from credo.tabular.date_format import DateFormat
from credo.tabular.number_format import NumberFormat
from credo.tabular.parsing import is_missing, is_placeholder, parse_date, parse_number

if TYPE_CHECKING:
    from pydantic import BaseModel

_WORDS_SHOWN = 50
_KINDS = {
    "float_type": "must be a number or null",
    "finite_number": "must be a finite number or null",
    "string_type": "must be text or null",
}


class RowSchema:
    """The columns of a model as a pydantic model, and checks of JSON rows by it.

    Args:
        model: the model.

    Attributes:
        row: the pydantic model of a row; unknown columns are not allowed.
        prediction: the pydantic model of a predicted row.
    """

    def __init__(self, model: ServedModel) -> None:
        from pydantic import ConfigDict, create_model

        self._model = model
        self._names = frozenset(model.used_columns)
        self._allowed = self._names | model.ignored_columns
        strict = ConfigDict(extra="forbid", strict=True, title="Row", protected_namespaces=())
        # The fields have names of their own, because a column may be called "model_config" or "class".
        fields = {f"column_{j}": _field(model, name) for j, name in enumerate(model.used_columns)}
        build: Any = create_model
        self.row: type[BaseModel] = build("Row", __config__=strict, **fields)
        self.prediction: type[BaseModel] = _prediction(model)
        self._columns = list(model.used_columns)
        self._check = self.row.__pydantic_validator__.validate_python

    def read(self, rows: Any) -> list[dict[str, Any]]:
        """Check rows that were read from JSON.

        Args:
            rows: what the body holds.

        Returns:
            The cells of each row by column.

        Raises:
            Refusal: with status 422 and a sentence about the first row that is not valid.
        """
        if not isinstance(rows, list):
            raise Refusal(422, 'the body must be a list of rows, such as [{"column": 1.0}]')
        if not rows:
            raise Refusal(422, "the list of rows is empty: add at least one row")
        return [self._read_row(row, j) for j, row in enumerate(rows)]

    def _read_row(self, row: Any, j: int) -> dict[str, Any]:
        from pydantic import ValidationError

        if not isinstance(row, dict):
            raise Refusal(422, f"row {j} is no object with a value for every column")
        if row.keys() != self._names:
            row = self._without_ignored(row, j)
        try:
            self._check(row)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            name = str(first["loc"][0]) if first["loc"] else ""
            reason = _KINDS.get(first["type"], first["msg"].removeprefix("Value error, "))
            raise Refusal(422, f"column {quoted(name)} of row {j} {reason}") from error
        return row

    def _without_ignored(self, row: Mapping[str, Any], j: int) -> dict[str, Any]:
        absent = [name for name in self._columns if name not in row]
        unknown = [name for name in row if name not in self._allowed]
        if unknown:
            closest = closest_name(unknown[0], absent)
            hint = f": did you mean {quoted(closest)}?" if closest else ", which training did not have: leave it out"
            raise Refusal(422, f"row {j} has a column {quoted(unknown[0])}{hint}")
        if absent:
            missing = listed([quoted(name) for name in absent])
            raise Refusal(422, f"row {j} has no value for {missing}: add it, or null where it is missing")
        return {name: row[name] for name in self._columns}


def openapi(document: dict[str, Any], schema: RowSchema, model: ServedModel) -> dict[str, Any]:
    """Complete the OpenAPI document of the routes with the types of the model's rows and predictions.

    Args:
        document: what FastAPI knows of the routes; it is changed.
        schema: the types.
        model: the model.

    Returns:
        The document.
    """
    row = schema.row.model_json_schema(by_alias=True)
    prediction = schema.prediction.model_json_schema(by_alias=True)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas |= {
        "Row": row,
        "Prediction": prediction,
        "Answer": {
            "type": "object",
            "required": ["predictions", "notes", "model"],
            "properties": {
                "predictions": {"type": "array", "items": {"$ref": "#/components/schemas/Prediction"}},
                "notes": {"type": "array", "items": {"type": "string"}},
                "model": {"type": "string", "description": "The version of the model."},
            },
        },
        "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    }
    binary = {"schema": {"type": "string", "format": "binary"}}
    tables = {
        "text/csv": {"schema": {"type": "string"}},
        "application/vnd.apache.arrow.stream": binary,
        "application/vnd.apache.parquet": binary,
    }
    example = [{name: model.describe_column(name)["default"] for name in model.used_columns}]
    rows = {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Row"}}
    operation = document["paths"]["/predict"]["post"]
    operation["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": rows, "example": example}, **tables},
    }
    answer = {"schema": {"$ref": "#/components/schemas/Answer"}}
    operation["responses"] = {
        "200": {"description": "One prediction per row.", "content": {"application/json": answer, **tables}},
        "4XX": {
            "description": "The request is not valid, and a sentence says why.",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        },
    }
    return document


def _field(model: ServedModel, name: str) -> tuple[Any, Any]:
    """The type of a column, and its description."""
    from pydantic import AfterValidator, Field, FiniteFloat

    columns = model.estimator.columns_
    form, shown = columns.formats.get(name), model.describe_column(name)
    kind: Any
    if shown["kind"] == "category":
        kind = str | bool | int | FiniteFloat | None if _has_number(shown["words"]) else str | None
        words = listed([quoted(word) for word in shown["words"]], _WORDS_SHOWN)
        description = f"A word: {words}. Other words are predicted too, and flagged as unseen."
    else:
        description = f"From {shown['lowest']} to {shown['highest']} in training; values outside are flagged."
        if shown["kind"] == "date":
            dates = form if isinstance(form, DateFormat) else DateFormat()
            kind = Annotated[str | int | None if dates.compact else str | None, AfterValidator(_check_date(dates))]
            description = f"A date, as text. {description}"
        elif isinstance(form, NumberFormat):
            kind = Annotated[bool | FiniteFloat | str | None, AfterValidator(_check_number(form))]
            description = f"A number, also as text written as in training. {description}"
        else:
            kind = FiniteFloat | None
            description = f"A number. {description}"
    unlike = "" if shown["missing"] else " Training had none, so that rows without it are flagged."
    return kind, Field(alias=name, description=f"{description} null: missing.{unlike}")


def _prediction(model: ServedModel) -> type[BaseModel]:
    from pydantic import ConfigDict, Field, create_model

    label = type(model.classes[0]) if model.classes else float
    types: dict[str, Any] = {"class": label, FLAGS: list[str]}
    fields = {
        f"column_{j}": (types.get(name, float), Field(alias=name))
        for j, name in enumerate(model.column_names(Request()))
    }
    config = ConfigDict(title="Prediction", protected_namespaces=())
    build: Any = create_model
    found: type[BaseModel] = build("Prediction", __config__=config, **fields)
    return found


def _has_number(words: Sequence[str]) -> bool:
    return any(word in ("True", "False") or not math.isnan(parse_number(word)) for word in words)


def _check_number(form: NumberFormat) -> Any:
    def check(cell: Any) -> Any:
        if not (is_missing(cell) or is_placeholder(cell)) and not math.isfinite(parse_number(cell, form)):
            raise ValueError(f"must be a number as in training ({form.describe()}), or null")
        return cell

    return check


def _check_date(form: DateFormat) -> Any:
    def check(cell: Any) -> Any:
        if not (is_missing(cell) or is_placeholder(cell)) and math.isnan(parse_date(cell, form)):
            raise ValueError("must be a date such as 2024-03-31, or null")
        return cell

    return check
