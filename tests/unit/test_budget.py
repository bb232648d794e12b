"""The draft budget picks what raises tokens per second, against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engine.budget import FREE, CostTable, DraftBudget
from pipeline.engine.types import DraftTree

CONTEXT = 100.0
ANY = np.array([1])


def one_context(rows, per_row, seconds):
    return CostTable(ANY, np.array(rows), np.array(per_row), np.array([seconds], np.float64))


def afford_once(trees, rows, base_tokens, costs):
    return DraftBudget(costs).afford(trees, rows, base_tokens, CONTEXT)


def chain_or_tree(random, size):
    parents = np.array([random.integers(-1, node) for node in range(size)], np.int32)
    survival = np.ones(size, np.float32)
    for node, parent in enumerate(parents):
        survival[node] = (survival[parent] if parent >= 0 else 1.0) * random.uniform(0.1, 1.0)
    zeros = np.zeros(size)
    return DraftTree(zeros.astype("i4"), parents, survival, zeros.astype("i1"), zeros.astype("i4"))


def table(marginal):
    """One second for up to 4 tokens, then `marginal` seconds a token."""
    tokens = np.array([1, 4, 1004])
    seconds = np.array([1.0, 1.0, 1.0 + 1000 * marginal])
    return one_context([1, 64], tokens, [seconds, seconds])


def goodput(trees, keeps, rows, costs):
    survival = sum(
        float(tree.survival[keep].sum()) for tree, keep in zip(trees, keeps, strict=True)
    )
    nodes = sum(int(keep.sum()) for keep in keeps)
    return (rows + survival) / costs.step_seconds(rows, np.array([rows + nodes]), CONTEXT)[0]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), marginal=st.sampled_from([0.0, 0.02, 0.1, 0.3, 1.0]))
def test_no_other_choice_of_nodes_is_better(seed, marginal):
    random = np.random.default_rng(seed)
    trees = [chain_or_tree(random, int(random.integers(0, 6))) for _ in range(2)]
    costs = table(marginal)
    chosen = afford_once(trees, 2, 2, costs)
    sizes = [len(tree) for tree in trees]
    best = 0.0
    for bits in itertools.product([False, True], repeat=sum(sizes)):
        keeps = np.split(np.array(bits, bool), np.cumsum(sizes)[:-1])
        closed = all(
            keep[tree.parents[node]]
            for tree, keep in zip(trees, keeps, strict=True)
            for node in np.flatnonzero(keep)
            if tree.parents[node] >= 0
        )
        if closed:
            best = max(best, goodput(trees, keeps, 2, costs))
    all_kept = [np.ones(len(tree), bool) for tree in chosen]
    got = goodput(chosen, all_kept, 2, costs)
    assert got == pytest.approx(best, rel=1e-5) or (not sum(map(len, chosen)) and best < 1.02 * got)
    for tree in chosen:
        assert all(parent < node for node, parent in enumerate(tree.parents))


def test_free_nodes_are_all_kept_and_dear_ones_are_not():
    trees = [chain_or_tree(np.random.default_rng(0), 8)]
    assert len(afford_once(trees, 1, 1, table(0.0))[0]) == 8
    dear = one_context([1], [1, 2], [[1.0, 9.0]])
    assert len(afford_once(trees, 1, 1, dear)[0]) == 0


def test_no_rows_and_no_drafts_cost_nothing():
    assert afford_once([], 0, 0, table(0.1)) == []
    assert len(afford_once([DraftTree.empty()], 1, 1, table(0.1))[0]) == 0


def test_costs_are_interpolated_between_batch_sizes():
    costs = one_context([1, 5], [1, 11], [[1.0, 2.0], [3.0, 4.0]])
    assert costs.step_seconds(3, np.array([6]), CONTEXT)[0] == pytest.approx(2.1)


def test_measured_steps_move_the_entries_around_them():
    costs = one_context([1, 4], [1, 2, 4], [[1.0, 1, 2], [2, 3, 5]])
    before = costs.copy()
    for _ in range(200):
        costs.refine(rows=4, tokens=8, context=CONTEXT, seconds=4.5)
    assert costs.step_seconds(4, np.array([8]), CONTEXT)[0] == pytest.approx(4.5, rel=0.01)
    np.testing.assert_array_equal(costs.seconds[0, 0], before.seconds[0, 0])
    assert costs.seconds[0, 1, 0] == before.seconds[0, 1, 0]
    assert (np.diff(costs.seconds) >= 0).all()


def test_one_slow_step_tells_little():
    costs = one_context([1, 4], [1, 2], np.ones((2, 2)))
    costs.refine(rows=4, tokens=4, context=CONTEXT, seconds=100.0)
    assert costs.step_seconds(4, np.array([4]), CONTEXT)[0] <= 1.1


def test_steps_with_few_drafts_do_not_make_plain_steps_look_dear():
    """Else drafts that cost more than they bring would go on for ever."""
    costs = one_context([1, 16], [1, 2, 4], np.ones((2, 3)))
    for _ in range(100):
        costs.refine(rows=16, tokens=20, context=CONTEXT, seconds=1.5)
    assert costs.step_seconds(16, np.array([16]), CONTEXT)[0] == 1.0
    assert costs.step_seconds(16, np.array([20]), CONTEXT)[0] > 1.1


def a_chain(survival):
    size = len(survival)
    parents = np.arange(-1, size - 1, dtype=np.int32)
    zeros = np.zeros(size)
    claims = np.array(survival, np.float32)
    return DraftTree(zeros.astype("i4"), parents, claims, zeros.astype("i1"), zeros.astype("i4"))


@pytest.mark.parametrize(("survival", "plain_steps"), [(0.1, 5), (0.9, 0), (0.01, 100)])
def test_where_drafts_gain_little_a_step_goes_without_now_and_then(survival, plain_steps):
    budget = DraftBudget(FREE)
    kept = [len(budget.afford([a_chain([survival])], 1, 1, CONTEXT)[0]) for _ in range(100)]
    assert kept.count(0) == plain_steps


def test_costs_follow_the_context():
    costs = CostTable(np.array([100, 300]), ANY, np.array([1, 3]), np.array([[[1, 2]], [[3, 4.0]]]))
    short, middle, long = (costs.step_seconds(1, np.array([2]), c)[0] for c in (50, 200, 900))
    assert (short, middle, long) == (1.5, 2.5, 3.5)
    costs.refine(rows=1, tokens=3, context=100, seconds=4.0)
    assert costs.step_seconds(1, np.array([3]), 100)[0] > 2.0
    np.testing.assert_array_equal(costs.seconds[1], [[3.0, 4.0]])


def test_the_time_of_prompts_is_no_reason_to_draft():
    """A long step makes any node look cheap beside it, though each one takes its own time."""
    per_token = one_context([1, 64], [1, 4096], [[0.01, 40.96]] * 2)
    trees = [a_chain([0.9, 0.5, 0.2]), a_chain([0.9, 0.5, 0.2])]
    alone, beside_prompts = (afford_once(trees, 2, base, per_token) for base in (2, 500))
    assert [len(tree) for tree in alone] == [len(tree) for tree in beside_prompts] == [0, 0]
    assert [len(tree) for tree in afford_once(trees, 2, 500, table(0.0))] == [3, 3]
