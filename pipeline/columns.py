"""One column of somebody's table, of whatever Arrow type, as the type our schemas use.

A value that cannot be read as what it should be becomes null; `pipeline.validation` counts and
reports them with everything else that is wrong.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from pipeline.date_texts import parsed_dates
from pipeline.encodings import by_iconv
from pipeline.errors import DataError
from pipeline.schemas import ATTRIBUTES

log = logging.getLogger(__name__)

_NUMBER = r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
_DECIMAL_COMMA = r"^([-+]?[0-9]*),([0-9]{1,2})$"  # three digits behind it may be thousands
_FLAGS = {"true": "1", "false": "0"}  # in any case
_EXACT = {16: 2.0**11, 32: 2.0**24, 64: 2.0**53}  # from here on a float skips integers; by bits
_FEW_BROKEN = 0.01  # of a column; more is another encoding, not a broken value
_TELLING = 1_000  # values that tell an encoding
_MAP_ROWS = 65_536  # keeps the string offsets of one slice far below 2 GiB


def as_ids(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """Ids as strings: text as it is ('007' stays '007'), numbers as their decimal text.

    Raises:
        DataError: the column is not text or integers, or holds floats that are not whole or too
            large to be exact (two ids may have become one).
    """
    if pt.is_dictionary(column.type):
        return as_ids(column.cast(column.type.value_type), where)
    if pt.is_floating(column.type) and not _is_whole(column):
        raise DataError(
            f"{where}: ids are stored as {column.type}, and not all are whole numbers it holds "
            "exactly; store them as strings or integers"
        )
    column = _as_string(column, where)
    _, broken = _mended(column)
    if broken:
        raise DataError(
            f"{where}: {len(broken)} ids are not UTF-8, the first in data row {broken[0] + 1}; "
            f"{_as_utf8(column, broken)}"
        )
    return column


def as_text(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """Text of any scalar; whole floats lose their '.0', NaN becomes null, lists are joined by ', '.

    A few values that are not UTF-8 (lone surrogates, cut characters) are mended: what cannot be
    decoded becomes U+FFFD, and a warning says so.

    Raises:
        DataError: the column holds structs or maps, or many values are not UTF-8.
    """
    if pt.is_dictionary(column.type):
        return as_text(column.cast(column.type.value_type), where)
    raw = _as_string(column, where)
    column, broken = _mended(raw)
    if not broken:
        return column
    found = f"{where}: {len(broken)} of {len(column)} values are not UTF-8, the first in data row"
    if len(broken) > max(1.0, _FEW_BROKEN * len(column)):
        raise DataError(f"{found} {broken[0] + 1}; {_as_utf8(raw, broken)}")
    log.warning("%s %d; what cannot be read became \ufffd", found, broken[0] + 1)
    return column


def _mended(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, list[int]]:
    """Strings with U+FFFD for what is not UTF-8, and the rows that had such.

    Parquet and CSV readers take any bytes for UTF-8.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        values = column.cast(pa.binary()).to_pylist()
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values]
        pairs = enumerate(zip(values, texts, strict=True))
        broken = [
            row for row, (value, text) in pairs if text is not None and text.encode() != value
        ]
        return pa.chunked_array([pa.array(texts, pa.string())]), broken
    return column, []


def _as_utf8(column: pa.ChunkedArray, broken: list[int]) -> str:
    """What to do about a column of which some rows are not UTF-8."""
    some = column.cast(pa.binary()).take(pa.array(broken[:_TELLING])).to_pylist()
    return f"store its text as UTF-8 (of a text file {by_iconv(b' '.join(some))})"


