"""Which texts leave a pool: the least worthy, no more than needed, whatever their order."""

import logging
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_pools.document import Document
from retrieval_pools.eviction import evict, shared_places, size_of, stays, worths

tokens = st.integers(0, 2)
texts = st.lists(st.lists(tokens, min_size=1, max_size=25), min_size=1, max_size=6)
documents = st.lists(
    st.builds(
        Document,
        st.lists(tokens, min_size=1, max_size=12).map(lambda text: np.array(text, np.int32)),
        st.booleans(),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=10,
)


def a_document(text, is_relaxed=False, wave=0):
    return Document(np.array(text, np.int32), is_relaxed, wave)


def size(documents):
    return sum(size_of(len(document.token_ids) + 1) for document in documents)


def content(documents):
    """What a pool holds, whatever the order."""
    return sorted((d.token_ids.tolist(), d.is_relaxed, d.wave) for d in documents)


def kept(documents, max_bytes):
    return evict("g", documents, max_bytes)


def leaves_first(*documents):
    """Number of the document that leaves when there is room for all but one."""
    (number,) = np.flatnonzero(~stays(documents, size(documents) - 1))
    return number


def said_by_another(texts, number, place):
    wanted = texts[number][place : place + 8]
    return any(
        other[at : at + len(wanted)] == wanted
        for index, other in enumerate(texts)
        if index != number
        for at in range(len(other))
    )


@given(texts)
def test_a_place_is_shared_if_another_text_says_what_follows(texts):
    expected = [
        sum(said_by_another(texts, number, place) for place in range(len(text)))
        for number, text in enumerate(texts)
    ]
    assert shared_places([np.array(text, np.int32) for text in texts]).tolist() == expected


@given(documents, st.integers(0, 2000))
def test_the_bound_is_kept_and_no_more_leaves_than_needed(documents, max_bytes):
    is_kept = stays(documents, max_bytes)
    rest = [document for document, stay in zip(documents, is_kept, strict=True) if stay]
    assert size(rest) <= max_bytes
    left = np.flatnonzero(~is_kept)
    if len(left):
        worth = worths(documents)
        best = left[worth[left] == worth[left].max()]
        assert any(size(rest) + size([documents[number]]) > max_bytes for number in best)
        assert worth[left].max() <= worth[is_kept].min(initial=np.inf)


def test_the_bound_is_a_matter_of_one_byte():
    documents = [a_document(range(start, start + 30)) for start in (0, 100, 200)]
    assert len(kept(documents, size(documents))) == 3
    assert len(kept(documents, size(documents) - 1)) == 2
    assert len(kept(documents, size(documents[1:]))) == 2
    assert len(kept(documents, size(documents[1:]) - 1)) == 1
    assert kept(documents, size(documents[:1]) - 1) == []


@given(documents, st.integers(0, 1000), st.randoms(use_true_random=False))
def test_the_order_of_documents_decides_nothing(documents, max_bytes, randomness):
    shuffled = randomness.sample(documents, len(documents))
    assert content(kept(shuffled, max_bytes)) == content(kept(documents, max_bytes))


def test_those_that_stay_keep_their_order():
    documents = [a_document([*range(n, n + 20)]) for n in range(12)]
    random.Random(0).shuffle(documents)
    rest = kept(documents, size(documents) // 2)
    places = [documents.index(document) for document in rest]
    assert places == sorted(places)
    assert 0 < len(rest) < len(documents)


def test_what_others_say_too_beats_what_nobody_else_says():
    phrase = list(range(50, 80))
    used = [a_document([1, *phrase]), a_document([2, *phrase])]
    unused = a_document(range(100, 131), wave=3)
    assert leaves_first(*used, unused) == 2
    assert leaves_first(unused, *used) == 0


def test_newer_beats_older_of_the_same_worth():
    assert leaves_first(a_document([1, 2, 3], wave=1), a_document([4, 5, 6], wave=0)) == 1
    assert leaves_first(a_document([4, 5, 6], wave=0), a_document([1, 2, 3], wave=1)) == 0


def test_relaxed_leaves_before_greedy():
    assert leaves_first(a_document([1, 2, 3]), a_document([4, 5, 6], is_relaxed=True)) == 1
    phrase = list(range(50, 80))
    shared = [a_document([*phrase, number], is_relaxed=number == 1) for number in range(3)]
    assert leaves_first(*shared) == 1


def test_equally_old_and_worthy_texts_leave_by_their_content():
    one, other = a_document([1, 2, 3]), a_document([1, 2, 4])
    assert leaves_first(one, other) == 0
    assert leaves_first(other, one) == 1


def test_age_halves_what_as_many_newer_texts_as_there_are_stand_beside():
    old = [a_document(range(10), wave=0)]
    new = [a_document(range(start, start + 10), wave=1) for start in range(100, 1000, 100)]
    worth = worths([*old, *new])
    assert worth[1:].tolist() == [1 / 11] * 9
    assert worth[0] == pytest.approx(1 / 11 / (1 + 9 / 10))


def test_copies_leave_first_whatever_they_say():
    phrase = list(range(50, 80))
    documents = [
        a_document([1, *phrase]),
        a_document([1, *phrase], wave=1),
        a_document([2, *phrase]),
        a_document(range(100, 131)),
    ]
    assert worths(documents)[0] == 0.0
    assert worths(documents)[1:].min() > 0.0
    assert leaves_first(*documents) == 0


def test_copies_do_not_vouch_for_each_other():
    twins = [a_document(range(100, 130)), a_document(range(100, 130))]
    assert sorted(worths([*twins, a_document(range(30))])) == [0.0, 1 / 31, 1 / 31]


def test_of_equal_texts_a_greedy_one_stays_and_of_these_the_newest():
    text = [1, 2, 3]
    copies = [a_document(text, wave=1), a_document(text, True, 5), a_document(text, wave=2)]
    (rest,) = kept(copies, size(copies[:1]))
    assert (rest.is_relaxed, rest.wave) == (False, 2)


def test_who_leaves_and_why_is_logged(caplog):
    documents = [
        *[a_document([1, *range(50, 80)])] * 3,
        a_document([2, *range(50, 80)]),
        a_document(range(100, 131), is_relaxed=True),
        a_document(range(200, 231)),
    ]
    with caplog.at_level(logging.INFO, "retrieval_pools.eviction"):
        evict("g", documents, size(documents))
        assert not caplog.text
        evict("g", documents, size(documents[:2]))
    assert "pool g: the least worthy 4 of 6 texts left out, over 800 bytes" in caplog.text
    assert "2 copies of what stays, 1 others that were relaxed, 1 that were not" in caplog.text
