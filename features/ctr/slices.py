"""Parts of the test rows: warm and cold entities, head and tail of the catalog.

*Warm* users have a train row, *warm* items have one or stand in the history of one, which shares
their embeddings; of *cold* ones training saw nothing, so their ids say nothing. *Head* are the most
frequent items that together hold half of the train rows, *tail* are all others. Users and items are
also told apart by whose texts their vector is from, as far as such occur in test rows. A part that
cannot be measured has no AUC, and says why.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from features.ctr.data import CtrData, marked
from features.ctr.metrics import auc

_HEAD_SHARE = 0.5  # of the train rows
_SOURCES = {  # in words, in the order of VECTOR_SOURCES
    "own": "with own text",
    "group": "by group",
    "default": "by default",
    "none": "without knowledge",
}
_LEAST_ROWS = 50  # of either label; below, an AUC is off by 0.05 and more


def slices_of(data: CtrData) -> dict[str, dict[str, Any]]:
    """Each slice: `rows`, `users`, `liked` of its test rows, and the `reason` if it has no AUC."""
    test = data.splits["test"]
    labels, users = data.labels[test], data.users[test]
    return {
        name: {
            "rows": int(is_in.sum()),
            "users": len(np.unique(users[is_in])),
            "liked": int(labels[is_in].sum()),
            "reason": _why_not(labels[is_in]),
        }
        for name, is_in in _masks(data).items()
    }


def slice_aucs(
    data: CtrData, scores: Mapping[str, np.ndarray]
) -> dict[str, dict[str, float | None]]:
    """For each slice the AUC of every arm, its mean over seeds; None where there is a reason.

    Args:
        data: the CTR rows.
        scores: arm -> (seeds, test rows) probabilities.
    """
    labels = data.labels[data.splits["test"]]
    return {
        name: {
            arm: None
            if _why_not(labels[is_in])
            else float(np.mean([auc(labels[is_in], row[is_in]) for row in rows]))
            for arm, rows in scores.items()
        }
        for name, is_in in _masks(data).items()
    }


def _masks(data: CtrData) -> dict[str, np.ndarray]:
    """Slice -> which test rows are in it, (test rows,) bool."""
    train, test = data.splits["train"], data.splits["test"]
    is_warm_user = marked(data.users[train], len(data.user_ids))[data.users[test]]
    frequency = np.bincount(data.items[train], minlength=len(data.item_ids))
    codes = data.item_fields.codes[:, 0]
    in_history = marked(data.history_items[train].ravel(), codes.max(initial=0) + 1)
    is_warm_item = ((frequency > 0) | (in_history[codes] & (codes > 0)))[data.items[test]]
    is_head = _head(frequency)[data.items[test]]
    return {
        "warm users": is_warm_user,
        "cold users": ~is_warm_user,
        "warm items": is_warm_item,
        "cold items": ~is_warm_item,
        "head items": is_head,
        "tail items": ~is_head,
    } | _by_source(data)


def _by_source(data: CtrData) -> dict[str, np.ndarray]:
    """Slices by the source of the vectors; those without a test row are left out."""
    owners = {"user": data.users, "item": data.items}
    found = {
        f"{kind}s {words}": sources[owners[kind][data.splits["test"]]] == source
        for kind, sources in data.sources.items()
        for source, words in _SOURCES.items()
    }
    return {name: is_in for name, is_in in found.items() if is_in.any()}


def _head(frequency: np.ndarray) -> np.ndarray:
    """The fewest items that hold the share of rows: (items,) bool; the earlier of equals."""
    order = np.argsort(-frequency, kind="stable")
    before = np.cumsum(frequency[order]) - frequency[order]  # rows of more frequent items
    return marked(order[before < _HEAD_SHARE * frequency.sum()], len(frequency))


def _why_not(labels: np.ndarray) -> str:
    """Why these rows have no AUC worth telling, "" if they have."""
    liked = int(labels.sum())
    disliked = len(labels) - liked
    if not len(labels):
        return "no test row is of this kind"
    if not min(liked, disliked):
        return f"all {len(labels)} test rows have one label"
    if min(liked, disliked) < _LEAST_ROWS:
        return f"{liked} liked and {disliked} other test rows; {_LEAST_ROWS} of each are needed"
    return ""
