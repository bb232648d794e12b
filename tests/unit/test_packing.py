"""What a step shows to each token, against a walk up the tree."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engine.packing import Layout, pack
from pipeline.engine.row import Row
from pipeline.engine.types import DraftTree, Request

MAX_LENGTH = 200


def layout(window=0):
    """In a type that only masks can do."""
    return Layout(MAX_LENGTH, (window,), 1, torch.bfloat16, torch.device("cpu"), 8)


def random_case(random, slot):
    """A row with some tokens cached, some pending, and a random tree."""
    prompt = random.integers(0, 50, int(random.integers(1, 90))).astype(np.int32)
    row = Row(Request(str(slot), prompt, 5), slot)
    row.num_cached = int(random.integers(0, len(prompt)))
    row.chunk = len(prompt) - row.num_cached
    size = int(random.integers(0, 10))
    parents = np.array([random.integers(-1, node) for node in range(size)], np.int32)
    tokens = random.integers(0, 50, size).astype(np.int32)
    zeros = np.zeros(size)
    return row, DraftTree(tokens, parents, zeros.astype("f4"), zeros.astype("i1"), parents)


def texts_of(row, tree):
    """For each token of a line: its path as (arena position in the slot, text position)."""
    cached = [(position, position) for position in range(row.num_cached)]
    chain = [(position, position) for position in range(row.num_cached, len(row.tokens))]
    paths = [cached + chain[: index + 1] for index in range(len(chain))]
    for node, parent in enumerate(tree.parents):
        above = paths[len(chain) + parent] if parent >= 0 else paths[len(chain) - 1]
        paths.append([*above, (len(row.tokens) + node, above[-1][1] + 1)])
    return paths


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 4), window=st.sampled_from([0, 7]))
def test_every_token_sees_its_own_path_and_nothing_else(seed, count, window):
    random = np.random.default_rng(seed)
    rows, trees = zip(*(random_case(random, slot) for slot in range(count)), strict=True)
    step = pack(rows, trees, layout(window))
    expected = [path for row, tree in zip(rows, trees, strict=True) for path in texts_of(row, tree)]
    slots = [row.slot for row, tree in zip(rows, trees, strict=True) for _ in texts_of(row, tree)]
    assert step.positions.tolist() == [path[-1][1] for path in expected]
    assert step.cache_index.tolist() == [
        slot * MAX_LENGTH + path[-1][0] for slot, path in zip(slots, expected, strict=True)
    ]
    seen = set()
    for segment in step.attention:
        rows_in, _, width, length = segment.masks[window].shape
        mask = segment.masks[window].reshape(rows_in * width, length)
        for query, packed in zip(segment.real.tolist(), segment.packed.tolist(), strict=True):
            seen.add(packed)
            path = expected[packed]
            oldest = path[-1][1] - window + 1 if window else 0
            visible = sorted(arena for arena, position in path if position >= oldest)
            assert torch.flatten(torch.nonzero(mask[query] == 0)).tolist() == visible
            assert segment.first + query // width == slots[packed]
        assert not torch.isneginf(mask).all(dim=1).any()  # padding would turn to NaN
    assert seen == set(range(len(step)))


def test_only_roots_and_nodes_of_ready_rows_are_decided():
    random = np.random.default_rng(1)
    rows, trees = map(list, zip(*(random_case(random, slot) for slot in range(4)), strict=True))
    rows[1].num_cached, rows[1].chunk = 0, len(rows[1].tokens) - 1  # still reading its prompt
    trees[1] = DraftTree.empty()
    step = pack(rows, trees, layout())
    decided = 0
    for row, tree, root in zip(rows, trees, step.roots, strict=True):
        if not row.is_ready:
            continue
        packed = step.deciding[root : root + 1 + len(tree)]
        wanted = [row.tokens[-1], *tree.token_ids]
        assert step.token_ids[packed].tolist() == [int(token) for token in wanted]
        assert step.positions[packed[0]] == len(row.tokens) - 1
        decided += len(packed)
    assert decided == len(step.deciding)


@pytest.mark.parametrize("keep", [[True, False, True, False], [True, True, False, False]])
def test_a_tree_prefix_renumbers_parents(keep):
    nodes = np.arange(4)
    tree = DraftTree(
        nodes.astype("i4"), np.array([-1, -1, 0, 1], "i4"), nodes.astype("f4"), nodes, nodes
    )
    part = tree.prefix(np.array(keep))
    kept = np.flatnonzero(keep)
    assert part.token_ids.tolist() == kept.tolist()
    for node, parent in enumerate(part.parents):
        original = tree.parents[kept[node]]
        assert (parent == -1) if original == -1 else (kept[parent] == original)
