"""RECOMMENDATIONS joined to the CTR rows: whether the row's item is in the user's list, and where.

Unlike knowledge this says something of a user and an item together, so no vector of either could
hold it. See `features.ctr.guard` for what is refused.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.ctr.data import CtrData
from features.ctr.guard import require_past_lists
from pipeline.errors import DataError

WIDTH = 3  # listed, discount of the rank, score

_LEAST_DEVIATION = 1e-6


@dataclass(frozen=True)
class CandidateLists:
    """What lists say of the pairs that CTR rows are about; of a pair not listed, zeros."""

    num_items: int
    keys: np.ndarray  # (pairs,) int64, user * num_items + item, ascending
    # (pairs, WIDTH) float32: 1; 1 / log2(1 + rank), the first has rank 1; the score, standardised
    values: np.ndarray

    def of_rows(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """(rows, WIDTH) float32 of users and items (rows,), positions in the catalog."""
        key = users.astype(np.int64) * self.num_items + items
        told = np.zeros((len(key), WIDTH), np.float32)
        if len(self.keys):
            place = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
            is_listed = self.keys[place] == key
            told[is_listed] = self.values[place[is_listed]]
        return told

    def coverage(self, data: CtrData, split: str) -> float:
        """Share of the rows of `split` whose item is in the user's list."""
        rows = data.splits[split]
        return float(self.of_rows(data.users[rows], data.items[rows])[:, 0].mean())


def join_lists(data: CtrData, lists: pa.Table, splits: list[str], protocol: str) -> CandidateLists:
    """Lists of all users of the catalog.

    Args:
        data: the CTR rows.
        lists: RECOMMENDATIONS.
        splits: whose interactions the lists may know.
        protocol: of the split that `data` has.

    Raises:
        DataError: lists that know a CTR row, a user without a row or with two, an item that the
            catalog lacks or that stands twice in a list.
    """
    require_past_lists(data, lists, splits, protocol)
    counts = pc.list_value_length(lists["item_ids"]).to_numpy()
    users = np.repeat(_places(lists["user_id"], data.user_ids), counts)
    items = _places(pc.list_flatten(lists["item_ids"]), data.item_ids)
    rank = 1 + np.arange(len(items)) - np.repeat(np.cumsum(counts) - counts, counts)
    scores = pc.list_flatten(lists["scores"]).to_numpy()
    if len(scores) != len(items) or not np.isfinite(scores).all():
        raise DataError("recommendations: scores are missing or not finite; run recommend again")
    values = np.stack([np.ones(len(items)), 1 / np.log2(1 + rank), _standardised(scores)], axis=1)
    keys = users * len(data.item_ids) + items
    asked = np.unique(data.users.astype(np.int64) * len(data.item_ids) + data.items)
    order = np.argsort(keys)
    if (np.diff(keys[order]) == 0).any():
        raise DataError("recommendations: an item stands twice in a list; run recommend again")
    order = order[np.isin(keys[order], asked)]
    return CandidateLists(len(data.item_ids), keys[order], values[order].astype(np.float32))


def _standardised(scores: np.ndarray) -> np.ndarray:
    """Over all lists."""
    if not len(scores):
        return scores
    deviation = scores.std()
    return (scores - scores.mean()) / (deviation if deviation > _LEAST_DEVIATION else 1.0)


def _places(ids: pa.ChunkedArray | pa.Array, catalog: pa.ChunkedArray) -> np.ndarray:
    place = pc.index_in(ids, value_set=catalog.combine_chunks())
    if place.null_count:
        unknown = pc.unique(ids.filter(pc.is_null(place)))[:3].to_pylist()
        raise DataError(
            f"recommendations name what the catalog lacks, such as {unknown}; run recommend again"
        )
    return place.to_numpy().astype(np.int64)
