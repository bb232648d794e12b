"""How much texts repeat each other: whether a run drifts toward the phrases of its pools.

`distinct_3` is the number of distinct 3-grams over the number of all (distinct-n, Li et al. 2016).
It falls with the amount of text by itself, so compare equal amounts only. `similarity` is the mean
Jaccard coefficient of two texts' sets of 3-grams (resemblance, Broder 1997), over at most 200
random pairs. It does not depend on how many texts there are: if it rises from wave to wave, texts
grow alike. Of more than 1,000 texts as many random ones are measured.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from retrieval_pools.document import Document

_GRAM = 3  # tokens
_BITS = 21  # of a token's number in that of a 3-gram
_MOST_TEXTS = 1000
_PAIRS = 200
_SEED = 0  # the same texts in the same order give the same pairs


@dataclass(frozen=True)
class Diversity:
    """How much some texts repeat each other; None where that cannot be said."""

    documents: int
    distinct_3: float | None  # of no 3-gram
    similarity: float | None  # of fewer than two texts with a 3-gram


def diversity(texts: Sequence[np.ndarray]) -> Diversity:
    """Measure texts, each (tokens,) int32."""
    grams = _grams([texts[number] for number in _sample(len(texts))])
    count = sum(map(len, grams))
    distinct = len(np.unique(np.concatenate(grams))) if count else 0
    return Diversity(len(texts), round(distinct / count, 4) if count else None, _similarity(grams))


def by_wave(documents: Sequence[Document]) -> dict[str, Any]:
    """Measure all documents, and those of each wave: JSON."""
    of_wave: dict[int, list[np.ndarray]] = {document.wave: [] for document in documents}
    for document in documents:
        of_wave[document.wave].append(document.token_ids)
    return {
        **asdict(diversity([document.token_ids for document in documents])),
        "waves": {str(wave): asdict(diversity(of_wave[wave])) for wave in sorted(of_wave)},
    }


def _sample(count: int) -> list[int]:
    """Which of `count` texts are measured, in their order."""
    if count <= _MOST_TEXTS:
        return list(range(count))
    chosen = np.random.default_rng(_SEED).choice(count, _MOST_TEXTS, replace=False)
    return np.sort(chosen).tolist()


def _grams(texts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """A number for every 3-gram of every text, equal for equal ones: (tokens - 2,) int64 each."""
    lengths = [len(text) for text in texts]
    if sum(lengths) < _GRAM:
        return [np.empty(0, np.int64) for _ in texts]
    joined = np.concatenate(texts).astype(np.int64)
    if joined.max() >> _BITS:
        joined = np.unique(joined, return_inverse=True)[1]
    numbers = (joined[:-2] << 2 * _BITS) + (joined[1:-1] << _BITS) + joined[2:]
    ends = np.cumsum(lengths)
    return [
        numbers[end - length : max(end - _GRAM + 1, end - length)]
        for end, length in zip(ends.tolist(), lengths, strict=True)
    ]


def _similarity(grams: Sequence[np.ndarray]) -> float | None:
    """Mean Jaccard coefficient over pairs of texts."""
    texts = [own for own in grams if len(own)]
    if len(texts) < 2:
        return None
    pairs = _pairs(len(texts))
    sets = {number: np.unique(texts[number]) for number in np.unique(pairs).tolist()}
    shares = []
    for one, other in pairs.tolist():
        common = len(np.intersect1d(sets[one], sets[other], assume_unique=True))
        shares.append(common / (len(sets[one]) + len(sets[other]) - common))
    return round(float(np.mean(shares)), 4)


def _pairs(count: int) -> np.ndarray:
    """All pairs of `count` texts, or `_PAIRS` random ones if there are more: (pairs, 2) int64."""
    if count * (count - 1) // 2 <= _PAIRS:
        return np.stack(np.triu_indices(count, 1), 1)
    random = np.random.default_rng(_SEED)
    one = random.integers(count, size=_PAIRS)
    other = (one + random.integers(1, count, size=_PAIRS)) % count
    return np.stack([one, other], 1)
