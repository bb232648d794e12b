"""Documents -> a sorted suffix array: a trie of token n-grams without node objects.

All documents stand in one array, each behind a separator that marks its start; one more separator
closes the array. A suffix ends where its document ends. The suffixes that share their first d
tokens are neighbours, so a trie node at depth d is an interval of the array, its count is the
interval's length, and the documents' starts are the interval of the separator.

12 bytes a token and 12 a document, with an index per group and one over everything; suffix trees
take 250 and more.
"""

from collections.abc import Sequence

import numpy as np

from retrieval_pools.compiled import array, ids, integer, kernel, nothing, read_only

SEPARATOR = -1  # token ids are never negative

_BITS = 32  # of a place, below its token: keys sort by token, then by place
_PLACE = (1 << _BITS) - 1
_FEW = 24  # keys that are sorted by insertion


def join(documents: Sequence[np.ndarray]) -> np.ndarray:
    """One array of all documents, each behind a separator, closed by one: (n + 1,) int32."""
    separator = np.array([SEPARATOR], np.int32)
    pieces = [piece for document in documents for piece in (separator, document)]
    return np.concatenate([*pieces, separator]).astype(np.int32, copy=False)


def sort_suffixes(tokens: np.ndarray, depth: int) -> np.ndarray:
    """Start positions sorted by their first `depth` tokens, then by position: (n,) int32.

    `tokens` (n + 1,) int32 as `join` gives them. The closing separator starts no suffix. Sorted
    token by token, and only what is still tied: a token and its place make one key of 64 bits, so
    a suffix is looked up once per token and compared where it lies. Takes 12 bytes a token.
    """
    keys = tokens[:-1].astype(np.int64)
    keys <<= _BITS
    keys += np.arange(len(keys), dtype=np.int32)
    keys.sort()
    _sort_ties(read_only(tokens), keys, np.empty(depth, np.int64), depth)
    return keys.astype(np.int32)  # the lower half


@kernel(nothing(array(np.int64), integer, integer), owns_arrays=True)
def _sort(keys: np.ndarray, begin: int, end: int) -> None:
    if end - begin > _FEW:
        keys[begin:end].sort()
        return
    for place in range(begin + 1, end):
        key, hole = keys[place], place
        while hole > begin and keys[hole - 1] > key:
            keys[hole] = keys[hole - 1]
            hole -= 1
        keys[hole] = key


@kernel(nothing(ids, array(np.int64), array(np.int64), integer))
def _sort_ties(text: np.ndarray, keys: np.ndarray, ends: np.ndarray, depth: int) -> None:
    """Sort `keys`, which are in the order of their first token, by up to `depth` tokens.

    A run at a level holds suffixes that share as many tokens, under keys of the token after these.
    Its own runs are sorted one by one, each down to the last level, before it goes on; `ends`
    (depth,) holds where the run of every level ends.
    """
    level, begin = 0, 0
    ends[0] = len(keys)
    while level >= 0:
        if begin == ends[level]:
            level -= 1
            continue
        token, end = keys[begin] >> _BITS, begin + 1
        while end < ends[level] and keys[end] >> _BITS == token:
            end += 1
        has_ended = token == SEPARATOR and level > 0  # what has ended is in the order of places
        if end - begin == 1 or level + 1 == depth or has_ended:
            begin = end
            continue
        level += 1
        ends[level] = end
        is_sorted = True
        for place in range(begin, end):
            start = keys[place] & _PLACE
            keys[place] = (np.int64(text[start + level]) << _BITS) + start
            if place > begin and keys[place - 1] > keys[place]:
                is_sorted = False
        if not is_sorted:
            _sort(keys, begin, end)