def _as_string(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    try:
        if pt.is_list(column.type) or pt.is_large_list(column.type):
            column = pc.binary_join(column.cast(pa.list_(pa.string())), ", ")
        elif pt.is_floating(column.type):
            column = _without_non_finite(column)
            column = column.cast(pa.int64()) if _is_whole(column) else column
        return column.cast(pa.string(), safe=False)  # bytes as they are; see `_mended`
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{where}: cannot be read as text ({error})") from error


def as_numbers(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """Finite float64; anything else (empty, 'n/a', NaN, infinity) becomes null."""
    if pt.is_dictionary(column.type):
        return as_numbers(column.cast(column.type.value_type), where)
    if _is_string(column.type):
        trimmed = pc.utf8_trim_whitespace(_mended(column)[0])
        readable = pc.match_substring_regex(trimmed, _NUMBER)
        column = pc.if_else(readable, trimmed, pa.scalar(None, trimmed.type))
    try:
        return _without_non_finite(column.cast(pa.float64(), safe=False))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{where}: {column.type} cannot be read as numbers") from error


def as_ratings(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """As `as_numbers`, but of text also decimal commas ('3,5'), and true and false as 1 and 0."""
    if pt.is_dictionary(column.type):
        return as_ratings(column.cast(column.type.value_type), where)
    if _is_string(column.type):
        column = pc.utf8_trim_whitespace(_mended(column)[0])
        column = pc.replace_substring_regex(column, _DECIMAL_COMMA, r"\1.\2")
        for flag, number in _FLAGS.items():
            column = pc.replace_substring_regex(column, f"(?i)^{flag}$", number)
    return as_numbers(column, where)


def as_timestamps(column: pa.ChunkedArray, unit: str, where: str) -> pa.ChunkedArray:
    """Ticks of `unit` since 1970-01-01 UTC as int64, fractions cut off.

    Numbers are taken to be in `unit` already; dates, times and ISO text ('2024-05-01 12:30:00',
    '2024/5/1', '2024年5月1日'; without a zone: UTC) carry their own. A day that no calendar has is
    null.
    """
    if pt.is_dictionary(column.type):
        return as_timestamps(column.cast(column.type.value_type), unit, where)
    if pt.is_integer(column.type):
        return column.cast(pa.int64(), safe=False)
    column = _mended(column)[0] if _is_string(column.type) else column
    if _is_string(column.type) and _looks_like_dates(column):
        column = parsed_dates(column)
    if pt.is_timestamp(column.type) or pt.is_date(column.type):
        zone = column.type.tz if pt.is_timestamp(column.type) else None
        return column.cast(pa.timestamp(unit, zone), safe=False).cast(pa.int64())
    ticks = pc.floor(as_numbers(column, where))
    fits = pc.less(pc.abs(ticks), 2.0**62)
    return pc.if_else(fits, ticks, pa.scalar(None, pa.float64())).cast(pa.int64())


def as_attributes(table: pa.Table, rows: int) -> pa.ChunkedArray:
    """Text columns -> one map per row; a null or blank value is left out of its row's map."""
    if not table.num_columns:
        return _no_attributes(rows)
    maps = [_maps_of(batch) for batch in table.to_batches(max_chunksize=_MAP_ROWS)]
    return pa.chunked_array(maps, ATTRIBUTES)


def _maps_of(batch: pa.RecordBatch) -> pa.Array:
    rows = batch.num_rows
    present = np.column_stack(
        [
            pc.fill_null(pc.not_equal(pc.utf8_trim_whitespace(column), ""), False).to_numpy(
                zero_copy_only=False
            )
            for column in batch.columns
        ]
    )  # (rows, attributes) bool
    row, column = np.nonzero(present)
    values = pa.concat_arrays(batch.columns).take(pa.array(column * rows + row))
    keys = pa.array(batch.schema.names, pa.string()).take(pa.array(column))
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(present.sum(axis=1), out=offsets[1:])
    return pa.MapArray.from_arrays(offsets, keys, values)


def _no_attributes(rows: int) -> pa.ChunkedArray:
    none = pa.array([], pa.string())
    return pa.chunked_array([pa.MapArray.from_arrays(np.zeros(rows + 1, np.int32), none, none)])


def _is_string(kind: pa.DataType) -> bool:
    return pt.is_string(kind) or pt.is_large_string(kind)


def _is_whole(column: pa.ChunkedArray) -> bool:
    """Whether all finite values are integers that a float still tells apart."""
    exact = pa.scalar(_EXACT[column.type.bit_width], column.type)
    whole = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), exact))
    return pc.all(pc.fill_null(pc.or_(whole, pc.is_nan(column)), True)).as_py() is not False


def _without_non_finite(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.is_finite(column), column, pa.scalar(None, column.type))


def _looks_like_dates(column: pa.ChunkedArray) -> bool:
    """Whether most values that are not blank are no numbers."""
    trimmed = pc.utf8_trim_whitespace(column)
    filled = trimmed.filter(pc.not_equal(trimmed, ""))
    numbers = pc.sum(pc.match_substring_regex(filled, _NUMBER)).as_py() or 0
    return 2 * numbers < len(filled)
