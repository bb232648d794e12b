"""Draft trees: their shape, where they come from, and what they claim."""

import dataclasses
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engine.types import ROOT, DraftTree, Request
from pipeline.schemas import SOURCES
from retrieval_pools import matching
from retrieval_pools.compiled import Cells
from retrieval_pools.document import Document
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.pool import PoolSet, build_pools
from retrieval_pools.pool_folder import open_pools, save_pools

DEPTH = 9
FLOOR = 0.005


@dataclass
class FakeRow:
    request: Request
    tokens: np.ndarray


def a_row(
    prompt: list[int],
    output: list[int],
    group: str = "g",
    previous: list[int] | None = None,
    max_new_tokens: int = 100,
) -> FakeRow:
    request = Request(
        "key",
        np.array(prompt, np.int32),
        max_new_tokens,
        group,
        None if previous is None else np.array(previous, np.int32),
    )
    return FakeRow(request, np.array(prompt + output, np.int32))


def a_pool_set(
    groups: dict[str, list[list[int]]],
    depth: int = 24,
    relaxed: frozenset[tuple[str, int]] = frozenset(),
) -> PoolSet:
    """Pools of texts; those that `relaxed` names by group and number are relaxed."""
    documents = {
        name: [
            Document(np.array(text, np.int32), (name, number) in relaxed)
            for number, text in enumerate(texts)
        ]
        for name, texts in groups.items()
    }
    pools = build_pools(documents, depth, max_bytes=10**8)
    assert pools.num_relaxed == len(relaxed)
    return pools


def draft(
    row: FakeRow,
    groups: dict[str, list[list[int]]] | None = None,
    use: tuple[str, ...] = SOURCES,
    depth: int = DEPTH,
    max_nodes: int = 64,
) -> DraftTree:
    pools = None if groups is None else a_pool_set(groups)
    return PoolDrafter(pools, depth, use, FLOOR).propose([row], max_nodes)[0]


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """Tokens from the root to every node."""
    known: dict[int, tuple[int, ...]] = {ROOT: ()}
    for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
        known[node] = (*known[int(parent)], int(token))
    return [known[node] for node in range(len(tree))]


def chain(tree: DraftTree) -> list[int]:
    """The path to the deepest node."""
    return list(max(paths(tree), key=len, default=()))


def holds(text: list[int], wanted: list[int]) -> bool:
    return any(text[at : at + len(wanted)] == wanted for at in range(len(text)))


tokens = st.integers(0, 4)
texts = st.lists(tokens, min_size=1, max_size=25)
pools = st.dictionaries(st.sampled_from(["g", "h"]), st.lists(texts, max_size=5))
rows = st.builds(
    a_row,
    prompt=texts,
    output=st.lists(tokens, max_size=20),
    group=st.sampled_from(["g", "h", "unknown"]),
    previous=st.none() | st.lists(tokens, max_size=20),
    max_new_tokens=st.integers(20, 40),
)


@settings(max_examples=80)
@given(st.lists(rows, max_size=4), pools, st.integers(1, 40), st.integers(1, 12))
def test_trees_are_closed_bounded_and_without_twins(batch, groups, max_nodes, depth):
    drafter = PoolDrafter(a_pool_set(groups), depth, floor=FLOOR)
    trees = drafter.propose(batch, max_nodes)
    assert len(trees) == len(batch)
    for row, tree in zip(batch, trees, strict=True):
        assert len(tree) <= max_nodes
        assert (tree.parents < np.arange(len(tree))).all()
        assert (tree.parents >= ROOT).all()
        assert len(set(paths(tree))) == len(tree)
        parent_survival = np.where(tree.parents == ROOT, 1.0, tree.survival[tree.parents])
        assert (tree.survival <= parent_survival).all()
        assert (np.diff(tree.survival) <= 0.0).all()
        assert ((tree.survival >= FLOOR * (1 - 1e-6)) & (tree.survival < 1.0)).all()
        output = len(row.tokens) - len(row.request.prompt_ids)
        remaining = row.request.max_new_tokens - output
        assert tree.depths().max(initial=0) <= min(depth, max(0, remaining - 1))
        assert [part.dtype for part in dataclasses.astuple(tree)[:-1]] == [
            np.int32,
            np.int32,
            np.float32,
            np.int8,
            np.int32,
        ]


