"""Marked suffixes are counted, and weigh half: against sums and a dictionary of n-grams."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_pools.compiled import CHILD, Index
from retrieval_pools.document import Document
from retrieval_pools.marks import NO_MARKS, make_marks, marked
from retrieval_pools.pool import build_pools
from retrieval_pools.trie import children, find

tokens = st.integers(0, 3)
written = st.tuples(st.lists(tokens, min_size=1, max_size=12), st.booleans())
groups = st.fixed_dictionaries(
    {"g": st.lists(written, max_size=8), "h": st.lists(written, max_size=8)}
)


@given(st.lists(st.booleans(), min_size=1, max_size=300), st.data())
def test_the_marked_of_an_interval_are_counted(flags, data):
    marks = make_marks(np.array(flags))
    lo = data.draw(st.integers(0, len(flags)))
    hi = data.draw(st.integers(lo, len(flags)))
    assert marked(marks, lo, hi) == sum(flags[lo:hi])


@pytest.mark.parametrize("size", [1, 63, 64, 65, 127, 128, 129, 4096])
def test_every_prefix_is_counted_at_the_edges_of_words(size):
    flags = np.random.default_rng(size).random(size) < 0.5
    flags[0] = flags[-1] = True
    marks = make_marks(flags)
    counts = [marked(marks, 0, place) for place in range(size + 1)]
    assert counts == [0, *np.cumsum(flags).tolist()]
    assert marks.nbytes <= size / 4 + 16
    assert not marks.flags.writeable


def test_nothing_marked_takes_no_memory_and_counts_nothing():
    for size in (0, 5, 64, 1000):
        marks = make_marks(np.zeros(size, bool))
        assert marks is NO_MARKS
        assert marked(marks, 0, size) == 0


def weights(texts: list[tuple[list[int], bool]]) -> Counter[tuple[int, ...]]:
    """A trie as a dictionary: every n-gram, two for each occurrence, but one in relaxed text."""
    counts: Counter[tuple[int, ...]] = Counter()
    for text, is_relaxed in texts:
        for start in range(len(text)):
            for end in range(start + 1, len(text) + 1):
                counts[tuple(text[start:end])] += 1 if is_relaxed else 2
    return counts


@given(groups)
def test_intervals_weigh_what_a_dictionary_of_n_grams_says(texts):
    documents = {
        name: [Document(np.array(text, np.int32), is_relaxed) for text, is_relaxed in own]
        for name, own in texts.items()
    }
    pools = build_pools(documents, 24, 10**6)
    group = pools.groups["g"]
    indexes = [
        (pools.group_suffixes, pools.group_marks, group.first, group.last, texts["g"]),
        (
            pools.global_suffixes,
            pools.global_marks,
            0,
            len(pools.tokens) - 1,
            [text for own in texts.values() for text in own],
        ),
    ]
    found = np.empty(8, CHILD)
    for suffixes, marks, first, last, own in indexes:
        index, expected = Index(pools.tokens, suffixes), weights(own)
        for gram in [(), *expected]:
            context = np.array(gram, np.int32)
            context.flags.writeable = False
            lo, hi = find(index, first, last, 0, context, 0, len(gram))
            if gram:
                assert 2 * (hi - lo) - marked(marks, lo, hi) == expected[gram]
            for child in found[: children(index, lo, hi, len(gram), 8, found)]:
                weight = 2 * (child["hi"] - child["lo"]) - marked(marks, child["lo"], child["hi"])
                assert weight == expected[(*gram, int(child["token"]))]
