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
    return DraftBudget(costs).afford(trees, rows, rows, base_tokens, CONTEXT)


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


@settings(max_examples=60)
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


@pytest.mark.parametrize(("survival", "plain_steps"), [(0.1, 11), (0.9, 3), (0.01, 197)])
def test_what_seems_worse_is_tried_now_and_then(survival, plain_steps):
    """Where drafts gain little, every 17th step; in any case every 65th, drafts as well."""
    budget = DraftBudget(table(0.0))
    kept = [len(budget.afford([a_chain([survival])], 1, 1, 1, CONTEXT)[0]) for _ in range(200)]
    assert kept.count(0) == plain_steps


@pytest.mark.parametrize("plain_is_dear", [1.5, 3.0])
def test_a_table_that_is_wrong_about_plain_steps_mends_itself(plain_is_dear):
    """Drafts of little worth look good beside it, until plain steps have been measured."""
    costs = one_context([1, 16], [1, 2, 64], [[plain_is_dear, plain_is_dear, 99.0]] * 2)
    assert share_of_drafts(costs, [0.3, 0.1], plain=1.0, per_node=0.4) < 0.1


@pytest.mark.parametrize("drafts_are_dear", [1.5, 3.0])
def test_a_table_that_is_wrong_about_drafts_mends_itself(drafts_are_dear):
    costs = one_context([1, 16], [1, 2, 64], [[1.0, 1.1 * drafts_are_dear, 99.0]] * 2)
    assert share_of_drafts(costs, [0.9, 0.1], plain=1.0, per_node=0.1) > 0.8


def share_of_drafts(costs, survival, plain, per_node):
    """Share of the last of many steps of one row that verify drafts, each measured truly."""
    budget, drafted = DraftBudget(costs), []
    for _ in range(4000):
        nodes = len(budget.afford([a_chain(survival)], 1, 1, 1, CONTEXT)[0])
        costs.refine(1, 1 + nodes, CONTEXT, plain + per_node * nodes)
        drafted.append(nodes > 0)
    return np.mean(drafted[-1000:])


def test_under_no_limit_nothing_is_cut():
    budget = DraftBudget(FREE)
    for _ in range(200):
        assert len(budget.afford([a_chain([0.001])], 64, 64, 64, CONTEXT)[0]) == 1


@pytest.mark.parametrize("tokens", [4, 6, 7])
def test_a_measured_step_moves_what_the_table_says_of_it_by_a_tenth(tokens):
    """Whether it falls on entries or between them."""
    costs = CostTable(
        np.array([100, 300]), np.array([1, 4]), np.array([1, 2, 4]), np.ones((2, 2, 3))
    )
    costs.refine(rows=4, tokens=tokens, context=200, seconds=1.5)
    said = costs.step_seconds(4, np.array([tokens]), 200)[0]
    assert said == pytest.approx(1.05, abs=0.011)


def test_a_ready_row_is_worth_its_share_of_a_step_in_which_all_decode():
    costs = one_context([1, 16], [1, 2, 64], [[0.2, 0.21, 1.0], [1.0, 2.0, 64.0]])
    trees = [a_chain([0.3])]
    alone = DraftBudget(costs).afford(trees, 1, 16, 200, CONTEXT)
    assert len(alone[0]) == 0  # a sixteenth of a second for a token, a node costs as much


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
