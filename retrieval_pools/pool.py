"""Pools of earlier knowledge: one per group and a global one, as flat arrays."""

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pipeline.errors import DataError
from retrieval_pools.compiled import read_only
from retrieval_pools.document import Document
from retrieval_pools.eviction import evict, size_of, stays
from retrieval_pools.marks import make_marks
from retrieval_pools.suffix_array import SEPARATOR, join, sort_suffixes

log = logging.getLogger(__name__)

ARRAYS = ("tokens", "group_suffixes", "global_suffixes", "group_marks", "global_marks")
_MAX_PLACES = np.iinfo(np.int32).max  # suffixes are int32


@dataclass(frozen=True)
class Pool:
    """One group's slice of the group suffixes, and of the tokens; and what it holds."""

    first: int
    last: int  # exclusive
    num_documents: int
    num_tokens: int
    num_relaxed: int = 0  # documents that count half


@dataclass(frozen=True)
class PoolSet:
    """All pools of a wave, frozen: read-only arrays, see `suffix_array` and `marks`."""

    depth: int  # tokens that suffixes are sorted by
    groups: Mapping[str, Pool]
    tokens: np.ndarray  # (tokens + documents + 1,) int32
    group_suffixes: np.ndarray  # (tokens + documents,) int32
    global_suffixes: np.ndarray  # (tokens + documents,) int32, fewer where `max_bytes` bounds it
    group_marks: np.ndarray  # int64, which of the group suffixes are of relaxed text
    global_marks: np.ndarray  # int64

    @property
    def num_documents(self) -> int:
        """Documents in all groups."""
        return sum(pool.num_documents for pool in self.groups.values())

    @property
    def num_tokens(self) -> int:
        """Tokens of text in all groups."""
        return sum(pool.num_tokens for pool in self.groups.values())

    @property
    def num_relaxed(self) -> int:
        """Documents in all groups that count half."""
        return sum(pool.num_relaxed for pool in self.groups.values())

    @property
    def bytes_per_token(self) -> float:
        """Size of all arrays per token of text; 0 if there is no text.

        12 per token and 12 per document, half a byte more for each where a text is relaxed.
        """
        size = sum(getattr(self, name).nbytes for name in ARRAYS)
        return size / self.num_tokens if self.num_tokens else 0.0

    @staticmethod
    def empty() -> "PoolSet":
        """Pools without any text."""
        return build_pools({}, depth=2, max_bytes=1)

    def texts(self, group: str) -> list[np.ndarray]:
        """The texts of a group, oldest first, each (tokens,) int32."""
        pool = self.groups[group]
        places = self.tokens[pool.first : pool.last]
        starts = np.flatnonzero(places == SEPARATOR)
        return [text[1:] for text in np.split(places, starts)[1:]]


def build_pools(
    documents_by_group: Mapping[str, Sequence[Document]], depth: int, max_bytes: int
) -> PoolSet:
    """Pool the documents of every group, given oldest first.

    Suffixes are sorted by `depth` tokens. Where a group takes more than `max_bytes` its least
    worthy documents are left out (see `eviction`). The global pool has the same bound, and every
    group its share of it.

    Raises:
        DataError: a document is not a list of token ids, or all pools together are too large.
    """
    kept = {
        name: evict(name, _checked(name, documents_by_group[name]), max_bytes)
        for name in sorted(documents_by_group)
    }
    documents = [document for group in kept.values() for document in group]
    places = np.array([len(document.token_ids) + 1 for document in documents], np.int64)
    if places.sum() >= _MAX_PLACES:
        raise DataError(
            f"all pools together hold {places.sum() - len(places)} tokens, more than "
            f"{_MAX_PLACES}; lower pools.max_bytes"
        )
    tokens = join([document.token_ids for document in documents])
    groups = _layout(kept)
    is_global = np.repeat(_in_global(kept, max_bytes), places)
    in_global = np.flatnonzero(is_global).astype(np.int32)
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # kernels run side by side
        sort = partial(_sort_group, tokens, depth)
        later = threads.submit(sort_suffixes, tokens, depth, in_global)
        group_suffixes = np.concatenate([tokens[:0], *threads.map(sort, groups.values())])
        global_suffixes = later.result()
    is_relaxed = np.repeat(np.array([document.is_relaxed for document in documents], bool), places)
    return PoolSet(
        depth=depth,
        groups=groups,
        tokens=read_only(tokens),
        group_suffixes=read_only(group_suffixes),
        global_suffixes=read_only(global_suffixes),
        group_marks=make_marks(is_relaxed[group_suffixes]),
        global_marks=make_marks(is_relaxed[global_suffixes]),
    )


def _sort_group(tokens: np.ndarray, depth: int, pool: Pool) -> np.ndarray:
    """The suffixes of one group; the next group's first separator closes its last text."""
    return sort_suffixes(tokens[pool.first : pool.last + 1], depth) + np.int32(pool.first)


def _checked(name: str, documents: Sequence[Document]) -> list[Document]:
    """The documents with int32 arrays, without empty ones."""
    checked = []
    for number, document in enumerate(documents):
        ids = np.asarray(document.token_ids)
        is_text = ids.ndim == 1 and (not ids.size or ids.dtype.kind in "iu")
        if not is_text or (ids.size and not 0 <= ids.min() <= ids.max() <= _MAX_PLACES):
            raise DataError(
                f"pool {name}: document {number} is not a list of token ids (0 to {_MAX_PLACES})"
            )
        if ids.size:
            checked.append(replace(document, token_ids=ids.astype(np.int32)))
    return checked


def _layout(documents_by_group: Mapping[str, Sequence[Document]]) -> dict[str, Pool]:
    """Where the groups stand, one after the other."""
    groups: dict[str, Pool] = {}
    first = 0
    for name, documents in documents_by_group.items():
        tokens = sum(len(document.token_ids) for document in documents)
        last = first + tokens + len(documents)
        num_relaxed = sum(document.is_relaxed for document in documents)
        groups[name] = Pool(first, last, len(documents), tokens, num_relaxed)
        first = last
    return groups


def _in_global(documents_by_group: Mapping[str, Sequence[Document]], max_bytes: int) -> np.ndarray:
    """Which documents the global pool has room for: (documents,) bool.

    What its groups find least worthy leaves first.
    """
    sizes = [
        sum(size_of(len(document.token_ids) + 1) for document in documents)
        for documents in documents_by_group.values()
    ]
    total = max(sum(sizes), max_bytes)
    found = [np.empty(0, bool)]
    for documents, size in zip(documents_by_group.values(), sizes, strict=True):
        found.append(stays(documents, max_bytes * size // total))
    is_kept = np.concatenate(found)
    if not is_kept.all():
        log.info(
            "global pool: the least worthy %d of %d texts left out, over %d bytes",
            np.count_nonzero(~is_kept),
            len(is_kept),
            max_bytes,
        )
    return is_kept
