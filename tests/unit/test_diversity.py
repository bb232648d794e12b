"""How alike texts are, against sets of tuples."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_pools.diversity import by_wave, diversity
from retrieval_pools.document import Document

# Few tokens, so that texts share 3-grams; the largest id shows that none of its bits is lost.
tokens = st.sampled_from([0, 1, 2, 2**31 - 1])
texts = st.lists(st.lists(tokens, min_size=1, max_size=12), max_size=8)


def arrays(texts):
    return [np.array(text, np.int32) for text in texts]


def grams(text):
    return [tuple(text[at : at + 3]) for at in range(len(text) - 2)]


@given(texts)
def test_shares_are_those_of_sets_of_3_grams(texts):
    measured = diversity(arrays(texts))
    every = [gram for text in texts for gram in grams(text)]
    assert measured.documents == len(texts)
    if every:
        assert measured.distinct_3 == pytest.approx(len(set(every)) / len(every), abs=1e-4)
    else:
        assert measured.distinct_3 is None
    sets = [set(grams(text)) for text in texts if grams(text)]
    shares = [len(one & other) / len(one | other) for one, other in combinations(sets, 2)]
    if shares:
        assert measured.similarity == pytest.approx(np.mean(shares), abs=1e-4)
    else:
        assert measured.similarity is None


def test_equal_texts_are_fully_alike_and_unlike_ones_not_at_all():
    text = list(range(20))
    assert diversity(arrays([text, text])).similarity == 1.0
    assert diversity(arrays([text, text])).distinct_3 == 0.5
    assert diversity(arrays([text, text[::-1]])).similarity == 0.0
    assert diversity(arrays([text, text[::-1]])).distinct_3 == 1.0


def test_many_texts_are_sampled_near_the_mean_of_all_pairs_and_always_alike():
    random = np.random.default_rng(0)
    phrases = random.integers(0, 1000, (6, 10))
    made = [np.concatenate(phrases[random.permutation(6)[:3]]) for _ in range(80)]
    measured = diversity(made)
    sets = [set(grams(text.tolist())) for text in made]
    exact = np.mean([len(a & b) / len(a | b) for a, b in combinations(sets, 2)])
    assert measured.similarity == pytest.approx(exact, abs=0.04)
    assert diversity(made) == measured


def test_each_wave_is_measured_by_itself():
    text, other = list(range(20)), list(range(50, 70))
    documents = [
        Document(array, wave=wave)
        for array, wave in zip(arrays([text, other, text, text]), (0, 0, 10, 10), strict=True)
    ]
    measured = by_wave(documents)
    assert measured["documents"] == 4
    assert list(measured["waves"]) == ["0", "10"]
    assert measured["waves"]["0"] == {"documents": 2, "distinct_3": 1.0, "similarity": 0.0}
    assert measured["waves"]["10"] == {"documents": 2, "distinct_3": 0.5, "similarity": 1.0}


def test_no_texts_have_no_diversity():
    assert by_wave([]) == {"documents": 0, "distinct_3": None, "similarity": None, "waves": {}}
