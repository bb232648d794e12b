"""Records of large files with one JSON object on each line, packed or not, batch by batch.

Some files hold Python literals instead, with single quotes: they are read as well, slowly.
Nothing is said of the encoding here: text is bytes, for `columns` to mend or to refuse.
"""

import ast
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from pipeline.bad_lines import BadLines
from pipeline.data_sets import damaged

_BATCH_BYTES = 16 * 2**20
_LONGEST_LINE = 16 * 2**20  # bytes; records have some thousands
_UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError)
_SURROGATE = re.compile("[\ud800-\udfff]")


def json_rows(file: Path, schema: pa.Schema, origin: str) -> Iterator[pa.Table]:
    """These fields of every record; null where a record lacks one or has it of another type.

    Text is of type binary in `schema`: it comes as it is, also where it is not UTF-8.
    `origin` says how to get a good file.

    Raises:
        DataError: the file is damaged, or has lines that are no records.
    """
    bad, number = BadLines(file, "records in braces"), 1
    for block in _blocks(file, origin):
        try:
            yield _parsed(block, schema)
        except pa.ArrowInvalid:
            yield _line_by_line(block, schema, bad, number)
        number += block.count(b"\n")
    bad.require_none(origin)


def _blocks(file: Path, origin: str) -> Iterator[bytes]:
    """Some MB of whole lines each."""
    rest = b""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            while piece := stream.read(_BATCH_BYTES):
                lines, newline, tail = piece.rpartition(b"\n")
                first = piece.find(b"\n") if newline else len(piece)
                if len(rest) + first > _LONGEST_LINE:
                    raise damaged(file, f"has a line of more than {_LONGEST_LINE:,} bytes", origin)
                if newline:
                    yield rest + lines + newline
                    rest = tail
                else:
                    rest += piece
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(file, f"is damaged ({error})", origin) from error
    if rest:
        yield rest


def _parsed(block: bytes, schema: pa.Schema) -> pa.Table:
    if not block.strip():
        return schema.empty_table()
    return pajson.read_json(
        pa.BufferReader(block),
        pajson.ReadOptions(use_threads=False, block_size=len(block) + 1),
        pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


def _line_by_line(block: bytes, schema: pa.Schema, bad: BadLines, number: int) -> pa.Table:
    """The block's records, also where some are Python, are broken or have odd types."""
    records = []
    for place, line in enumerate(block.split(b"\n")):
        text = line.decode("utf-8", "surrogateescape").strip()
        record = _record(text) if text else None
        if record is not None:
            records.append(record)
        elif text:
            bad.add(text, number + place)
    columns = [_column([record.get(field.name) for record in records], field) for field in schema]
    return pa.table(columns, schema)


def _record(text: str) -> dict[str, Any] | None:
    for read in (json.loads, _literal):
        try:
            record = read(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        if isinstance(record, dict):
            return record
    return None


def _literal(text: str) -> Any:
    """What a Python literal says; Python reads UTF-8 only, so what is not becomes an escape."""
    return ast.literal_eval(text.encode("utf-8", "backslashreplace").decode())


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except _UNFIT:
        return pa.array([_fitting(value, field.type) for value in values], field.type)


def _fitting(value: Any, kind: pa.DataType) -> Any:
    value = _as_bytes(value)
    try:
        pa.scalar(value, kind)
    except _UNFIT:
        return None
    return value


def _as_bytes(value: Any) -> Any:
    """Texts as UTF-8, also those inside; a surrogate becomes a byte that no UTF-8 has."""
    if isinstance(value, str):
        return _SURROGATE.sub("\udcff", value).encode("utf-8", "surrogateescape")
    if isinstance(value, list):
        return [_as_bytes(one) for one in value]
    if isinstance(value, dict):
        return {key: _as_bytes(one) for key, one in value.items()}
    return value
