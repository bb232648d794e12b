"""Columns of one Parquet, CSV or tab-separated file by their names, text as strings throughout."""

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from pipeline.encodings import by_iconv
from pipeline.errors import DataError
from pipeline.foreign_files import (
    LOOKED_AT,
    is_mostly_utf8,
    looks_like_text,
    not_utf8,
    one_column,
    require_header,
    require_table,
)
from pipeline.open_quotes import find_open_quote
from pipeline.row_widths import ODD_WIDTH, OddRows
from pipeline.text_marks import count_lines
from pipeline.text_reader import TextReader, open_text

_COMMA = pacsv.ParseOptions(newlines_in_values=True)
_TAB = pacsv.ParseOptions(delimiter="\t", quote_char=False)
_QUOTED_TAB = pacsv.ParseOptions(delimiter="\t", newlines_in_values=True)
SEPARATORS = (",", ";", "\t", "|")
_TEXT_FORMATS = {
    ".csv": _COMMA,
    ".tsv": _QUOTED_TAB,
    ".user": _TAB,
    ".item": _TAB,
    ".inter": _TAB,
}
_SAY_SEPARATOR = (
    'say what stands between its columns, as `separator: ","` beside its path, or call it .csv'
)


def read_columns(file: Path, remedies: Mapping[str, str], name: str, remedy: str) -> pa.Table:
    """Columns of one file under their own names.

    `remedies` says for every wanted column what to do if it is missing, `remedy` what to do if the
    file cannot be read; `name` is the table's.

    Raises:
        DataError: the file cannot be read, lacks a column, or has rows of another width.
    """
    table, odd = read_rows(file, remedies, name, remedy, None, f"call it .csv or .tsv, or {remedy}")
    if odd:
        rows = f"{odd.count:,} of {table.num_rows + odd.count:,} rows"
        raise DataError(f"{name}: {rows} {ODD_WIDTH} ({odd.examples}); {remedy}")
    return table


def read_rows(
    file: Path,
    remedies: Mapping[str, str],
    name: str,
    remedy: str,
    separator: str | None = None,
    if_text: str = _SAY_SEPARATOR,
) -> tuple[pa.Table, OddRows | None]:
    """As `read_columns`, without the rows of another width, and what there is of these.

    With a `separator` it is a text table, whatever the file is called, unless that says Parquet;
    `if_text` is the remedy of one that is called neither a text nor Parquet.

    Raises:
        DataError: the file cannot be read, or lacks a column.
    """
    where = f"{name}: {file}"
    options = text_format(file, separator)
    require_table(file, where, is_text=options is not None)
    if options:
        return _read_text(file, options, remedies, where, remedy)
    if looks_like_text(file):
        raise DataError(f"{where} is text, not Parquet; {if_text}")
    try:
        with pq.ParquetFile(file) as parquet:
            require_columns(remedies, parquet.schema_arrow.names, where)
            return parquet.read(columns=list(remedies)), None
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{where} cannot be read as Parquet ({error}); {remedy}") from error


def text_format(file: Path, separator: str | None = None) -> pacsv.ParseOptions | None:
    """How to read a text table, by its name unless `separator` is given; None if it is Parquet."""
    suffix = Path(file.name.lower().removesuffix(".gz")).suffix
    if suffix == ".parquet" or not separator:
        return _TEXT_FORMATS.get(suffix)
    return pacsv.ParseOptions(delimiter=separator, newlines_in_values=True)


def _read_text(
    file: Path, options: pacsv.ParseOptions, remedies: Mapping[str, str], where: str, remedy: str
) -> tuple[pa.Table, OddRows | None]:
    there: list[str] = []
    try:
        with open_text(file) as stream:
            start = stream.read(LOOKED_AT)
        require_header(start, file, where)
        reader = TextReader(file, options)
        there = names_of(reader.schema(), where)
        _require_separator(remedies, there, options.delimiter, where, remedy)
        require_columns(remedies, there, where)
        table = reader.table(list(remedies))
        require_closed_quotes(file, options, table.num_rows + reader.skipped, len(there), where)
        if not is_mostly_utf8(start) and not all(map(_is_utf8_column, table.columns)):
            raise not_utf8(start, file, where)
        return table, odd_rows_of(file, reader.skipped, options, len(there))
    except (pa.ArrowInvalid, OSError) as error:
        if there:
            with suppress(OSError):  # of a file that is cut, `error` tells already
                require_closed_quotes(file, options, -1, len(there), where)
        raise DataError(f"{where} cannot be read as a text table ({error}); {remedy}") from error


def odd_rows_of(
    file: Path, count: int, options: pacsv.ParseOptions, columns: int
) -> OddRows | None:
    """Where the `count` rows of another width are; None if there are none."""
    if not count:
        return None
    with open_text(file) as stream:
        is_quoted = bool(options.quote_char)
        return OddRows.of(file, count, stream, options.delimiter, columns, is_quoted)


def _is_utf8_column(column: pa.ChunkedArray) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def names_of(schema: pa.Schema, where: str) -> list[str]:
    """Names of all columns.

    Raises:
        DataError: they are not UTF-8.
    """
    try:
        return schema.names
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} has a header that is not UTF-8; {by_iconv(error.object)}"
        ) from error


def _require_separator(
    remedies: Mapping[str, str], there: Sequence[str], separator: str, where: str, remedy: str
) -> None:
    """Refuse a file of one column whose name is a whole header with another separator.

    Raises:
        DataError: names the separator that it has, or those that it may have.
    """
    if len(there) != 1:
        return
    for other in SEPARATORS:
        if other != separator and other in there[0] and there[0] not in remedies:
            raise DataError(
                f"{where} has no {separator!r} between its columns, but {other!r}; set `separator: "
                f'"{other}"` beside its path'.replace("\t", "\\t")
            )
    if not there[0].isidentifier() and there[0] not in remedies:
        raise DataError(f"{where} {one_column(there[0])}; or {remedy}")


def require_closed_quotes(
    file: Path, options: pacsv.ParseOptions, rows: int, columns: int, where: str
) -> None:
    """Refuse a text with a quote that takes in rows, if it has more lines than `rows` and a header.

    Raises:
        DataError: names the line of the quote.
    """
    if not options.quote_char:
        return
    with open_text(file) as stream:
        if count_lines(stream) <= rows + 1:
            return
    with open_text(file) as stream:
        problem = find_open_quote(stream, options.delimiter, columns)
    if problem:
        raise DataError(
            f"{where}, {problem}; close the quote, or write it as two inside a quoted cell, or "
            "store the table as Parquet if the cell is right"
        )


def require_columns(remedies: Mapping[str, str], there: Sequence[str], where: str) -> None:
    """Refuse a file that lacks a column of `remedies`, or has it twice.

    Raises:
        DataError: names every such column, and what to do.
    """
    problems = []
    for column, remedy in remedies.items():
        near = difflib.get_close_matches(column, there, n=1)
        if column not in there:
            likely = f"; the nearest is {near[0]!r}" if near else ""
            problems.append(f"  {column!r} is missing{likely}; {remedy}")
        elif there.count(column) > 1:
            problems.append(
                f"  {column!r} is there {there.count(column)} times; rename or drop one"
            )
    if problems:
        raise DataError("\n".join([f"{where} has the columns {', '.join(there)}", *problems]))
