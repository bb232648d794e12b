"""RECOMMENDATIONS from lists, and from users for whom there are none."""

import numpy as np
import pyarrow as pa

from pipeline.generative.event_log import NO_ITEM
from pipeline.generative.recommending import Lists, Users
from pipeline.schemas import LIST_SOURCES, RECOMMENDATIONS

ERROR = "error"  # exit reason


def users_of(block: pa.Table, seed: int) -> Users:
    """A batch out of USER_ROWS."""
    history, seen = (block[name].combine_chunks() for name in ("history", "seen"))
    counts = np.diff(history.offsets.to_numpy())
    most = int(counts.max(initial=0))
    histories = np.full((len(counts), most), NO_ITEM)
    histories[np.arange(most) < counts[:, None]] = history.flatten().to_numpy()
    sizes = np.diff(seen.offsets.to_numpy())
    return Users(
        histories,
        np.repeat(np.arange(len(sizes)), sizes),
        seen.flatten().to_numpy(),
        seed + block["row"].to_numpy(),
    )


def as_rows(block: pa.Table, lists: Lists, item_ids: pa.Array) -> pa.Table:
    """RECOMMENDATIONS of the users of a block of USER_ROWS."""
    is_there = lists.items != NO_ITEM
    ids = item_ids.take(pa.array(lists.items[is_there]))
    sources = pa.array(LIST_SOURCES).take(pa.array(lists.sources[is_there]))
    columns = [
        *_told(block),
        _lists(is_there, ids),
        _lists(is_there, pa.array(lists.scores[is_there], pa.float32())),
        _lists(is_there, sources),
        *(pa.array(own, pa.int32()) for own in (lists.calls, lists.nodes_scored)),
        *(pa.array(own, pa.int32()) for own in (lists.accepted_levels, lists.rounds)),
        pa.array(lists.valid_share, pa.float32()),
        pa.array(lists.exit_reasons),
        pa.array([""] * block.num_rows),
    ]
    return pa.table(dict(zip(RECOMMENDATIONS.names, columns, strict=True)), RECOMMENDATIONS)


def as_error_rows(block: pa.Table, cause: str) -> pa.Table:
    """RECOMMENDATIONS of users whose search failed."""
    count = block.num_rows
    columns = [
        *_told(block),
        *([[]] * count for _ in range(3)),
        *([0] * count for _ in range(4)),
        [0.0] * count,
        [ERROR] * count,
        [cause] * count,
    ]
    return pa.table(dict(zip(RECOMMENDATIONS.names, columns, strict=True)), RECOMMENDATIONS)


def _told(block: pa.Table) -> list[pa.Array | pa.ChunkedArray]:
    read = pa.array(np.diff(block["history"].combine_chunks().offsets.to_numpy()), pa.int32())
    own = [block[name] for name in ("user_id", "asof", "latest_source")]
    return [*own, read, block["unknown_items"]]


def _lists(is_there: np.ndarray, values: pa.Array) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(is_there.sum(1))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
