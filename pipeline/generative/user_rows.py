"""What a recommender is told of every user: histories, and what is not to be recommended again."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.generative.event_log import NO_ITEM, EventLog, read_event_log

# One row per user. `history` holds the latest liked items that have a semantic ID, the oldest
# first, `seen` all items that must not be recommended; both are rows of SEMANTIC_IDS.
USER_ROWS = pa.schema(
    [
        ("user_id", pa.string()),
        ("row", pa.int64()),  # of USERS
        ("asof", pa.int64()),
        ("latest_source", pa.int64()),
        ("unknown_items", pa.int32()),
        ("history", pa.list_(pa.int64())),
        ("seen", pa.list_(pa.int64())),
    ]
)


@dataclass(frozen=True)
class UserRows:
    """Users in the order of the catalog."""

    user_ids: pa.Array
    asof: int  # timestamp of the latest interaction of anybody, 0 if there is none
    latest: np.ndarray  # (users,) int64, of the user's own, 0 if there is none
    unknown: np.ndarray  # (users,) int64, liked items without a semantic ID
    liked: EventLog  # of items that have one
    seen: EventLog  # likewise, liked or not

    def block(self, start: int, stop: int, most: int, has_seen: bool) -> pa.Table:
        """USER_ROWS of users `start` to `stop`, with the latest `most` items of each history."""
        rows = np.arange(start, stop)
        history = self.liked.latest(rows, most)
        columns = [
            self.user_ids.slice(start, stop - start),
            rows,
            np.full(len(rows), self.asof),
            self.latest[rows],
            self.unknown[rows].astype(np.int32),
            _lists(history[history != NO_ITEM], (history != NO_ITEM).sum(1)),
            _lists(*_slice(self.seen, start, stop)) if has_seen else [[]] * len(rows),
        ]
        return pa.table(dict(zip(USER_ROWS.names, columns, strict=True)), schema=USER_ROWS)


def read_user_rows(
    interactions: pa.Table, user_ids: pa.Array, item_ids: pa.Array, num_known: int
) -> UserRows:
    """Args: interactions that may be known; items, of which the first `num_known` have an id.

    Raises:
        DataError: an interaction names a user or an item that the catalog lacks.
    """
    liked = read_event_log(interactions, user_ids, item_ids)
    label = interactions.schema.get_field_index("label")
    ones = pa.array(np.ones(interactions.num_rows, np.int8))
    every = read_event_log(interactions.set_column(label, "label", ones), user_ids, item_ids)
    unknown = np.bincount(liked.users[liked.items >= num_known], minlength=len(user_ids))
    latest = np.zeros(len(user_ids), np.int64)
    has_any = np.diff(every.starts) > 0
    latest[has_any] = every.times[every.starts[1:][has_any] - 1]
    asof = pc.max(interactions["timestamp"]).as_py() or 0
    known, seen = (_of_items(log, num_known) for log in (liked, every))
    return UserRows(user_ids, asof, latest, unknown, known, seen)


def _of_items(log: EventLog, num_known: int) -> EventLog:
    keep = log.items < num_known
    counts = np.bincount(log.users[keep], minlength=log.num_users)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return EventLog(starts, log.items[keep], log.times[keep], log.splits[keep])


def _slice(log: EventLog, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Items of some users, one after another, and how many of each."""
    starts = log.starts[start : stop + 1]
    return log.items[starts[0] : starts[-1]], np.diff(starts)


def _lists(values: np.ndarray, counts: np.ndarray) -> pa.ListArray:
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values, pa.int64()))
