"""The file of a form, ``multipart/form-data``, as ``curl -F`` and web pages send it. It stays in memory."""

from __future__ import annotations

import importlib
from typing import Any

from credo.serving.formats import ARROW, CSV, JSON, PARQUET, media_type
from credo.serving.options import Refusal


def read_form(body: bytes, header: str, max_headers: int = 50) -> tuple[bytes, str]:
    """The file of a form.

    Args:
        body: the form, ``multipart/form-data``.
        header: the header ``Content-Type``, with the boundary.
        max_headers: the maximum number of parts and of header lines.

    Returns:
        The content of the part called ``file``, and its media type: that of its header, or of its name.

    Raises:
        Refusal: if there is none, or the form is damaged.
    """
    multipart = importlib.import_module("python_multipart.multipart")
    boundary = multipart.parse_options_header(header)[1].get(b"boundary", b"")
    form = _Form(max_headers)
    try:
        parser = multipart.MultipartParser(boundary, form.callbacks())
        parser.write(body)
        parser.finalize()
        if not form.is_complete:
            raise ValueError("its end is missing")
    except (multipart.FormParserError, ValueError) as error:
        raise Refusal(422, f"the form is damaged: {str(error)[:200]}") from error
    for headers, content in form.parts:
        values, options = multipart.parse_options_header(headers.get(b"content-disposition", b""))
        if options.get(b"name") == b"file" and values == b"form-data":
            name = options.get(b"filename", b"").lower()
            given = headers.get(b"content-type", b"").decode("latin-1")
            by_name = {b".csv": CSV, b".json": JSON, b".parquet": PARQUET, b".arrow": ARROW, b".arrows": ARROW}
            found = next((kind for end, kind in by_name.items() if name.endswith(end)), None)
            return bytes(content), found or media_type(given or None)
    raise Refusal(422, "the form has no file called 'file': send it as curl -F file=@table.csv does")


class _Form:
    """The parts of a form, as the parser finds them.

    Attributes:
        parts: the headers, by name in lower case, and the content of each part.
        is_complete: whether the form has an end.
    """

    def __init__(self, limit: int) -> None:
        self.parts: list[tuple[dict[bytes, bytes], bytearray]] = []
        self.is_complete = False
        self._limit, self._lines = limit, 0
        self._name, self._value = bytearray(), bytearray()

    def callbacks(self) -> dict[str, Any]:
        """What the parser calls."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_end": self._end,
            "on_part_data": lambda data, start, end: self.parts[-1][1].extend(data[start:end]),
        }

    def _begin(self) -> None:
        if len(self.parts) >= self._limit:
            raise ValueError(f"it has more than {self._limit} parts")
        self.parts.append(({}, bytearray()))

    def _end(self) -> None:
        self.is_complete = True

    def _end_header(self) -> None:
        self._lines += 1
        if self._lines > self._limit:
            raise ValueError(f"it has more than {self._limit} header lines")
        self.parts[-1][0][bytes(self._name).lower()] = bytes(self._value)
        self._name, self._value = bytearray(), bytearray()
