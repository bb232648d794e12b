"""LASER's own draft rule, against nested dictionaries as in its code."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engine.types import ROOT, DraftTree, Request
from pipeline.schemas import SOURCES
from retrieval_pools.depth_first import DEPTH, SIZE
from retrieval_pools.document import Document
from retrieval_pools.pool import build_pools
from retrieval_pools.published import PublishedDrafter


@dataclass
class FakeRow:
    request: Request
    tokens: np.ndarray


def a_row(prompt: list[int], output: list[int], group: str = "g", max_new: int = 100) -> FakeRow:
    request = Request("key", np.array(prompt, np.int32), max_new, group)
    return FakeRow(request, np.array(prompt + output, np.int32))


def pool_of(groups: dict[str, list[list[int]]], depth: int = 24):
    documents = {
        name: [Document(np.array(text, np.int32)) for text in texts]
        for name, texts in groups.items()
    }
    return build_pools(documents, depth, max_bytes=10**8)


def flattened(tree: DraftTree) -> list[tuple[int, int]]:
    return list(zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True))


def slow_counts(texts: list[list[int]], query: list[int], depth: int) -> Counter[tuple[int, ...]]:
    """Occurrences of every path that follows the query: the trie below it."""
    counts: Counter[tuple[int, ...]] = Counter()
    size = len(query)
    for text in texts:
        for at in range(len(text) - size + 1):
            if text[at : at + size] == query:
                rest = text[at + size : at + size + depth]
                counts.update(tuple(rest[:length]) for length in range(1, len(rest) + 1))
    return counts


def slow_tree(texts: list[list[int]], query: list[int], depth: int) -> list[tuple[int, int]]:
    """(token, parent) depth first, as `Tree.get` of the code with an output channel only."""
    counts = slow_counts(texts, query, depth)
    by_count = sorted(counts.values(), reverse=True)
    least = by_count[SIZE - 1] if len(by_count) >= SIZE else 1
    nodes: list[tuple[int, int]] = []

    def ravel(path: tuple[int, ...], parent: int) -> None:
        below = [longer for longer in counts if longer[:-1] == path]
        for longer in sorted(below, key=lambda one: (-counts[one], one[-1])):
            if counts[longer] < least or len(nodes) == SIZE - 1:
                continue
            nodes.append((longer[-1], parent))
            ravel(longer, len(nodes) - 1)

    ravel((), ROOT)
    return nodes


def slow_draft(
    texts: list[list[int]],
    tokens: list[int],
    depth: int,
    stop_words: tuple[int, ...],
    most: int = SIZE - 1,
) -> list[tuple[int, int]]:
    """`hier_get`: two tokens, then one, which overwrites unless it is a stop word."""
    paths: list[tuple[int, ...]] = []
    for size in range(min(2, len(tokens)), 0, -1):
        if size == 1 and tokens[-1] in stop_words:
            break
        own = slow_tree([tokens], tokens[-size:], depth)
        pool = slow_tree(texts, tokens[-size:], depth)
        merged = dict.fromkeys([*slow_paths(own), *slow_paths(pool)])
        paths = list(merged)[:most]
        if 1 + len(paths) >= DEPTH:
            break
    place = {path: number for number, path in enumerate(paths)} | {(): ROOT}
    return [(path[-1], place[path[:-1]]) for path in paths]


def slow_paths(nodes: list[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Every node as the tokens that lead to it."""
    paths: list[tuple[int, ...]] = []
    for token, parent in nodes:
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    return paths


words = st.integers(0, 5)
texts_of = st.lists(st.lists(words, min_size=1, max_size=40), max_size=8)


@settings(max_examples=150)
@given(
    groups=st.fixed_dictionaries({"g": texts_of, "h": texts_of}),
    tokens=st.lists(words, min_size=1, max_size=30),
    written=st.integers(0, 3),
    max_new=st.integers(4, 20),
    scope=st.sampled_from(["group", "global"]),
    stop_words=st.sampled_from([(), (2,), (0, 3)]),
)
def test_trees_are_those_of_the_published_code(groups, tokens, written, max_new, scope, stop_words):
    drafter = PublishedDrafter(pool_of(groups), scope, stop_words)
    rows = [
        a_row(tokens[: len(tokens) - written], tokens[len(tokens) - written :], group, max_new)
        for group in ("g", "h", "unknown")
    ]
    trees = drafter.propose(rows, SIZE)
    for row, tree in zip(rows, trees, strict=True):
        of_group = groups.get(row.request.group, [])
        texts = [*groups["g"], *groups["h"]] if scope == "global" else of_group
        left = row.request.max_new_tokens - (len(row.tokens) - len(row.request.prompt_ids)) - 1
        wanted = slow_draft(texts, row.tokens.tolist(), min(DEPTH, left), stop_words)
        assert flattened(tree) == wanted


