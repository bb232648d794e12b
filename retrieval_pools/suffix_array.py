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
_WAITING = 2 * 64  # ends of parts; the smaller part goes first, so there are at most 64


def join(documents: Sequence[np.ndarray]) -> np.ndarray:
    """One array of all documents, each behind a separator, closed by one: (n + 1,) int32."""
    separator = np.array([SEPARATOR], np.int32)
    pieces = [piece for document in documents for piece in (separator, document)]
    return np.concatenate([*pieces, separator]).astype(np.int32, copy=False)


def sort_suffixes(tokens: np.ndarray, depth: int, places: np.ndarray | None = None) -> np.ndarray:
    """Start positions sorted by their first `depth` tokens, then by position: (n,) int32.

    `tokens` (n + 1,) int32 as `join` gives them; `places` names the starts, ascending, all but the
    closing separator unless given. Sorted token by token, and only what is still tied: a token and
    its place make one key of 64 bits, so a suffix is looked up once per token and compared where
    it lies. Takes 16 bytes a start, 12 of them beside the result.
    """
    starts = np.arange(len(tokens) - 1, dtype=np.int32) if places is None else places
    keys = tokens[starts].astype(np.int64)
    keys <<= _BITS
    keys += starts
    keys.sort()
    ends, later = np.empty(depth, np.int64), np.empty(_WAITING, np.int64)
    _sort_ties(read_only(tokens), keys, ends, later, depth)
    return keys.astype(np.int32)  # the lower half


@kernel(integer(array(np.int64), integer, integer))
def _split(keys: np.ndarray, begin: int, end: int) -> int:
    """Move what is below a pivot in front of the rest; return where that begins (Hoare 1961).

    The pivot's place is scrambled: templated text leaves ascending runs with a stray or two, on
    which a median of first, middle and last splits off one key at a time.
    """
    span = end - begin
    scrambled = ((begin * 1_000_003 + span) * 2_654_435_761) & _PLACE
    pivot = keys[begin + scrambled % (span - 1)]  # never the last one: both parts hold keys
    low, high = begin - 1, end
    while True:
        low += 1
        while keys[low] < pivot:
            low += 1
        high -= 1
        while keys[high] > pivot:
            high -= 1
        if low >= high:
            return high + 1
        keys[low], keys[high] = keys[high], keys[low]


@kernel(nothing(array(np.int64), integer, integer))
def _insert(keys: np.ndarray, begin: int, end: int) -> None:
    for place in range(begin + 1, end):
        key, hole = keys[place], place
        while hole > begin and keys[hole - 1] > key:
            keys[hole] = keys[hole - 1]
            hole -= 1
        keys[hole] = key


@kernel(nothing(array(np.int64), integer, integer, array(np.int64)))
def _sort(keys: np.ndarray, begin: int, end: int, later: np.ndarray) -> None:
    """Sort keys[begin:end], all distinct; `later` holds parts that wait, larger ones."""
    waiting = 0
    while True:
        while end - begin > _FEW:
            middle = _split(keys, begin, end)
            if middle - begin < end - middle:
                later[waiting], later[waiting + 1], end = middle, end, middle
            else:
                later[waiting], later[waiting + 1], begin = begin, middle, middle
            waiting += 2
        _insert(keys, begin, end)
        if waiting == 0:
            return
        waiting -= 2
        begin, end = later[waiting], later[waiting + 1]


@kernel(nothing(ids, array(np.int64), array(np.int64), array(np.int64), integer))
def _sort_ties(
    text: np.ndarray, keys: np.ndarray, ends: np.ndarray, later: np.ndarray, depth: int
) -> None:
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
            _sort(keys, begin, end, later)
