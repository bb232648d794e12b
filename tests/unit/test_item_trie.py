"""The flat trie of items against a dictionary of prefixes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.generative.code_tree import lexicographic_order
from pipeline.generative.item_trie import NONE, ROOT, ItemTrie

LEVELS = 3
code = st.integers(0, 3)  # few, so that ids share prefixes, and whole ids
sequence = st.tuples(*[code] * LEVELS)
asked = st.lists(st.tuples(*[st.integers(-1, 5)] * LEVELS), min_size=1, max_size=20)


@st.composite
def catalogs(draw):
    """Rows of (item number, codes, whether it is warm)."""
    codes = draw(st.lists(sequence, max_size=25))
    numbers = draw(st.permutations(range(len(codes))))
    return [(10 * n, one, draw(st.booleans())) for n, one in zip(numbers, codes, strict=True)]


def arrays(rows):
    return (
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.int32).reshape(len(rows), LEVELS),
        np.array([row[2] for row in rows], bool),
    )


def build(rows):
    return ItemTrie(*arrays(rows))


def prefixes(rows):
    """Prefix -> item numbers: the dictionary that the trie must be."""
    found = {(): []}
    for number, codes, _ in rows:
        for length in range(LEVELS + 1):
            found.setdefault(codes[:length], []).append(number)
    return found


def node_of(trie, prefix):
    node = np.array([ROOT])
    for one in prefix:
        node = trie.advance(node, np.array([one]))
    return int(node[0])


def require_equal(trie, rows, warm_rows):
    """Everything that the trie answers is what dictionaries of `rows` answer."""
    wanted = prefixes(rows)
    warm = prefixes([row for row in warm_rows if row[2]])
    assert len(trie) == len(rows)
    assert trie.num_nodes == len(wanted)
    order = list(wanted)
    nodes = np.array([node_of(trie, prefix) for prefix in order])
    assert len(set(nodes.tolist())) == len(order)
    assert NONE not in nodes
    found = trie.allowed(nodes)
    mask = trie.mask(nodes, 4)
    for row, prefix in enumerate(order):
        following = sorted({key[-1] for key in wanted if key and key[:-1] == prefix})
        mine = found.rows == row
        assert found.codes[mine].tolist() == following
        assert found.nodes[mine].tolist() == [node_of(trie, (*prefix, c)) for c in following]
        assert np.flatnonzero(mask[row]).tolist() == following
        assert sorted(trie.items_under(nodes[row]).tolist()) == sorted(wanted[prefix])
    for _, codes, is_warm in warm_rows:
        depth = max(n for n in range(LEVELS + 1) if codes[:n] in warm)
        assert trie.warm_depth(np.array([codes])).tolist() == [depth]
        assert depth == LEVELS or not is_warm


@given(catalogs())
def test_a_trie_is_the_dictionary_of_its_prefixes(rows):
    require_equal(build(rows), rows, rows)


@given(catalogs(), asked)
def test_unknown_codes_lead_nowhere(rows, ids):
    trie, wanted = build(rows), prefixes(rows)
    ids = np.array(ids)
    assert trie.contains(ids).tolist() == [tuple(one) in wanted for one in ids.tolist()]
    nodes = np.zeros(len(ids), np.int64)
    for level in range(LEVELS):
        nodes = trie.advance(nodes, ids[:, level])
        is_known = [tuple(one[: level + 1]) in wanted for one in ids.tolist()]
        assert (nodes != NONE).tolist() == is_known
    beyond = trie.advance(nodes, ids[:, 0])  # of leaves, and of NONE
    assert (beyond == NONE).all()
    assert len(trie.allowed(nodes).rows) == 0
    assert trie.items_under(NONE).tolist() == []


@given(catalogs(), st.sets(st.integers(0, 24)))
def test_withdrawn_items_are_gone_and_what_they_taught_stays(rows, drawn):
    gone = {10 * number for number in drawn}  # some of nobody
    before = build(rows)
    version = before.version
    after = before.without(sorted(gone))
    require_equal(after, [row for row in rows if row[0] not in gone], rows)
    require_equal(before, rows, rows)
    has_changed = any(row[0] in gone for row in rows)
    assert (after.version != version) == has_changed
    assert before.version == version


@given(catalogs(), st.integers(0, 25))
def test_items_added_later_are_as_if_there_from_the_start(rows, first):
    whole = build(rows)
    grown = build(rows[:first]).with_items(*arrays(rows[first:]))
    require_equal(grown, rows, rows)
    assert grown.version == whole.version
    assert build(rows[::-1]).version == whole.version


@given(st.lists(st.tuples(*[st.sampled_from([0, 1, 7, 2**31 - 1])] * LEVELS), max_size=20))
def test_codes_are_sorted_level_by_level_however_large(codes):
    array = np.array(codes, np.int32).reshape(len(codes), LEVELS)
    assert lexicographic_order(array).tolist() == sorted(range(len(codes)), key=codes.__getitem__)


@given(catalogs(), st.sets(st.integers(0, 24)))
def test_edges_leaves_and_their_items_say_the_same(rows, drawn):
    trie = build(rows).without(sorted(10 * number for number in drawn))
    rows = [row for row in rows if row[0] // 10 not in drawn]
    start, code = trie.edges
    assert len(start) == trie.num_nodes + 1
    found = trie.allowed(np.arange(trie.num_nodes))
    assert np.diff(start).tolist() == np.bincount(found.rows, minlength=trie.num_nodes).tolist()
    assert code[found.nodes - 1].tolist() == found.codes.tolist()
    numbers = np.array([row[0] for row in rows] + [-7, 10**10], np.int64)
    leaves = trie.leaves_of(numbers)
    assert leaves.tolist() == [*(node_of(trie, row[1]) for row in rows), NONE, NONE]
    assert (leaves[:-2] >= trie.first_leaf).all()
    held = trie.items_at(leaves[:-2], len(rows))
    for row, own in zip(rows, held.tolist(), strict=True):
        sharing = [other[0] for other in rows if other[1] == row[1]]
        assert own == sorted(sharing, key=own.index) + [-1] * (len(rows) - len(sharing))


@given(catalogs())
def test_numbers_too_large_for_small_types_make_no_difference(rows):
    far = [(number + 2**40, [one + 2**30 for one in codes], warm) for number, codes, warm in rows]
    near, wide = build(rows), build(far)
    nodes = np.arange(near.num_nodes)
    assert wide.allowed(nodes).nodes.tolist() == near.allowed(nodes).nodes.tolist()
    assert (wide.allowed(nodes).codes - 2**30).tolist() == near.allowed(nodes).codes.tolist()
    codes = np.array([row[1] for row in far], np.int64).reshape(len(far), LEVELS)
    assert wide.contains(codes).all()
    assert wide.warm_depth(codes).tolist() == near.warm_depth(codes - 2**30).tolist()
    numbers = np.array([row[0] for row in far], np.int64)
    assert wide.leaves_of(numbers).tolist() == near.leaves_of(numbers - 2**40).tolist()
    assert (wide.leaves_of(numbers - 2**40) == NONE).all()


def test_an_item_costs_a_few_dozen_bytes():
    rng = np.random.default_rng(0)
    codes = np.column_stack([rng.integers(0, 100, (10_000, 3)), np.arange(10_000) % 7])
    trie = ItemTrie(np.arange(10_000), codes, np.ones(10_000, bool))
    assert trie.num_nodes > 26_000
    assert trie.nbytes / 10_000 < 45


def test_an_empty_trie_allows_nothing():
    trie = build([])
    assert len(trie) == 0
    assert trie.allowed(np.array([ROOT])).codes.tolist() == []
    assert trie.mask(np.array([ROOT]), 4).tolist() == [[False] * 4]
    assert trie.advance(np.array([ROOT]), np.array([0])).tolist() == [NONE]
    assert trie.contains(np.array([[0, 0, 0]])).tolist() == [False]
    assert trie.items_under(ROOT).tolist() == []
    assert trie.warm_depth(np.array([[0, 0, 0]])).tolist() == [0]
    assert [array.tolist() for array in trie.edges] == [[1, 1], []]
    assert trie.leaves_of(np.array([7])).tolist() == [NONE]
    assert trie.with_items(*arrays([(7, (1, 2, 3), True)])).items_under(ROOT).tolist() == [7]


def test_one_item_is_found_by_its_whole_id_only():
    trie = build([(7, (1, 2, 3), False)])
    assert trie.contains(np.array([[1, 2, 3], [1, 2, 2], [1, 2, 4]])).tolist() == [True, 0, 0]
    assert trie.contains(np.array([[1, 2]])).tolist() == [False]
    assert trie.warm_depth(np.array([[1, 2, 3]])).tolist() == [0]  # nobody is warm
    assert trie.without([7]).num_nodes == 1


def test_a_withdrawn_item_may_come_back_with_another_id():
    trie = build([(7, (1, 2, 3), True)]).without([7])
    trie = trie.with_items(*arrays([(7, (1, 0, 0), False)]))
    assert trie.contains(np.array([[1, 2, 3], [1, 0, 0]])).tolist() == [False, True]
    assert trie.warm_depth(np.array([[1, 2, 3], [1, 0, 0]])).tolist() == [3, 1]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([(7, (1, 2, 3), True), (7, (1, 2, 2), True)], r"stand twice.*\[7\]"),
        ([(7, (1, -2, 3), True)], r"item 7 has a negative code: \[1, -2, 3\]"),
    ],
)
def test_unsound_items_are_refused(rows, complaint):
    with pytest.raises(DataError, match=complaint):
        build(rows)


def test_ids_of_another_length_are_refused():
    with pytest.raises(DataError, match="2 codes do not go into a trie of 3 levels"):
        build([]).with_items(np.array([1]), np.array([[0, 1]]), np.array([True]))
