"""CTR rows with point-in-time histories, as numpy arrays.

A history holds what its user did strictly before the row: of two interactions with one timestamp
neither sees the other, since nobody knows which came first (in MovieLens every second row has such
a twin).
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.ctr.fields import Fields, make_fields
from pipeline.errors import DataError

CTR_SPLITS = ("train", "valid", "test")
DISLIKED, LIKED = 1, 2  # history signals; 0 is padding


@dataclass(frozen=True)
class CtrData:
    """What every arm of the check shares; `users` and `items` are positions in the catalog."""

    user_ids: pa.ChunkedArray
    item_ids: pa.ChunkedArray
    users: np.ndarray  # (rows,) int32
    items: np.ndarray  # (rows,) int32
    timestamps: np.ndarray  # (rows,) int64
    labels: np.ndarray  # (rows,) float32, 0 or 1
    splits: dict[str, np.ndarray]  # train | valid | test -> its rows
    history_items: np.ndarray  # (rows, history) int32 id codes, latest first, 0 = none or unknown
    history_signals: np.ndarray  # (rows, history) int8: 0 padding, DISLIKED, LIKED
    user_fields: Fields
    item_fields: Fields
    # kind -> (entities,) source of the vector, one of VECTOR_SOURCES; {} before features are joined
    sources: Mapping[str, np.ndarray] = field(default_factory=dict)


def make_ctr_data(
    interactions: pa.Table, users: pa.Table, items: pa.Table, history_length: int
) -> CtrData:
    """Arrays of all rows whose split is train, valid or test.

    Raises:
        DataError: an interaction names an entity that the catalog lacks, a split has no rows, or
            train or valid lacks one of the two labels.
    """
    split = interactions["split"].to_numpy()
    owners = _positions(interactions["user_id"], users["user_id"], "users")
    objects = _positions(interactions["item_id"], items["item_id"], "items")
    timestamps = interactions["timestamp"].to_numpy()
    labels = (interactions["label"].to_numpy() > 0).astype(np.float32)
    is_known, is_trained = np.isin(split, ["knowledge", "train"]), split == "train"
    user_fields = _fields(users, owners[is_known], owners[is_trained])
    item_fields = _fields(items, objects[is_known], objects[is_trained])
    if not _recur(owners[is_trained], owners[split == "valid"]):
        user_fields = user_fields.without_id("most users of valid rows have no train row")
    rows = np.flatnonzero(np.isin(split, CTR_SPLITS))
    splits = {name: np.flatnonzero(split[rows] == name) for name in CTR_SPLITS}
    _require_labels(labels[rows], splits)
    past = latest_before(owners, timestamps, rows, history_length)
    return CtrData(
        user_ids=users["user_id"],
        item_ids=items["item_id"],
        users=owners[rows],
        items=objects[rows],
        timestamps=timestamps[rows],
        labels=labels[rows],
        splits=splits,
        history_items=np.where(past < 0, 0, item_fields.codes[objects[past], 0]),
        history_signals=np.where(past < 0, 0, DISLIKED + labels[past]).astype(np.int8),
        user_fields=user_fields,
        item_fields=item_fields,
    )


def latest_before(
    owners: np.ndarray, timestamps: np.ndarray, rows: np.ndarray, length: int
) -> np.ndarray:
    """The latest events of the owner of each row, strictly before the row's timestamp.

    Args:
        owners: (events,) who did it.
        timestamps: (events,); the later in the table counts as the later among equals.
        rows: (rows,) events to look back from.
        length: events to give at most.

    Returns:
        (rows, length) positions of events, latest first, -1 where there are no more.
    """
    order = np.lexsort((timestamps, owners))
    times, clock = np.unique(timestamps, return_inverse=True)
    first_key = owners.astype(np.int64) * len(times)
    keys = first_key + clock  # one number that sorts by (owner, timestamp)
    ordered = keys[order]
    first = np.searchsorted(ordered, first_key[rows], "left")
    end = np.searchsorted(ordered, keys[rows], "left")  # before every event of the same time
    places = end[:, None] - 1 - np.arange(length)  # (rows, length)
    return np.where(places >= first[:, None], order[np.maximum(places, 0)], -1)


def marked(positions: np.ndarray, total: int) -> np.ndarray:
    """Which of `total` entities occur in `positions`: (total,) bool."""
    marks = np.zeros(total, bool)
    marks[positions] = True
    return marks


def _fields(entities: pa.Table, known: np.ndarray, trained: np.ndarray) -> Fields:
    total = entities.num_rows
    return make_fields(entities["attributes"], marked(known, total), marked(trained, total))


def _recur(trained: np.ndarray, valid: np.ndarray) -> bool:
    """Whether at least half of the validation rows belong to entities with a train row.

    Where they do not, as in a split by users, an id can only be learned by heart: on the demo it
    costs the base arm 0.01 to 0.02 AUC, which knowledge would then seem to win back.
    """
    return bool(np.isin(valid, trained).mean() >= 0.5)


def _positions(ids: pa.ChunkedArray, catalog: pa.ChunkedArray, kind: str) -> np.ndarray:
    """Where each id stands in the catalog: (rows,) int32."""
    found = pc.index_in(ids, value_set=catalog.combine_chunks())
    if found.null_count:
        unknown = pc.unique(ids.filter(pc.is_null(found))).to_pylist()
        raise DataError(
            f"interactions name {len(unknown)} {kind} that the catalog lacks, such as "
            f"{unknown[:3]}; run `laser catalog` again"
        )
    return found.to_numpy()


def _require_labels(labels: np.ndarray, splits: dict[str, np.ndarray]) -> None:
    for name, rows in splits.items():
        found = len(np.unique(labels[rows]))
        needed = 1 if name == "test" else 2  # a test part of one label is reported as such
        if found < needed:
            raise DataError(
                f"interactions: the {len(rows)} {name} rows hold {found} of the 2 labels; change "
                "catalog.split or catalog.positive_rating, or bring more data"
            )