@settings(max_examples=80)
@given(rows, pools)
def test_every_node_continues_a_text_of_its_source(row, groups):
    tree = draft(row, groups)
    output = row.tokens[len(row.request.prompt_ids) :].tolist()
    previous = row.request.previous_ids
    texts_of = {
        "previous": [] if previous is None else [previous.tolist()],
        "own": [row.tokens.tolist()],
        "group": groups.get(row.request.group, []),
        "global": [text for texts in groups.values() for text in texts],
    }
    for path, source in zip(paths(tree), tree.sources, strict=True):
        name = SOURCES[source]
        said_after_the_last_token = [int(row.tokens[-1]), *path]
        said_from_the_start = [*output, *path]
        assert any(
            holds(text, said_after_the_last_token)
            or (name != "own" and text[: len(said_from_the_start)] == said_from_the_start)
            for text in texts_of[name]
        )


@settings(max_examples=40)
@given(st.lists(rows, min_size=2, max_size=4), pools)
def test_a_row_is_drafted_alike_alone_and_among_others(batch, groups):
    drafter = PoolDrafter(a_pool_set(groups), DEPTH)
    together = drafter.propose(batch, 24)
    alone = [drafter.propose([row], 24)[0] for row in batch]
    for one, other in zip(together, alone, strict=True):
        for a, b in zip(dataclasses.astuple(one), dataclasses.astuple(other), strict=True):
            assert np.array_equal(a, b)


Places = list[tuple[int, int]]  # (document, place of the next token)


def places_after(documents: list[list[int]], wanted: list[int]) -> Places:
    return [
        (number, start + len(wanted))
        for number, document in enumerate(documents)
        for start in range(len(document) - len(wanted) + 1)
        if document[start : start + len(wanted)] == wanted
    ]


def reference_matches(row: FakeRow, documents: list[list[int]]) -> list[tuple[int, Places]]:
    """Tokens matched and where, for a pool sorted by 24 tokens or more."""
    text = row.tokens.tolist()
    output = text[len(row.request.prompt_ids) :]
    matches: list[tuple[int, Places]] = []
    if len(output) < 16:
        starts = [(n, len(output)) for n, d in enumerate(documents) if d[: len(output)] == output]
        matches.append((len(output) + matching.START_WORTH, starts))
        if len(starts) >= 8:
            return matches
    occurs = [n for n in range(1, min(16, len(text)) + 1) if places_after(documents, text[-n:])]
    length = max(occurs, default=0)
    for _ in range(3 if length else 0):
        matches.append((length, places_after(documents, text[-length:])))
        if len(matches[-1][1]) >= 8 or length == 1:
            break
        length //= 2
    return [(match, places) for match, places in matches if places]


