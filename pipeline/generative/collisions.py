"""What becomes of items whose nearest codes are the same.

Warm items come first, then all others, each in the order given: of colliding items the first keeps
its codes, and gets the counter 0. Ids that are taken already, be it by items that have left, stay
as they are, and no other item gets one: what a model has learnt to say of an id it would say of the
wrong item. `bucket` alone shares them, since there an id means whoever is like that.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np

from pipeline.errors import ConfigError
from pipeline.generative.code_tree import lexicographic_order

Policy = Literal["counter", "reassign", "bucket"]
Choices = Callable[[np.ndarray], np.ndarray]  # rows -> their last codes, nearest first: (rows, k)


def group_equal(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number of the group of equal rows each row is in, and the sizes of groups."""
    order = lexicographic_order(codes)
    ordered = codes[order]
    is_new = np.ones(len(codes), bool)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    group = np.empty(len(codes), np.int64)
    group[order] = np.cumsum(is_new) - 1
    return group, np.bincount(group, minlength=0)


def resolve(
    policy: Policy,
    codes: np.ndarray,
    is_warm: np.ndarray,
    size: int,
    choices: Choices,
    taken: np.ndarray | None = None,
) -> np.ndarray:
    """Ids of all items: (n, levels) int32, with `counter` one code more.

    Args:
        policy: see `SemanticIdSettings.collisions`.
        codes: the nearest ones, (n, levels).
        is_warm: (n,).
        size: of the last codebook, and the bound of counters.
        choices: asked by `reassign`, about colliding items only.
        taken: ids of other items, (any, length of an id).

    Raises:
        ConfigError: more items collide than there are counters or free codes.
    """
    if policy == "bucket":
        return codes.astype(np.int32)
    priority = np.argsort(~is_warm, kind="stable")
    if policy == "counter":
        taken = np.empty((0, codes.shape[1] + 1), np.int32) if taken is None else taken
        return _counted(codes, priority, size, taken)
    return _reassigned(codes, priority, choices, codes[:0] if taken is None else taken)


def _counted(codes: np.ndarray, priority: np.ndarray, size: int, taken: np.ndarray) -> np.ndarray:
    """One more code: the number of the item among those of the same codes, after those taken."""
    group, sizes = group_equal(np.concatenate([taken[:, :-1], codes]))
    taken_group, group = group[: len(taken)], group[len(taken) :]
    next_free = np.zeros(len(sizes), np.int64)
    np.maximum.at(next_free, taken_group, taken[:, -1] + 1)
    order = priority[np.argsort(group[priority], kind="stable")]  # group by group
    own = np.bincount(group, minlength=len(sizes))
    before = np.cumsum(own) - own
    counter = np.empty(len(codes), np.int64)
    counter[order] = np.arange(len(codes)) - before[group[order]]
    counter += next_free[group]
    if (counter >= size).any():
        raise ConfigError(
            f"semantic_ids: {int(counter.max()) + 1} items have the same codes, and a counter ends "
            f"at {size - 1}: {int((counter >= size).sum())} items get no id (are "
            f"their texts the same?); {_remedy(taken, 'bucket')}"
        )
    return np.column_stack([codes, counter]).astype(np.int32)


def _remedy(taken: np.ndarray, policies: str) -> str:
    """What to change: codebooks that are there already cannot grow."""
    if len(taken):
        return "leave semantic_ids.from_run out, and train the recommender on new codebooks"
    return (
        "raise semantic_ids.codebook_size or semantic_ids.levels, or set semantic_ids.collisions "
        f"to {policies}"
    )


def _reassigned(
    codes: np.ndarray, priority: np.ndarray, choices: Choices, taken: np.ndarray
) -> np.ndarray:
    """The first item of each group keeps its codes; the others take the nearest last code free.

    If the codes are taken, no item of the group keeps them.
    """
    codes = codes.astype(np.int32)
    group, sizes = group_equal(np.concatenate([taken, codes]))
    taken_group, group = group[: len(taken)], group[len(taken) :]
    first = np.full(len(sizes), len(codes))
    place = np.empty(len(codes), np.int64)
    place[priority] = np.arange(len(codes))
    np.minimum.at(first, group, place)
    first[taken_group] = -1
    moves = first[group[priority]] != np.arange(len(codes))
    moved, kept = priority[moves], np.concatenate([taken, codes[priority[~moves]]])
    prefixes = {tuple(row) for row in codes[moved, :-1].tolist()}
    used: dict[tuple[int, ...], set[int]] = {prefix: set() for prefix in prefixes}
    for *prefix, last in kept.tolist():
        if (own := used.get(tuple(prefix))) is not None:
            own.add(last)
    without = 0
    for row, order in zip(moved.tolist(), choices(moved).tolist(), strict=True):
        own = used[tuple(codes[row, :-1].tolist())]
        free = next((code for code in order if code not in own), None)
        if free is None:
            without += 1
            continue
        own.add(free)
        codes[row, -1] = free
    if without:
        raise ConfigError(
            f"semantic_ids: {len(moved)} items collide, and for {without} of them all codes of the "
            f"last level are taken; {_remedy(taken, 'counter or bucket')}"
        )
    return codes
