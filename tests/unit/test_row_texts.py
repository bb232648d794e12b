"""Own and previous texts as an index that grows: where a row's last tokens stood before."""

import dataclasses
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engine.types import Request
from retrieval_pools import matching, row_texts
from retrieval_pools.compiled import CHILD, NODE, STATE, Growth, Index, Sources, read_only
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.matching import OWN, PREVIOUS, START_WORTH
from retrieval_pools.row_texts import RowTexts

MATCH = 5  # most tokens matched
NEW = 12


@dataclass
class FakeRow:
    request: Request
    tokens: np.ndarray

    def append(self, tokens: list[int]) -> None:
        self.tokens = np.append(self.tokens, np.array(tokens, np.int32))


def a_row(prompt: list[int], previous: list[int] | None = None, new: int = NEW) -> FakeRow:
    earlier = None if previous is None else np.array(previous, np.int32)
    tokens = np.array(prompt, np.int32)
    return FakeRow(Request("key", tokens, new, previous_ids=earlier), tokens)


def scanned(row: FakeRow, source: int, most: int) -> list[tuple[int, int]]:
    """Place and length of every match, by looking at every place, most recent first."""
    own, prompt = row.tokens.tolist(), len(row.request.prompt_ids)
    output = len(own) - prompt
    text = own if source == OWN else row.request.previous_ids
    text = [] if text is None else [*text]
    found: list[tuple[int, int]] = []
    for place in range(len(text) - 1, -1, -1):
        most_alike, length = min(MATCH, len(own), place), 0
        while length < most_alike and text[place - 1 - length] == own[-1 - length]:
            length += 1
        if source == PREVIOUS and length == place == output:
            length += START_WORTH
        if length:
            found.append((place, length))
    return found[:most]


def walked(texts: RowTexts, place: np.void, source: int, most: int) -> list[tuple[int, int]]:
    """The same by the index."""
    nothing, marks = np.empty(0, np.int32), read_only(np.empty(0, np.int64))
    none = Index(read_only(nothing), read_only(nothing))
    sources = Sources(
        Index(texts.text, read_only(nothing)), texts.earlier, none, none, marks, marks
    )
    places, lengths = np.empty(most, np.int32), np.empty(most, np.int32)
    records = (np.empty(0, NODE), np.empty(0, STATE), np.empty(0, CHILD))
    growth = Growth(*records, nothing, nothing, places, lengths, np.empty(0, np.int64))
    count = matching._candidates(growth, sources, source, place, MATCH)
    first = place["own_first" if source == OWN else "previous_first"]
    return list(zip((places[:count] - first).tolist(), lengths[:count].tolist(), strict=True))


tokens = st.integers(0, 3)
prompts = st.lists(tokens, max_size=12)
previous = st.none() | st.lists(tokens, max_size=14)
# What becomes of a row in a step: it grows, sits out, is made anew, or loses and gets tokens.
steps = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["grow", "grow", "grow", "wait", "new", "shrink"]),
        st.lists(tokens, max_size=4),
    ),
    max_size=25,
)
batches = st.lists(st.tuples(prompts, previous), min_size=4, max_size=4)


def histories(batch, changes):
    """The rows of every step, changed as `changes` say; one that waits is not among them."""
    rows = [a_row(*texts) for texts in batch]
    yield rows
    for number, change, said in changes:
        present = list(rows)
        if change == "new":
            rows[number] = present[number] = a_row(said, batch[number][1])
        elif change == "wait":
            rows[number].append(said)
            present.pop(number)
        else:
            if change == "shrink":
                rows[number].tokens = rows[number].tokens[:-2]
            rows[number].append(said)
        yield present


@settings(max_examples=150)
@given(batches, steps, st.integers(1, 8))
def test_the_index_finds_what_a_scan_finds(batch, changes, most):
    texts = RowTexts(with_previous=True)
    for rows in histories(batch, changes):
        for row, place in zip(rows, texts.place(rows), strict=True):
            own = texts.text[place["own_first"] : place["own_end"]]
            assert own.tolist() == row.tokens.tolist()
            assert texts.text[place["own_end"]] == texts.text[place["previous_end"]] == -1
            for source in (OWN, PREVIOUS):
                assert walked(texts, place, source, most) == scanned(row, source, most)


