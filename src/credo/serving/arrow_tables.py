"""Arrow streams and Parquet files from anyone, read without trust.

pyarrow does not tell whether the buffers of a stream are compressed before it has decompressed them. So a few numbers
are read here of the flatbuffer with which every message begins: a message refers to a record batch, or to a dictionary
batch that refers to one, and a record batch may refer to a compression.

References: the Arrow columnar format, https://arrow.apache.org/docs/format/Columnar.html (Message.fbs), and
FlatBuffers, https://flatbuffers.dev/internals.
"""

from __future__ import annotations

import importlib
import struct
from typing import Any

import pandas as pd

from credo._text import listed, quoted
from credo.serving.options import Refusal, ServerOptions, too_many_rows

_CODECS = {"UNCOMPRESSED", "SNAPPY"}  # Snappy's largest ratio is about 21; that of gzip and zstd is a thousand or more
_ENCODINGS = {"PLAIN", "RLE", "RLE_DICTIONARY", "PLAIN_DICTIONARY", "BIT_PACKED", "BYTE_STREAM_SPLIT"}
_HEADER_TYPE, _HEADER = 1, 2  # fields of a message
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3  # types of headers
_DATA = 1  # field of a dictionary batch
_COMPRESSION = 3  # field of a record batch


def read_arrow(body: bytes, options: ServerOptions) -> pd.DataFrame:
    """Read an Arrow stream.

    Args:
        body: its bytes.
        options: the limits.

    Returns:
        The rows.

    Raises:
        Refusal: if it is damaged, compressed or too large.
    """
    arrow = import_arrow("pyarrow")
    ipc = import_arrow("pyarrow.ipc")
    try:
        if is_compressed(body, ipc):
            raise Refusal(422, "compressed Arrow buffers are not accepted: write the stream without compression")
        with ipc.open_stream(arrow.py_buffer(body)) as reader:
            _check_schema(reader.schema, arrow)
            batches, rows = [], 0
            for batch in reader:
                rows += batch.num_rows
                if rows > options.max_rows:
                    raise too_many_rows(options)
                batch.validate(full=True)
                batches.append(batch)
            return _to_frame(arrow.Table.from_batches(batches, reader.schema))
    except (arrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise Refusal(422, f"the body is no Arrow stream, or is damaged: {str(error)[:200]}") from error


def read_parquet(body: bytes, options: ServerOptions) -> pd.DataFrame:
    """Read a Parquet file.

    Args:
        body: its bytes.
        options: the limits.

    Returns:
        The rows.

    Raises:
        Refusal: if it is damaged, compressed by more than Snappy, or too large.
    """
    arrow = import_arrow("pyarrow")
    try:
        with import_arrow("pyarrow.parquet").ParquetFile(arrow.BufferReader(body)) as file:
            metadata, schema = file.metadata, file.schema_arrow
            if metadata.num_rows > options.max_rows:
                raise too_many_rows(options)
            _check_schema(schema, arrow)
            if metadata.num_columns * max(metadata.num_row_groups, 1) > 2**17:
                raise Refusal(413, "the Parquet file has too many columns and row groups: write it in one row group")
            for chunk in (
                metadata.row_group(g).column(c)
                for g in range(metadata.num_row_groups)
                for c in range(metadata.num_columns)
            ):
                if chunk.compression not in _CODECS or not _ENCODINGS.issuperset(chunk.encodings):
                    raise Refusal(
                        422, "of the compressions of Parquet, only Snappy and none are accepted, and plain encodings"
                    )
            texts = [field.name for field in schema if arrow.types.is_string(field.type)]
        reader = arrow.BufferReader(body)
        with import_arrow("pyarrow.parquet").ParquetFile(reader, read_dictionary=texts) as file:
            # As dictionaries, so that a long word is in memory once and not once for each row.
            table = file.read(use_threads=False)
            table.validate(full=True)
            return _to_frame(table)
    except (arrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise Refusal(422, f"the body is no Parquet file, or is damaged: {str(error)[:200]}") from error


def _to_frame(table: Any) -> pd.DataFrame:
    """The rows; dictionaries become the objects that they refer to."""
    if table.num_rows == 0:
        raise Refusal(422, "the table holds no rows: add some")
    frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    categories = {name: frame[name].astype(object) for name in frame.select_dtypes("category")}
    return frame.assign(**categories) if categories else frame


def _check_schema(schema: Any, arrow: Any) -> None:
    """Raise Refusal for repeated names, and for types that are no cells or can be larger in memory than in the body."""
    names = list(schema.names)
    repeated = [quoted(name) for name in dict.fromkeys(names) if names.count(name) > 1] if len(names) < 5000 else []
    if repeated or len(set(names)) != len(names):
        raise Refusal(422, f"the table has columns of the same name: {listed(repeated)}")
    for field in schema:
        kind = field.type.value_type if arrow.types.is_dictionary(field.type) else field.type
        if not any(is_kind(kind) for is_kind in _cell_types(arrow.types)):
            raise Refusal(422, f"the column {quoted(field.name)} has the type {kind}, which is no cell of a table")


def _cell_types(types: Any) -> tuple[Any, ...]:
    return (
        types.is_boolean,
        types.is_integer,
        types.is_floating,
        types.is_decimal,
        types.is_string,
        types.is_large_string,
        types.is_date,
        types.is_timestamp,
        types.is_null,
    )


def import_arrow(module: str) -> Any:
    """Import a module of pyarrow; raises Refusal with status 415 where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Refusal(415, "Arrow and Parquet need the extra `parquet`: pip install credo[parquet]") from error


def is_compressed(stream: bytes, ipc: Any) -> bool:
    """Whether a message of a stream has compressed buffers.

    Args:
        stream: an Arrow stream.
        ipc: the module ``pyarrow.ipc``.

    Returns:
        True if one has.

    Raises:
        ValueError: if the stream is damaged; pyarrow raises its own errors, which are some of these too.
    """
    reader = ipc.MessageReader.open_stream(stream)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return False
        try:
            if _has_compression(message.metadata.to_pybytes()):
                return True
        except struct.error as error:
            raise ValueError("its metadata are damaged") from error


def _has_compression(metadata: bytes) -> bool:
    root = _unsigned(metadata, 0)
    kind, header = _field(metadata, root, _HEADER_TYPE), _table(metadata, root, _HEADER)
    if kind is None or header is None:
        return False
    of_type = metadata[kind]
    if of_type == _DICTIONARY_BATCH:
        header = _table(metadata, header, _DATA)
    elif of_type != _RECORD_BATCH:
        return False
    return header is not None and _field(metadata, header, _COMPRESSION) is not None


def _field(buffer: bytes, table: int, number: int) -> int | None:
    """The position of a field of a table; ``None`` if it is absent."""
    if table < 0:
        raise struct.error
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    if vtable < 0:
        raise struct.error
    size = struct.unpack_from("<H", buffer, vtable)[0]
    entry = 4 + 2 * number
    offset = struct.unpack_from("<H", buffer, vtable + entry)[0] if entry + 2 <= size else 0
    return table + offset if offset else None


def _table(buffer: bytes, table: int, number: int) -> int | None:
    """The position of the table that a field refers to."""
    position = _field(buffer, table, number)
    return None if position is None else position + _unsigned(buffer, position)


def _unsigned(buffer: bytes, position: int) -> int:
    value: int = struct.unpack_from("<I", buffer, position)[0]
    return value