def test_a_large_pool_gives_the_same_trees_too():
    random = np.random.default_rng(0)
    steps = random.zipf(1.5, (40, 200)) % 50  # some words are frequent, most are rare
    texts = steps.tolist()
    drafter = PublishedDrafter(pool_of({"g": texts}))
    rows = [a_row([], texts[number][20:25]) for number in range(12)]
    sizes = set()
    for row, tree in zip(rows, drafter.propose(rows, SIZE), strict=True):
        assert flattened(tree) == slow_draft(texts, row.tokens.tolist(), DEPTH, ())
        sizes.add(len(tree))
    assert SIZE - 1 in sizes  # the bound was reached


def test_the_first_heavy_branch_may_take_the_whole_budget():
    chain = list(range(10, 22))
    texts = [[1, 2, *chain]] * 3 + [[1, 2, *range(100 * n, 100 * n + 12)] for n in range(2, 9)]
    tree = PublishedDrafter(pool_of({"g": texts})).propose([a_row([1], [2])], SIZE)[0]
    assert tree.token_ids[:12].tolist() == chain
    assert len(tree) == SIZE - 1
    assert tree.depths().max() == DEPTH
    assert (tree.survival == 1.0).all()
    assert {SOURCES[number] for number in tree.sources} == {"group"}


def test_a_small_match_of_two_tokens_gives_way_to_one_unless_that_is_a_stop_word():
    texts = [[1, 2, 3], *([[9, 2, *range(20, 32)]] * 2)]
    row = a_row([1], [2])
    assert len(PublishedDrafter(pool_of({"g": texts})).propose([row], SIZE)[0]) == 13
    kept = PublishedDrafter(pool_of({"g": texts}), stop_words=[2]).propose([row], SIZE)[0]
    assert kept.token_ids.tolist() == [3]


def test_resd_drafts_from_one_pool_of_all_texts():
    pools = pool_of({"g": [[5, 6]], "h": [[1, 2, 3]]})
    row = a_row([1], [2])
    assert not len(PublishedDrafter(pools).propose([row], SIZE)[0])
    tree = PublishedDrafter(pools, "global").propose([row], SIZE)[0]
    assert tree.token_ids.tolist() == [3]
    assert {SOURCES[number] for number in tree.sources} == {"global"}


@pytest.mark.parametrize("most", [0, 1, 7, 63, 200])
def test_no_tree_has_more_nodes_than_asked_for(most):
    random = np.random.default_rng(1)
    texts = random.integers(0, 4, (5, 60)).tolist()
    tree = PublishedDrafter(pool_of({"g": texts})).propose([a_row([1], [2])], most)[0]
    assert len(tree) == min(most, SIZE - 1)


def test_pools_sorted_by_few_tokens_give_shallow_trees():
    texts = [[1, 2, 3, 4, 5, 6, 7]] * 2
    tree = PublishedDrafter(pool_of({"g": texts}, depth=5)).propose([a_row([1], [2])], SIZE)[0]
    assert tree.token_ids.tolist() == [3, 4, 5]


def test_no_rows_need_no_trees():
    assert PublishedDrafter(pool_of({})).propose([], SIZE) == []


def test_own_text_comes_first_and_the_pool_fills_the_rest():
    row = a_row([1, 2, 7, 8], [1, 2])
    tree = PublishedDrafter(pool_of({"g": [[1, 2, 7, 9]]})).propose([row], SIZE)[0]
    assert flattened(tree) == [(7, ROOT), (8, 0), (1, 1), (2, 2), (9, 0)]
    assert [SOURCES[number] for number in tree.sources] == ["own"] * 4 + ["group"]
