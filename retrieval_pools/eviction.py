"""Which texts leave a pool that is too large.

A text is worth the share of its places whose next 8 tokens, fewer at its end, stand in another
text of the group too: what only one text says is hardly ever drafted. Text that was relaxed is
worth half. Age divides by 1 + newer / all, where `newer` counts texts of later waves: the
half-life is as many texts as the group has. The least worthy leave first, of equals the older.

Of equal texts one is judged, a greedy one if there is one, the newest of these; the others are
copies. A copy adds to a count, never a continuation, so copies are worth nothing and leave before
all else. Nor do they vouch for each other: what only they say, one text says.
"""

import logging
from collections.abc import Sequence

import numpy as np

from retrieval_pools.document import Document
from retrieval_pools.prefixes import shared_prefixes
from retrieval_pools.suffix_array import SEPARATOR, join, sort_suffixes

log = logging.getLogger(__name__)

_WINDOW = 8  # tokens that two texts must have in common
_RELAXED_WORTH = 0.5


def size_of(places: int) -> int:
    """Bytes that so many places take; a document has one for each token and one for its start.

    12.5 each: 4 of text, 4 of the group's index, 4 of the global one, and a quarter in each index
    to tell relaxed text from greedy.
    """
    return (25 * places + 1) // 2


def evict(name: str, documents: Sequence[Document], max_bytes: int) -> list[Document]:
    """The documents of a group that stay within `max_bytes`, in their order; says who leaves."""
    kept: list[Document] = []
    left: list[Document] = []
    for document, stay in zip(documents, stays(documents, max_bytes), strict=True):
        (kept if stay else left).append(document)
    if left:
        texts = {document.token_ids.tobytes() for document in kept}
        others = [document for document in left if document.token_ids.tobytes() not in texts]
        log.info(
            "pool %s: the least worthy %d of %d texts left out, over %d bytes: %d copies of what "
            "stays, %d others that were relaxed, %d that were not",
            name,
            len(left),
            len(documents),
            max_bytes,
            len(left) - len(others),
            sum(document.is_relaxed for document in others),
            sum(not document.is_relaxed for document in others),
        )
    return kept


def stays(documents: Sequence[Document], max_bytes: int) -> np.ndarray:
    """Which documents stay when the least worthy leave until the rest fits: (documents,) bool."""
    sizes = np.array([size_of(len(document.token_ids) + 1) for document in documents], np.int64)
    is_kept, excess = np.ones(len(documents), bool), int(sizes.sum()) - max_bytes
    if excess > 0:
        worth = worths(documents).tolist()
        keys = [(own, *_age(document)) for own, document in zip(worth, documents, strict=True)]
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__))
        leaving = np.searchsorted(np.cumsum(sizes[order]), excess) + 1
        is_kept[order[:leaving]] = False
    return is_kept


def worths(documents: Sequence[Document]) -> np.ndarray:
    """What every document of a group is worth: (documents,) float64, 0 for copies."""
    judged = _without_copies(documents)
    chosen = [documents[number] for number in judged]
    lengths = np.array([len(document.token_ids) for document in chosen])
    is_relaxed = np.array([document.is_relaxed for document in chosen])
    waves = np.array([document.wave for document in chosen])
    every = np.sort([document.wave for document in documents])
    newer = len(every) - np.searchsorted(every, waves, side="right")
    shared = shared_places([document.token_ids for document in chosen])
    # One more above and below, so that of texts that share nothing, too, the relaxed leave first.
    worth = (shared + 1) / (lengths + 1) / (1 + newer / len(every))
    result = np.zeros(len(documents))
    result[judged] = worth * np.where(is_relaxed, _RELAXED_WORTH, 1.0)
    return result


def shared_places(texts: Sequence[np.ndarray]) -> np.ndarray:
    """Places of each text whose next tokens stand in another text too: (texts,) int64.

    What begins alike stands side by side in the sorted suffixes, so a place is shared if the run
    of suffixes that begin like it belongs to two texts or more.
    """
    joined = join(texts)
    starts = np.flatnonzero(joined == SEPARATOR)
    suffixes = sort_suffixes(joined, _WINDOW)[len(texts) :]  # the starts come first
    owner = np.searchsorted(starts, suffixes) - 1
    ahead = np.minimum(starts[owner + 1] - suffixes, _WINDOW)
    common = shared_prefixes(joined, suffixes, _WINDOW)
    is_shared = np.zeros(len(suffixes), bool)
    for length in range(1, _WINDOW + 1):
        first = np.flatnonzero(common < length)
        has_several = np.minimum.reduceat(owner, first) < np.maximum.reduceat(owner, first)
        ours = np.flatnonzero(ahead == length)
        is_shared[ours] = has_several[np.searchsorted(first, ours, side="right") - 1]
    return np.bincount(owner[is_shared], minlength=len(texts))


def _age(document: Document) -> tuple[int, bytes, bool]:
    """Sorts the equally worthy, the first to leave first; equal keys are equal documents."""
    return document.wave, document.token_ids.tobytes(), not document.is_relaxed


def _without_copies(documents: Sequence[Document]) -> list[int]:
    """The number of one document for every text."""
    best: dict[bytes, int] = {}
    for number, document in enumerate(documents):
        text = document.token_ids.tobytes()
        other = documents[best.setdefault(text, number)]
        if (not document.is_relaxed, document.wave) > (not other.is_relaxed, other.wave):
            best[text] = number
    return list(best.values())
