"""What neighbours in a suffix array share, against lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from retrieval_pools.prefixes import shared_prefixes
from retrieval_pools.suffix_array import SEPARATOR, join, sort_suffixes

texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=15), max_size=6)


@given(texts, st.integers(1, 10))
def test_neighbours_share_what_they_begin_with_within_their_documents(texts, limit):
    joined = join([np.array(text, np.int32) for text in texts])
    suffixes = sort_suffixes(joined, 12)
    shared = shared_prefixes(joined, suffixes, limit)
    tokens = joined.tolist()
    expected = []
    for number, place in enumerate(suffixes.tolist()):
        length, before = 0, suffixes[number - 1]
        while (
            number > 0
            and length < limit
            and (tokens[place + length] == tokens[before + length] != SEPARATOR)
        ):
            length += 1
        expected.append(length)
    assert shared.tolist() == expected