@settings(max_examples=60)
@given(batches, steps)
def test_a_drafter_that_has_followed_rows_drafts_like_a_new_one(batch, changes):
    following = PoolDrafter(None, 9)
    for rows in histories(batch, changes):
        fresh = PoolDrafter(None, 9).propose(rows, 24)
        for one, other in zip(following.propose(rows, 24), fresh, strict=True):
            for a, b in zip(dataclasses.astuple(one), dataclasses.astuple(other), strict=True):
                assert np.array_equal(a, b)


def test_a_long_text_is_found_by_its_latest_places():
    row = a_row(list(range(3000)) * 2 + [7], list(range(5000, 0, -1)), new=40)
    texts = RowTexts(with_previous=True)
    for said in ([], [2999], [8, 9], [1, 2] * 10):
        row.append(said)
        [place] = texts.place([row])
        for source in (OWN, PREVIOUS):
            assert walked(texts, place, source, 256) == scanned(row, source, 256)


@pytest.fixture
def num_read(monkeypatch):
    """How many tokens every call has put into an index."""
    counts: list[int] = []
    write = row_texts._write

    def count(additions, tokens, *arrays):
        counts.append(len(tokens))
        write(additions, tokens, *arrays)

    monkeypatch.setattr(row_texts, "_write", count)
    return counts


def test_a_step_reads_what_it_has_added_and_no_text_twice(num_read):
    rows = [a_row([1, 2, 3] * 500, [4, 5] * 300), a_row([6] * 800)]
    drafter = PoolDrafter(None, 9)
    drafter.propose(rows, 8)
    assert sum(num_read) == 1500 + 600 + 800
    num_read.clear()
    for _ in range(4):
        rows[0].append([1, 7])
        rows[1].append([6])
        drafter.propose(rows, 8)
        drafter.propose([*rows, rows[0]], 8)  # nothing is new, also of a row that comes twice
    assert num_read == [3, 0] * 4


def size_of(rows: list[FakeRow], spare: int = 0) -> int:
    return sum(len(row.tokens) + len(row.request.previous_ids) + spare for row in rows)


def test_rows_that_come_and_go_take_no_more_room_and_are_let_go(num_read):
    texts, kept = RowTexts(with_previous=True), a_row([1, 2, 3] * 20, [4] * 30)
    total = size_of([kept])
    for number in range(300):
        rows = [kept, a_row([number, 5] * 10, [6] * 10)]
        texts.place(rows)
        total += size_of(rows[1:])
        assert len(texts.text) <= 2 * size_of(rows, NEW + 2)  # two separators
    assert sum(num_read) <= 2 * total
    gone = weakref.ref(rows[1])
    del rows
    texts.place([kept])
    assert gone() is None


@pytest.mark.parametrize("change", ["shrunk", "rewritten", "outgrown"])
def test_a_text_that_does_not_go_on_as_it_was_is_read_anew(change):
    row, texts = a_row([1, 2, 1, 3, 1, 2, 3, 1]), RowTexts(with_previous=True)
    texts.place([row, a_row([1, 2])])
    if change == "shrunk":
        row.tokens = row.tokens[:5]
    elif change == "rewritten":
        row.tokens = np.array([1, 2, 1, 3, 1, 3, 2, 1, 2, 1], np.int32)
    else:
        row.append([1, 2, 3, 1] * NEW)
    place = texts.place([row, a_row([1, 2])])[0]
    assert walked(texts, place, OWN, 9) == scanned(row, OWN, 9)


def test_previous_texts_are_left_out_where_they_are_no_source():
    [place] = RowTexts(with_previous=False).place([a_row([1, 2], [1, 2, 3])])
    assert place["previous_first"] == place["previous_end"]
    assert place["previous_latest"] == row_texts.NOWHERE
