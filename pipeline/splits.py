"""Which interactions are the past (`knowledge`), and which are CTR rows (`train`, `valid`, `test`).

`global_time` cuts one clock. `per_user_prefix` is KAR's protocol (Xi et al., arXiv 2306.10933): it
gives every user a past, but a user's past may be later than another's CTR row.
"""

import hashlib
import math

import numpy as np
import pyarrow as pa

from pipeline.catalog_config import SplitSettings
from pipeline.errors import DataError
from pipeline.schemas import SPLITS

_KNOWLEDGE, _TRAIN, _VALID, _TEST = range(len(SPLITS))


def assign_splits(interactions: pa.Table, settings: SplitSettings) -> pa.ChunkedArray:
    """Name the split of every row.

    Args:
        interactions: sorted by (timestamp, user_id, item_id), which decides ties; rows of one
            user and second may fall on both sides of a prefix, so whoever joins the past to a CTR
            row must take strictly earlier rows only (timestamp < that row's).
        settings: protocol and shares.

    Raises:
        DataError: a part would be empty.
    """
    assign = _global_time if settings.protocol == "global_time" else _per_user_prefix
    codes = assign(interactions, settings)
    codes[_is_cold(interactions, settings.cold_items)] = _TEST
    sizes = np.bincount(codes, minlength=len(SPLITS))
    if not sizes.all():
        counts = ", ".join(f"{name} {size:,}" for name, size in zip(SPLITS, sizes, strict=True))
        raise DataError(
            f"the split {settings.protocol} leaves a part empty ({counts} of {len(codes):,} "
            f"interactions); {_REMEDIES[settings.protocol]}"
        )
    names = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(SPLITS))
    return pa.chunked_array([names]).cast(pa.string())


_REMEDIES = {
    "global_time": "change catalog.split.knowledge_share, train_share or valid_share, or give "
    "more interactions at different times (rows of one time are never parted)",
    "per_user_prefix": "change catalog.split.train_share or valid_share, or give more users with "
    "at least two interactions",
}


def _global_time(interactions: pa.Table, settings: SplitSettings) -> np.ndarray:
    """Cut where the shares of rows are reached, between two times: (rows,) int8."""
    times = interactions["timestamp"].to_numpy()
    past = _cut(times, settings.knowledge_share * len(times))
    rest = len(times) - past
    train = _cut(times, past + settings.train_share * rest)
    valid = _cut(times, past + (settings.train_share + settings.valid_share) * rest)
    codes = np.full(len(times), _TEST, np.int8)
    codes[:valid], codes[:train], codes[:past] = _VALID, _TRAIN, _KNOWLEDGE
    return codes


def _cut(times: np.ndarray, wanted: float) -> int:
    """The border nearest to `wanted` that parts no two rows of the same time."""
    row = min(math.floor(wanted), len(times) - 1)
    left, right = (int(np.searchsorted(times, times[row], side)) for side in ("left", "right"))
    return left if wanted - left <= right - wanted else right


def _per_user_prefix(interactions: pa.Table, settings: SplitSettings) -> np.ndarray:
    """First min(ceil(n / 2), limit) rows of each user, the others by user: (rows,) int8."""
    encoded = interactions["user_id"].combine_chunks().dictionary_encode()
    users = encoded.indices.to_numpy()  # (rows,)
    counts = np.bincount(users)
    order = np.argsort(users, kind="stable")  # by user, then by time
    starts = np.cumsum(counts) - counts
    position = np.empty(len(users), np.int64)
    position[order] = np.arange(len(users)) - np.repeat(starts, counts)
    past = np.minimum((counts + 1) // 2, settings.history_limit)  # (users,)
    parts = _parts_of_users(encoded.dictionary, counts > past, settings)
    return np.where(position < past[users], _KNOWLEDGE, parts[users]).astype(np.int8)


def _parts_of_users(
    user_ids: pa.Array, has_ctr_rows: np.ndarray, settings: SplitSettings
) -> np.ndarray:
    """Train, valid or test for every user, by rank of a hash of the id: (users,) int8.

    Ranks hit the shares as exactly as whole users can; the hash keeps the choice independent of
    the order of files and of any random state.
    """
    hashes = np.array([_hash(user) for user in user_ids.to_pylist()], np.uint64)
    ranked = np.argsort(hashes, kind="stable")
    ranked = ranked[has_ctr_rows[ranked]]
    train = round(settings.train_share * len(ranked))
    valid = round((settings.train_share + settings.valid_share) * len(ranked))
    parts = np.full(len(hashes), _TRAIN, np.int8)
    parts[ranked[train:valid]], parts[ranked[valid:]] = _VALID, _TEST
    return parts


def _is_cold(interactions: pa.Table, share: float) -> np.ndarray:
    """Rows of the items that are made cold, by rank of a hash of the id: (rows,) bool."""
    encoded = interactions["item_id"].combine_chunks().dictionary_encode()
    hashes = np.array([_hash(item) for item in encoded.dictionary.to_pylist()], np.uint64)
    is_cold = np.zeros(len(hashes), bool)
    is_cold[np.argsort(hashes, kind="stable")[: round(share * len(hashes))]] = True
    return is_cold[encoded.indices.to_numpy()]


def _hash(entity_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(entity_id.encode(), digest_size=8).digest(), "little")
