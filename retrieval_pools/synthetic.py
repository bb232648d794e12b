"""A made-up catalog of any size: texts, interactions and vectors to measure the stages with.

Words, phrases, users and items follow Zipf's law. Texts are templates: phrases that all groups
share, phrases of the group, single words. So n-grams recur as in written knowledge, within a
group more than between groups. Users like the items of their cluster. The same seed gives the
same catalog, and a group's texts do not depend on which others are made.
"""

from dataclasses import dataclass

import numpy as np

from retrieval_pools.edges import Edges

VOCABULARY = 49_152  # token ids

_OPENINGS, _OPENING_TOKENS = 8, 10  # how texts begin
_SHARED, _OWN = 400, 200  # phrases of all groups, of one group
_SHARED_SHARE, _OWN_SHARE = 0.45, 0.35  # of what follows one another; the rest is single words
_SHORTEST, _LONGEST = 3, 14  # tokens of a phrase
_LIKELY = 6  # tokens that a phrase or word adds, a little less than the mean
_WORD_EXPONENT, _PHRASE_EXPONENT = 1.05, 0.9

_USER_EXPONENT, _ITEM_EXPONENT = 0.5, 0.7  # at 1 a few would have liked nearly everything
_EDGES_PER_USER, _EDGES_PER_ITEM = 20, 100
_FEWEST_USERS, _FEWEST_ITEMS = 500, 1000
_CLUSTERS = 16
_STRAY_SHARE = 0.2  # of the edges, to an item of any cluster
_SPREAD = 0.5  # of vectors about their centre, whose own spread is 1


@dataclass(frozen=True)
class Phrases:
    """Token sequences, one after the other."""

    tokens: np.ndarray  # (tokens,) int32
    lengths: np.ndarray  # (phrases,) int64


@dataclass(frozen=True)
class Interactions:
    """Who liked what."""

    edges: Edges  # none twice, in the order of time
    num_users: int
    num_items: int


class SyntheticTexts:
    """Texts as token ids, group by group."""

    def __init__(self, seed: int, length: int) -> None:
        """Every text has `length` tokens."""
        random = np.random.default_rng([seed, 0])
        self._seed = seed
        self._length = length
        self._shared = _phrases(random, _SHARED)
        width = min(_OPENING_TOKENS, length)
        words = _ranks(random.random((_OPENINGS, width)), VOCABULARY, _WORD_EXPONENT)
        self._openings = words.astype(np.int32)  # (openings, width)

    def of_group(self, group: int, count: int, part: int = 0) -> np.ndarray:
        """`count` texts of a group: (count, length) int32. Another `part` has other texts."""
        own = _phrases(np.random.default_rng([self._seed, 1, group]), _OWN)
        random = np.random.default_rng([self._seed, 2, group, part])
        texts = _write(random, self._shared, own, count * self._length)
        texts = texts.reshape(count, self._length)
        chosen = _ranks(random.random(count), _OPENINGS, _PHRASE_EXPONENT)
        texts[:, : self._openings.shape[1]] = self._openings[chosen]
        return texts


def synthetic_interactions(num_edges: int, seed: int) -> Interactions:
    """As many distinct pairs of a user and an item, of catalogs that grow with them.

    User u and item i belong to clusters u and i modulo 16; low numbers are the active users and
    the popular items.
    """
    num_users = max(_FEWEST_USERS, num_edges // _EDGES_PER_USER)
    num_items = max(_FEWEST_ITEMS, num_edges // _EDGES_PER_ITEM)
    if num_edges > num_users * num_items // 2:
        raise ValueError(f"{num_edges} edges are more than half of all pairs")
    random = np.random.default_rng([seed, 3])
    keys = np.empty(0, np.int64)
    while len(keys) < num_edges:
        more = num_edges - len(keys) + num_edges // 8  # some will be there already
        users = _ranks(random.random(more), num_users, _USER_EXPONENT)
        cluster = users % _CLUSTERS
        stray = random.random(more) < _STRAY_SHARE
        cluster[stray] = random.integers(0, _CLUSTERS, np.count_nonzero(stray))
        ranks = _ranks(random.random(more), num_items // _CLUSTERS, _ITEM_EXPONENT)
        keys = np.unique(np.concatenate([keys, users * num_items + ranks * _CLUSTERS + cluster]))
    users, items = np.divmod(random.permutation(keys)[:num_edges], num_items)
    return Interactions(Edges(users, items), num_users, num_items)


def synthetic_vectors(count: int, dim: int, num_clusters: int, seed: int) -> np.ndarray:
    """Points about the centres of clusters of Zipf's sizes: (count, dim) float32."""
    random = np.random.default_rng([seed, 4])
    centres = random.standard_normal((num_clusters, dim), np.float32)
    vectors = random.standard_normal((count, dim), np.float32)
    vectors *= _SPREAD
    vectors += centres[_ranks(random.random(count), num_clusters, _PHRASE_EXPONENT)]
    return vectors


def _write(random: np.random.Generator, shared: Phrases, own: Phrases, size: int) -> np.ndarray:
    """Phrases and words one after the other: (size,) int32."""
    words = np.arange(VOCABULARY, dtype=np.int32)
    tokens = np.concatenate([shared.tokens, own.tokens, words])
    lengths = np.concatenate([shared.lengths, own.lengths, np.ones(VOCABULARY, np.int64)])
    starts = np.cumsum(lengths) - lengths
    pieces: list[np.ndarray] = []
    missing = size
    while missing > 0:
        chosen = _choose(random, 1 + missing // _LIKELY)
        sizes = lengths[chosen]
        before = np.cumsum(sizes) - sizes
        places = np.arange(sizes.sum()) + np.repeat(starts[chosen] - before, sizes)
        pieces.append(tokens[places[:missing]])
        missing -= len(pieces[-1])
    return np.concatenate(pieces) if pieces else np.empty(0, np.int32)


def _choose(random: np.random.Generator, count: int) -> np.ndarray:
    """Numbers of shared phrases, own phrases and words, counted in this order: (count,) int64."""
    kind, chance = random.random(count), random.random(count)
    is_shared = kind < _SHARED_SHARE
    is_word = kind >= _SHARED_SHARE + _OWN_SHARE
    is_own = ~is_shared & ~is_word
    chosen = np.empty(count, np.int64)
    chosen[is_shared] = _ranks(chance[is_shared], _SHARED, _PHRASE_EXPONENT)
    chosen[is_own] = _SHARED + _ranks(chance[is_own], _OWN, _PHRASE_EXPONENT)
    words = _ranks(chance[is_word], VOCABULARY, _WORD_EXPONENT)
    chosen[is_word] = _SHARED + _OWN + words
    return chosen


def _phrases(random: np.random.Generator, count: int) -> Phrases:
    lengths = random.integers(_SHORTEST, _LONGEST + 1, count)
    words = _ranks(random.random(lengths.sum()), VOCABULARY, _WORD_EXPONENT)
    return Phrases(words.astype(np.int32), lengths)


def _ranks(chance: np.ndarray, count: int, exponent: float) -> np.ndarray:
    """Uniform numbers -> ranks 0..count-1, rank r about as often as (r + 1) ** -exponent: int64.

    The inverse of the distribution function of that density between 1 and count + 1.
    """
    power = 1 - exponent
    places = (1 + chance * ((count + 1) ** power - 1)) ** (1 / power)
    return np.minimum(places.astype(np.int64) - 1, count - 1)
