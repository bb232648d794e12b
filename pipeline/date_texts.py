"""Dates as people write them, the year first: 2024-05-31 12:30, 2024/5/1, 2023年1月1日 8:15."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc

_CLOCK = r"([01][0-9]|2[0-3]):?[0-5][0-9]"
_ZONED = rf"(Z|[+-]{_CLOCK})?$"
_DAY = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"  # also the 31st of June
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,6})?)?"
_ISO = rf"^{_DAY}([T ]{_TIME})?{_ZONED}"
_ZONE = r"[ T].*[+-][0-9]{2}:?[0-9]{2}$"
_AS_ISO = (  # in this order
    (r"^([0-9]{4})[/.年-] ?([0-9]{1,2})[/.月-] ?([0-9]{1,2})", r"\1-\2-\3"),
    (r"^(.{8,10}?) ?日 *(.*)$", r"\1 \2"),
    (r" +$", ""),
    (r"^([0-9]{4})-([0-9])-", r"\1-0\2-"),
    (r"^([0-9]{4}-[0-9]{2})-([0-9])($|[^0-9])", r"\1-0\2\3"),
    (r"^(.{10})(?:T| +)([0-9]{1,2}) ?[时時点點] ?([0-9]{1,2}) ?分?", r"\1 \2:\3"),
    (r"^(.{10} [0-9]{1,2}:[0-9]{1,2}) ?([0-9]{1,2}) ?秒$", r"\1:\2"),
    (r"^(.{10})(?:T| +)([0-9]{1,2}):", r"\1 \2:"),
    (r"^(.{10}) ([0-9]):", r"\1 0\2:"),
    (r"^(.{13}):([0-9])($|:)", r"\1:0\2\3"),
    (r"^(.{16}):([0-9])$", r"\1:0\2"),
)


def parsed_dates(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Timestamps of text whose year comes first, null where it is something else.

    Text without a zone is UTC; one that has a zone gives all of them one.
    """
    text = pc.utf8_trim_whitespace(column)
    readable = pc.match_substring_regex(text, _ISO)
    if not pc.all(readable).as_py():
        for pattern, written in _AS_ISO:
            text = pc.replace_substring_regex(text, pattern, written)
        readable = pc.match_substring_regex(text, _ISO)
    text = pc.if_else(readable, pc.utf8_rtrim(text, "Z"), pa.scalar(None, text.type))
    try:
        return _cast_dates(text)
    except pa.ArrowInvalid:
        return _cast_dates(_on_real_days(text))


def _cast_dates(text: pa.ChunkedArray) -> pa.ChunkedArray:
    has_zone = pc.match_substring_regex(text, _ZONE)
    if not pc.any(has_zone).as_py():
        return text.cast(pa.timestamp("us"))
    is_bare = pc.match_substring_regex(text, "^.{10}$")
    zoned = pc.binary_join_element_wise(text, pc.if_else(is_bare, " 00:00Z", "Z"), "")
    return pc.if_else(has_zone, text, zoned).cast(pa.timestamp("us", "UTC"))


def _on_real_days(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Null for the 31st of June."""
    days = pc.utf8_slice_codeunits(text, 0, 10)
    real = [day for day in pc.unique(days).drop_null().to_pylist() if _is_day(day)]
    is_real = pc.is_in(days, value_set=pa.array(real, text.type))
    return pc.if_else(is_real, text, pa.scalar(None, text.type))


def _is_day(text: str) -> bool:
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        return False
    return True