def reference_claims(
    row: FakeRow, documents: list[list[int]], cells: Cells, relaxed: frozenset[int], source: int
) -> dict[tuple[int, ...], float]:
    """Survival of every path, by lists of occurrences instead of intervals, without a limit.

    An occurrence in a document that is `relaxed` weighs one half, others two halves.
    """
    halves = Counter({number: 2 - (number in relaxed) for number in range(len(documents))})
    claims: dict[tuple[int, ...], float] = {}

    def visit(path: tuple[int, ...], survival: float, states: list[tuple[int, Places]]) -> None:
        best: dict[int, float] = {}
        following: dict[int, list[tuple[int, Places]]] = defaultdict(list)
        for match, places in states:
            ahead: dict[int, Places] = defaultdict(list)
            for number, at in places:
                for token in documents[number][at : at + 1]:
                    ahead[token].append((number, at + 1))
            whole = sum(halves[number] for number, _ in places)
            for token, rest in ahead.items():
                part = sum(halves[number] for number, _ in rest)
                bucket = (
                    cells.source[source]
                    + cells.match[min(match + len(path), len(cells.match) - 1)]
                    + cells.occurrences[min(whole, len(cells.occurrences) - 1)]
                    + cells.share[100 * part // whole]
                )
                if survival * cells.probability[bucket] >= FLOOR:
                    best[token] = max(best.get(token, 0.0), float(cells.probability[bucket]))
                    following[token].append((match, rest))
        for token, probability in best.items():
            claims[(*path, token)] = survival * probability
            if len(path) + 1 < DEPTH:
                visit((*path, token), survival * probability, following[token])

    visit((), 1.0, reference_matches(row, documents))
    return claims


@pytest.mark.parametrize("source", ["group", "global"])
def test_a_single_relaxed_text_is_believed_less_than_a_greedy_one(source):
    claims = []
    for relaxed in (frozenset(), frozenset({("g", 0)})):
        pools = a_pool_set({"g": [[1, 2, 3, 4]]}, 64, relaxed)
        tree = PoolDrafter(pools, DEPTH, (source,), FLOOR).propose([a_row([1, 2], [])], 8)[0]
        claims.append(float(tree.survival[0]))
    greedy, lenient = claims
    assert lenient < 0.9 * greedy


@settings(max_examples=80)
@given(
    texts,
    st.lists(tokens, max_size=20),
    st.lists(texts, max_size=6),
    st.frozensets(st.integers(0, 5)),
    st.sampled_from(["group", "global"]),
)
def test_intervals_claim_what_lists_of_occurrences_claim(
    prompt, output, documents, relaxed, source
):
    relaxed = frozenset(number for number in relaxed if number < len(documents))
    pools = a_pool_set({"g": documents}, 64, frozenset(("g", number) for number in relaxed))
    drafter = PoolDrafter(pools, DEPTH, (source,), FLOOR)
    row = a_row(prompt, output)
    tree = drafter.propose([row], 1500)[0]
    cells, number = drafter.calibration.cells, SOURCES.index(source)
    expected = reference_claims(row, documents, cells, relaxed, number)
    claims = dict(zip(paths(tree), tree.survival, strict=True))
    assert claims.keys() == expected.keys()
    for path, claim in claims.items():
        assert claim == pytest.approx(expected[path], rel=1e-6)


def test_relaxed_text_weighs_half_of_what_greedy_text_weighs():
    texts = [[10, 11]] * 3 + [[10, 12]] * 2
    relaxed = frozenset(("g", number) for number in range(3))
    for marked, first in ((frozenset(), 11), (relaxed, 12)):
        drafter = PoolDrafter(a_pool_set({"g": texts}, relaxed=marked), DEPTH, ("group",))
        assert drafter.propose([a_row([1], [10])], 8)[0].token_ids[0] == first


def test_a_text_that_repeats_a_pool_document_is_drafted_to_its_end():
    document = list(range(100, 160))
    for written in (0, 1, 17, 40, 52):
        tree = draft(a_row([1, 2, 3], document[:written]), {"g": [document]})
        assert chain(tree) == document[written : written + DEPTH]


def test_nothing_follows_the_end_of_a_document():
    document = [10, 11, 12, 13]
    groups = {"g": [document, [20, 21]]}
    assert len(draft(a_row([1], document), groups, use=("group", "global"))) == 0
    assert len(draft(a_row([1], document), None, use=("own",))) == 0


def test_the_first_tokens_of_documents_are_drafted_before_anything_is_written():
    groups = {"g": [[10, 11, 12], [10, 11, 13], [10, 14]]}
    tree = draft(a_row([1, 2], []), groups, use=("group",))
    assert tree.token_ids[:2].tolist() == [10, 11]
    assert {12, 13, 14} <= set(tree.token_ids.tolist())


def test_the_previous_text_is_followed_from_its_start_and_after_a_change():
    previous = list(range(100, 140))
    tree = draft(a_row([1, 2], [], previous=previous), None)
    assert chain(tree) == previous[:DEPTH]
    tree = draft(a_row([1, 2], [*previous[:5], 7, *previous[8:11]], previous=previous), None)
    assert chain(tree) == previous[11 : 11 + DEPTH]
    assert set(tree.sources) == {matching.PREVIOUS}


def test_own_text_is_matched_before_its_end_only():
    assert len(draft(a_row([5, 6, 7], [8]), None)) == 0  # all distinct: nothing to go by
    tree = draft(a_row([5, 6, 7, 8, 9], [5, 6]), None)
    assert chain(tree) == [7, 8, 9, 5, 6]  # up to where the text now ends
    assert set(tree.sources) == {matching.OWN}


def test_a_loop_in_own_text_is_drafted_beyond_one_turn():
    tree = draft(a_row([1], [8, 9] * 20), None, use=("own",), max_nodes=DEPTH)
    assert chain(tree) == [8, 9, 8, 9, 8, 9, 8, 9, 8]


def test_beyond_the_depth_that_pools_are_sorted_by_the_latest_document_is_followed():
    documents = [[*range(100, 110), last, 7] for last in (30, 10, 20)]
    pools = a_pool_set({"g": documents}, depth=6)
    tree = PoolDrafter(pools, 30, ("group",)).propose([a_row([1], [100, 101, 102])], 64)[0]
    assert chain(tree) == [*range(103, 110), 20, 7]
    assert not {10, 30} & set(tree.token_ids.tolist())


def test_the_depth_leaves_the_last_token_to_the_model():
    document = list(range(100, 130))
    for remaining in (1, 2, 5):
        row = a_row([1], document[:10], max_new_tokens=10 + remaining)
        assert len(chain(draft(row, {"g": [document]}))) == remaining - 1


def test_sources_are_told_apart_and_the_better_one_is_named():
    groups = {"g": [[10, 11, 12]], "h": [[20, 21, 22]]}
    row = a_row([30, 31, 32], [20])
    assert set(draft(row, groups).sources) == {matching.GLOBAL}
    assert set(draft(a_row([1], [10]), groups).sources) == {matching.GROUP}
    assert len(draft(row, groups, use=("group", "own", "previous"))) == 0
    both = draft(a_row([1], [10], previous=[10, 11, 12]), groups)
    assert set(both.sources) == {matching.PREVIOUS}


def test_a_continuation_seen_more_often_is_believed_more():
    groups = {"g": [[10, 11]] * 6 + [[10, 12]] * 2}
    tree = draft(a_row([1], [10]), groups, use=("group",))
    after_ten = tree.token_ids[tree.parents == ROOT].tolist()
    assert after_ten.index(11) < after_ten.index(12)


def test_outcomes_move_survival_in_their_direction():
    document = list(range(100, 130))
    row = a_row([1], document[:5])
    for outcome, rises in ((1, True), (0, False)):
        drafter = PoolDrafter(a_pool_set({"g": [document]}), DEPTH)
        before = drafter.propose([row], 4)[0]
        for _ in range(40):
            drafter.observe([before], [np.full(len(before), outcome, np.int8)])
        after = drafter.propose([row], 4)[0]
        assert after.token_ids[0] == before.token_ids[0]
        assert (after.survival[0] > before.survival[0]) == rises
        drafter.observe([after], [np.full(len(after), -1, np.int8)])
        assert drafter.propose([row], 4)[0].survival[0] == after.survival[0]


def test_no_rows_and_no_nodes_give_no_drafts():
    drafter = PoolDrafter(None, DEPTH)
    assert drafter.propose([], 8) == []
    assert [len(tree) for tree in drafter.propose([a_row([5, 5], [])], 0)] == [0]


@pytest.mark.parametrize(
    "arguments", [{"depth": 0}, {"use": ("groups",)}, {"floor": 0.0}, {"floor": 1.0}]
)
def test_settings_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError, match="depth"):
        PoolDrafter(None, **{"depth": 4, **arguments})


