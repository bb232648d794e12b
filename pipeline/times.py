"""Units of timestamps, told apart by when things happen: from 1990 until tomorrow."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import datetime as dt
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.data_sets import damaged

TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000}  # of `catalog.timestamp_unit`, per second
ALL_TICKS = TICKS | {"ns": 1_000_000_000}  # and what logs have that no setting names

_EARLIEST = 631_152_000  # 1990-01-01; a timestamp before it is in another unit or not a time
_DAY = 86_400


def is_plausible(times: pa.ChunkedArray, ticks: int) -> pa.ChunkedArray:
    """Whether each time lies between 1990 and tomorrow; null counts as plausible."""
    latest = (int(time.time()) + _DAY) * ticks
    inside = pc.and_(pc.greater_equal(times, _EARLIEST * ticks), pc.less_equal(times, latest))
    return pc.fill_null(inside, True)


def with_date(ticks: int, per_second: int = 1) -> str:
    """A time as it is stored, and as a person reads it; the number alone if no calendar has it."""
    try:
        date = dt.datetime.fromtimestamp(ticks // per_second, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return str(ticks)
    return f"{ticks} = {date:%Y-%m-%d %H:%M:%S} UTC"


def better_unit(times: pa.ChunkedArray, unit: str) -> tuple[str, int] | None:
    """Another unit that most times fit, and how many; None if none does. `times` has no null."""
    own = pc.sum(is_plausible(times, TICKS[unit])).as_py() or 0
    if 2 * own >= len(times):
        return None
    for other, ticks in ALL_TICKS.items():
        count = pc.sum(is_plausible(times, ticks)).as_py() or 0
        if 2 * count > len(times):
            return other, count
    return None


def require_unit(times: pa.ChunkedArray, unit: str, file: Path, origin: str) -> None:
    """Refuse a published file with times in another unit than it is published with.

    No time is plausible in two units, so one is enough. What fits none is for `validation` to say.

    Raises:
        DataError: how many, and how to get a good file.
    """
    known = times.drop_null()
    for other, ticks in ALL_TICKS.items():
        wrong = known.filter(is_plausible(known, ticks))
        if other != unit and len(wrong):
            first = with_date(wrong[0].as_py(), ticks)
            found = f"{len(wrong):,} of {len(times):,} timestamps in {other} ({first}, ...)"
            raise damaged(file, f"has {found}, but is published with {unit}", origin)