def test_opened_pools_draft_like_built_ones_without_another_compilation(tmp_path):
    from retrieval_pools.expansion import draft as kernel

    built = a_pool_set({"g": [list(range(20))], "h": [[3, 4, 9]]})
    save_pools(built, tmp_path, "t")
    row = a_row([1], [2, 3], previous=[3, 7])
    one = PoolDrafter(built, DEPTH).propose([row], 16)[0]
    other = PoolDrafter(open_pools(tmp_path, "t"), DEPTH).propose([row], 16)[0]
    for a, b in zip(dataclasses.astuple(one), dataclasses.astuple(other), strict=True):
        assert np.array_equal(a, b)
    assert len(kernel.signatures) == 1


def test_many_rows_draft_what_each_drafts_alone():
    random = np.random.default_rng(5)
    documents = [random.integers(0, 6, 30).tolist() for _ in range(20)]
    drafter = PoolDrafter(a_pool_set({"g": documents}, 24), DEPTH)
    rows = [a_row(random.integers(0, 6, 4).tolist(), [1, 2]) for _ in range(67)]
    alone = [drafter.propose([row], 16)[0] for row in rows]
    for together, one in zip(drafter.propose(rows, 16), alone, strict=True):
        assert np.array_equal(together.token_ids, one.token_ids)
        assert np.array_equal(together.parents, one.parents)
        assert np.array_equal(together.survival, one.survival)
