"""The rules, their criteria, and the bookkeeping of a walk."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engine.branch import Branch, take
from pipeline.engine.processors import Processors
from pipeline.engine.quality import QualityBudget
from pipeline.engine.row import Row
from pipeline.engine.rules import Relaxed, Strict, TopKDelta, TopKFloor, Typical
from pipeline.engine.stops import Stops
from pipeline.engine.types import ROOT, DraftTree, Request
from pipeline.engine.verify import Verifier

STOP = 0
STOPS = Stops([STOP])
NO_STOPS = Stops([])
NO_PROCESSORS = Processors(frozenset())


def logits_of(*rows):
    """Log-probabilities as logits; each row must sum to 1."""
    return torch.tensor(rows).log()


def tree_of(tokens, parents=None):
    """By default all tokens are offered at the root."""
    size = len(tokens)
    return DraftTree(
        np.array(tokens, np.int32),
        np.array([ROOT] * size if parents is None else parents, np.int32),
        np.ones(size, np.float32),
        np.zeros(size, np.int8),
        np.zeros(size, np.int32),
    )


def row_of(prompt=(5,), max_new_tokens=20, slot=0):
    """A row whose last prompt token this step computes."""
    row = Row(Request("a", np.array(prompt, np.int32), max_new_tokens), slot)
    row.num_cached, row.chunk = len(prompt) - 1, 1
    return row


def judged(rule, probabilities, offered):
    """The token that comes next when all of `offered` are drafted, and what it costs."""
    branch = Branch(row_of(), tree_of(offered), root=0)
    (verdict,) = rule.judge(logits_of(probabilities), [branch])
    if not verdict.kept:
        return verdict.token, 0.0
    assert len(verdict.kept) == len(verdict.costs) == 1
    return offered[verdict.kept[0]], verdict.costs[0]


def walk_of(rule, logits, tree, row=None, stops=STOPS, processors=NO_PROCESSORS):
    """Verify one row's tree by `logits` (root and nodes, vocab)."""
    row = row or row_of()
    (walk,) = Verifier(rule, processors, stops).accept([row], [tree], np.array([0]), logits)
    return walk


def test_strict_ignores_what_is_offered():
    assert judged(Strict(), [0.1, 0.6, 0.3], [2]) == (1, 0.0)
    assert judged(Strict(), [0.1, 0.6, 0.3], [2, 1]) == (1, 0.0)
    assert judged(Strict(), [0.1, 0.6, 0.3], []) == (1, 0.0)


def test_strict_keeps_the_drafted_node_of_its_token_once():
    branch = Branch(row_of(), tree_of([2, 1, 1]), root=0)
    (verdict,) = Strict().judge(logits_of([0.1, 0.6, 0.3]), [branch])
    assert (list(verdict.kept), list(verdict.costs), verdict.token) == ([1], [0.0], 1)


FLOOR = TopKFloor(top_k=2, p=0.1)
DELTA = TopKDelta(top_k=3, delta=0.3)
TYPICAL = Typical(epsilon=0.2, alpha=0.4)


@pytest.mark.parametrize(
    ("criterion", "probabilities", "offered", "token", "why"),
    [
        (FLOOR, [0.05, 0.50, 0.30, 0.15], [2], 2, "second best above the floor"),
        (FLOOR, [0.05, 0.50, 0.30, 0.15], [1, 2], 1, "the best is offered too"),
        (FLOOR, [0.05, 0.50, 0.30, 0.15], [3], 1, "third best is outside the top 2"),
        (FLOOR, [0.05, 0.86, 0.05, 0.04], [2], 1, "second best below the floor"),
        (FLOOR, [0.05, 0.50, 0.30, 0.15], [], 1, "nothing offered"),
        (FLOOR, [0.50, 0.30, 0.15, 0.05], [1], 0, "the model wants to stop"),
        (FLOOR, [0.30, 0.50, 0.15, 0.05], [0], 1, "a stop never stands in"),
        (TopKFloor(4, 0.0), [0.30, 0.50, 0.15, 0.05], [3], 3, "no floor"),
        (TopKFloor(9, 0.0), [0.30, 0.50, 0.15, 0.05], [3], 3, "k beyond the vocabulary"),
        (TopKFloor(4, 0.6), [0.30, 0.50, 0.15, 0.05], [2, 1], 1, "not even the best is above"),
        (DELTA, [0.05, 0.50, 0.25, 0.20], [2], 2, "0.25 below the best"),
        (DELTA, [0.05, 0.50, 0.26, 0.19], [3], 1, "0.31 below the best"),
        (DELTA, [0.10, 0.32, 0.30, 0.28], [3], 3, "third best, near enough"),
        (TopKDelta(2, 0.3), [0.10, 0.32, 0.30, 0.28], [3], 1, "outside the top 2"),
        (TopKDelta(3, 0.0), [0.05, 0.50, 0.25, 0.20], [2], 1, "delta 0 is greedy"),
        (TopKDelta(4, 1.0), [0.05, 0.50, 0.25, 0.20], [3], 3, "delta 1 leaves the top k only"),
        # H = 1.386 for four equals: 0.4 exp(-H) = 0.1. For the second H = 0.588: 0.222, so epsilon.
        (TYPICAL, [0.25, 0.27, 0.24, 0.24], [3], 3, "an uncertain model takes 0.24"),
        (TYPICAL, [0.30, 0.40, 0.19, 0.11], [2], 2, "0.19 is above 0.4 exp(-1.27) = 0.112"),
        (TYPICAL, [0.30, 0.40, 0.19, 0.11], [3], 1, "0.11 is below it"),
        (TYPICAL, [0.01, 0.80, 0.19, 0.00], [2], 1, "epsilon: 0.19 < min(0.2, 0.4 exp(-0.54))"),
        (TYPICAL, [0.00, 0.79, 0.21, 0.00], [2], 2, "impossible tokens have no entropy"),
        (QualityBudget(0.05), [0.05, 0.45, 0.30, 0.20], [2], 2, "costs 0.41 nats of 0.5"),
        (QualityBudget(0.05), [0.05, 0.45, 0.26, 0.24], [2], 1, "costs 0.55 nats of 0.5"),
    ],
)
def test_a_criterion_says_which_token_is_good_enough(criterion, probabilities, offered, token, why):
    chosen, cost = judged(Relaxed(criterion, STOPS), probabilities, offered)
    assert chosen == token, why
    assert cost == pytest.approx(math.log(max(probabilities) / probabilities[token]), abs=1e-5)


def test_the_most_probable_acceptable_child_is_followed():
    rule = Relaxed(TopKFloor(3, 0.01), STOPS)
    assert judged(rule, [0.05, 0.5, 0.15, 0.3], [2, 3])[0] == 3


def test_longest_follows_every_acceptable_child():
    branch = Branch(row_of(), tree_of([2, 0, 3, 1]), root=0)
    rule = Relaxed(TopKFloor(3, 0.01), NO_STOPS, "longest")
    (verdict,) = rule.judge(logits_of([0.05, 0.5, 0.15, 0.3]), [branch])
    assert list(verdict.kept) == [0, 2, 3]
    assert verdict.costs == pytest.approx([math.log(0.5 / 0.15), math.log(0.5 / 0.3), 0.0])


@pytest.mark.parametrize("prefer", ["probable", "longest"])
@pytest.mark.parametrize("criterion", [TopKFloor(1, 0.0), TopKDelta(1, 1.0), QualityBudget(0.0)])
def test_with_k_1_relaxed_is_strict(prefer, criterion):
    if isinstance(criterion, QualityBudget):
        criterion.observe(1, 100.0)  # overspent: nothing may be lost now
    logits = torch.randn(50, 9, generator=torch.Generator().manual_seed(0))
    offers = [tree_of(range(9))] * 25 + [tree_of([3])] * 25
    branches = [Branch(row_of(), tree, root=0) for tree in offers]
    assert Relaxed(criterion, STOPS, prefer).judge(logits, branches) == Strict().judge(
        logits, branches
    )


@pytest.mark.parametrize("prefer", ["probable", "longest"])
def test_stop_tokens_are_never_relaxed(prefer):
    """Neither where the model wants to stop, nor where a stop would do; not even on a tie."""
    rule = Relaxed(TopKFloor(4, 0.0), STOPS, prefer)
    assert judged(rule, [0.4, 0.3, 0.2, 0.1], [1]) == (0, 0.0)
    assert judged(rule, [0.3, 0.4, 0.2, 0.1], [0]) == (1, 0.0)
    assert judged(rule, [0.3, 0.2, 0.1, 0.4], [0, 2])[0] == 2
    last_is_stop = Relaxed(TopKFloor(4, 0.0), Stops([3]), prefer)
    assert judged(last_is_stop, [0.1, 0.4, 0.1, 0.4], [3]) == (1, 0.0)


@pytest.mark.parametrize("prefer", ["probable", "longest"])
def test_stop_strings_are_never_relaxed(prefer):
    """Letters are the tokens of the alphabet; "bd" ends a row."""
    stops = Stops([], ["bd"], lambda ids: "".join("abcd"[token] for token in ids))
    rule = Relaxed(TopKFloor(4, 0.0), stops, prefer)
    a, b, c, d = range(4)
    wants_d, wants_c = [0.1, 0.1, 0.3, 0.5], [0.1, 0.1, 0.5, 0.3]
    # (after, probabilities, offered) -> token
    cases = {
        "the model completes the string": (b, wants_d, c, d),
        "a stand-in would complete it": (b, wants_c, d, c),
        "the model says the same elsewhere": (a, wants_d, c, c),
        "the stand-in does no harm elsewhere": (a, wants_c, d, d),
    }
    for why, (after, probabilities, offered, token) in cases.items():
        sure = [0.01, 0.01, 0.01, 0.01]
        sure[after] = 0.97
        tree = tree_of([after, offered], [-1, 0])  # the path counts, not the output alone
        walk = walk_of(rule, logits_of(sure, probabilities, sure), tree, stops=stops)
        assert walk.row.output[:2].tolist() == [after, token], why


@pytest.mark.parametrize("prefer", ["probable", "longest"])
def test_a_drafted_stop_is_kept_where_the_model_wants_it(prefer):
    rule = Relaxed(TopKFloor(4, 0.0), STOPS, prefer)
    walk = walk_of(rule, logits_of(*[[0.4, 0.3, 0.2, 0.1]] * 4), tree_of([1, 0, 2], [-1, -1, 1]))
    assert not len(walk.row.output)
    assert walk.row.finish_reason == "stop"
    assert walk.outcomes.tolist() == [0, 1, -1]
    assert (walk.path, walk.num_tokens, walk.cost) == ([], 0, 0.0)


def laser(logits, tree, top_k, p):
    """LASER's code, from its description: every root-to-leaf branch on its own.

    Accept while the token is in the top k and of probability above p, or the argmax; append the
    argmax at the break; the branch with the most tokens wins, ties go to the first in depth-first
    order.
    """
    probabilities = logits.softmax(-1).numpy()

    def leaves(node, path):
        children = [child for child in range(len(tree)) if tree.parents[child] == node]
        if not children:
            return [path]
        return [leaf for child in children for leaf in leaves(child, [*path, child])]

    texts = []
    for branch in leaves(ROOT, []):
        text, at = [], 0
        for node in branch:
            order = np.argsort(-probabilities[at], kind="stable")
            token = tree.token_ids[node]
            good = token in order[:top_k] and probabilities[at][token] > p
            if not good and token != order[0]:
                break
            text.append(int(token))
            at = node + 1
        texts.append([*text, int(probabilities[at].argmax())])
    return max(texts, key=len)  # the first of equals


@st.composite
def trees(draw, vocab=6, most=12):
    size = draw(st.integers(0, most))
    tokens = [draw(st.integers(0, vocab - 1)) for _ in range(size)]
    return tree_of(tokens, [draw(st.integers(-1, node - 1)) for node in range(size)])


@settings(max_examples=150)
@given(
    tree=trees(),
    seed=st.integers(0, 10**6),
    top_k=st.integers(1, 5),
    p=st.one_of(st.just(0.0), st.floats(0.01, 0.6)),
)
def test_longest_is_what_lasers_code_does(tree, seed, top_k, p):
    logits = 2.0 * torch.randn(len(tree) + 1, 6, generator=torch.Generator().manual_seed(seed))
    rule = Relaxed(TopKFloor(top_k, p), NO_STOPS, "longest")
    walk = walk_of(rule, logits, tree, stops=NO_STOPS)
    assert walk.row.output.tolist() == laser(logits, tree, top_k, p)


@settings(max_examples=60)
@given(tree=trees(), seed=st.integers(0, 10**6), prefer=st.sampled_from(["probable", "longest"]))
def test_a_walk_costs_what_its_tokens_lost(tree, seed, prefer):
    """Path, outcomes, cost and statistics all follow from the text and the logits."""
    logits = torch.randn(len(tree) + 1, 6, generator=torch.Generator().manual_seed(seed))
    walk = walk_of(Relaxed(TopKFloor(3, 0.05), STOPS, prefer), logits, tree)
    losses, at = [], 0
    for node in walk.path:
        assert tree.parents[node] == at - 1
        scores = logits[at].log_softmax(-1)
        losses.append(float(scores.max() - scores[tree.token_ids[node]]))
        at = node + 1
    statistics = walk.row.statistics
    assert walk.cost == statistics.relaxed_cost == pytest.approx(sum(losses), abs=1e-5)
    assert statistics.relaxed_tokens == sum(loss > 0.0 for loss in losses)
    assert walk.num_tokens == len(walk.row.output)
    assert walk.row.output[: len(walk.path)].tolist() == tree.token_ids[walk.path].tolist()
    tested = {-1, *np.flatnonzero(walk.outcomes == 1)}  # siblings are tested together
    assert all((walk.outcomes[n] >= 0) <= (tree.parents[n] in tested) for n in range(len(tree)))
    assert (walk.outcomes[walk.path] == 1).all()


def test_verdicts_of_one_row_do_not_depend_on_its_neighbours():
    """Ragged trees, and a row in the middle of its prompt that no logits belong to."""
    generator = torch.Generator().manual_seed(3)
    drafted = [tree_of([1, 2, 3], [-1, 0, 1]), tree_of([]), tree_of([4, 5, 1], [-1, -1, 1])]
    logits = [torch.randn(len(tree) + 1, 6, generator=generator) for tree in drafted]
    rule = Relaxed(TopKFloor(4, 0.01), STOPS, "longest")
    alone = [walk_of(rule, own, tree) for own, tree in zip(logits, drafted, strict=True)]
    rows = [row_of(slot=slot) for slot in range(4)]
    rows[1].chunk = 0
    trees_of_all = [drafted[0], tree_of([]), *drafted[1:]]
    roots = np.array([0, 99, 4, 5])
    verifier = Verifier(rule, NO_PROCESSORS, STOPS)
    walks = verifier.accept(rows, trees_of_all, roots, torch.cat(logits))
    by_slot = sorted(walks, key=lambda walk: walk.row.slot)
    assert [walk.row.slot for walk in by_slot] == [0, 2, 3]
    for walk, single in zip(by_slot, alone, strict=True):
        assert walk.row.output.tolist() == single.row.output.tolist()
        assert walk.outcomes.tolist() == single.outcomes.tolist()
        assert walk.path == single.path


def test_a_walk_marks_siblings_refused_and_leaves_the_rest_untested():
    tree = tree_of([7, 8, 9, 9], [-1, -1, 1, 0])
    walk = take(Branch(row_of(), tree, 0, (1,), (0.25,)), 4, STOPS)
    assert walk.path == [1]
    assert walk.outcomes.tolist() == [0, 1, 0, -1]
    assert walk.row.output.tolist() == [8, 4]
    assert walk.num_tokens == 2
    assert walk.row.statistics.relaxed_tokens == 1
    assert walk.cost == walk.row.statistics.relaxed_cost == 0.25


def test_a_walk_ends_at_the_length_limit_even_if_the_draft_goes_on():
    row = row_of(max_new_tokens=1)
    walk = take(Branch(row, tree_of([8, 9], [-1, 0]), 0, (0, 1), (0.5, 0.5)), 4, STOPS)
    assert row.output.tolist() == [8]
    assert row.finish_reason == "length"
    assert walk.path == [0]
    assert walk.outcomes.tolist() == [1, -1]
    assert walk.cost == 0.5


def test_a_walk_ends_at_a_stop_token_in_the_draft():
    """The stop is a good guess, but neither it nor what follows is part of the row."""
    row = row_of()
    walk = take(Branch(row, tree_of([8, 0, 9], [-1, 0, 1]), 0, (0, 1, 2), (0.0,) * 3), 4, STOPS)
    assert row.output.tolist() == [8]
    assert row.finish_reason == "stop"
    assert walk.path == [0]
    assert walk.outcomes.tolist() == [1, 1, -1]


def test_a_stop_that_was_relaxed_counts_too():
    """LASER's code takes a stop token for another one; that is what it gives up most by."""
    rule = Relaxed(TopKFloor(2, 0.1), NO_STOPS, "longest")
    walk = walk_of(rule, logits_of([0.3, 0.5, 0.2]).repeat(2, 1), tree_of([0]))
    assert walk.row.finish_reason == "stop"
    assert walk.row.statistics.relaxed_tokens == 1
    assert walk.cost == pytest.approx(math.log(0.5 / 0.3), abs=1e-5)


def test_a_tie_is_another_token_and_costs_nothing():
    rule = Relaxed(TopKFloor(1, 0.0), STOPS)
    walk = walk_of(rule, torch.tensor([[0.0, 3.0, 0.0, 3.0]] * 2), tree_of([3]))
    assert walk.row.output.tolist() == [3, 1]
    assert walk.row.statistics.relaxed_tokens == 1
    assert walk.cost == pytest.approx(0.0, abs=1e-30)


def test_what_stands_behind_a_completed_stop_string_makes_no_branch_longer():
    stops = Stops([], ["b"], lambda ids: "".join("abcde"[token] for token in ids))
    rule = Relaxed(TopKFloor(5, 0.0), NO_STOPS, "longest")
    tree = tree_of([1, 3, 0, 3, 4], [-1, 0, -1, 2, 1])  # "bde" ends at its "b", "ad" does not
    logits = torch.zeros(6, 5) + torch.tensor([0.3, 0.2, 0.0, 0.1, 0.1])
    assert walk_of(rule, logits, tree, stops=stops).row.output.tolist()[:2] == [0, 3]


def test_a_walk_of_a_later_step_counts_its_own_tokens_only():
    row = row_of()
    take(Branch(row, tree_of([8]), 0, (0,), (0.5,)), 4, STOPS)
    walk = take(Branch(row, tree_of([9]), 0, (0,), (0.25,)), 3, STOPS)
    assert (walk.num_tokens, walk.cost) == (2, 0.25)
    assert row.statistics.relaxed_cost == 0.75


def test_the_penalty_sees_prompt_output_and_path():
    """Logits favour token 3 by little; once it was said, token 4 wins."""
    logits = torch.tensor([[0.0, 0.0, 0.0, 2.0, 1.9, 9.0, -1.0, 0.0]]).repeat(4, 1)
    processors = Processors(frozenset([STOP]), repetition_penalty=5.0)
    drafted = tree_of([3, 4, 3], [-1, 0, 1])
    walk = walk_of(Strict(), logits, drafted, row_of([5, 5, 6]), processors=processors)
    # 5 is in the prompt: 9 / 5 = 1.8 < 2.0 -> 3; then 3 is penalised: 4; then 5 (1.8 is best)
    assert walk.row.output.tolist() == [3, 4, 5]
    assert walk.outcomes.tolist() == [1, 1, 0]


def test_a_branch_knows_its_context():
    row = row_of([5, 6, 5])
    row.append(7, STOPS)
    branch = Branch(row, tree_of([8, 5, 9], [-1, 0, 1]), 10, (0, 1), (0.0, 0.0))
    assert branch.context.tolist() == [5, 6, 5, 7, 8, 5]
    assert branch.output.tolist() == [7, 8, 5]
    assert branch.num_new == 3
    assert set(branch.distinct_tokens) == {5, 6, 7, 8}
    assert (branch.last, branch.decision, branch.children().tolist()) == (1, 12, [2])
    start = Branch(row, branch.tree, 10)
    assert (start.last, start.decision, start.children().tolist()) == (ROOT, 10, [0])


def spend(nats_per_token, rows, steps, seed=0):
    """Verify random logits that offer three tokens at every level: tokens, cost, dearest step."""
    generator = torch.Generator().manual_seed(seed)
    parents = [-1, -1, -1, 0, 0, 0, 3, 3, 3]
    random = np.random.default_rng(seed)
    verifier = Verifier(Relaxed(QualityBudget(nats_per_token), STOPS), NO_PROCESSORS, STOPS)
    tokens, costs = 0, []
    for _ in range(steps):
        step_rows = [row_of(slot=slot) for slot in range(rows)]
        offered = [tree_of(random.permuted([[1, 2, 3]] * 3, axis=1).ravel(), parents)] * rows
        logits = 1.5 * torch.randn(10 * rows, 6, generator=generator)
        walks = verifier.accept(step_rows, offered, 10 * np.arange(rows), logits)
        tokens += sum(walk.num_tokens for walk in walks)
        costs.append(sum(walk.cost for walk in walks))
    return tokens, costs


@pytest.mark.parametrize(("rows", "steps"), [(1, 700), (32, 50)])
def test_a_quality_budget_is_kept_and_a_larger_one_gives_more_tokens(rows, steps):
    """Overdrawn by the allowance of 200 tokens and a step at most; in the long run it is used."""
    written = []
    for allowed in (0.02, 0.1):
        tokens, costs = spend(allowed, rows, steps)
        assert sum(costs) <= allowed * (tokens + 200) + max(costs)
        assert sum(costs) >= 0.6 * allowed * tokens
        written.append(tokens)
    nothing, costs = spend(0.0, rows, steps)
    assert nothing < written[0] < written[1]
    assert sum(costs) == 0.0


def test_debt_of_a_quality_budget_is_not_forgiven():
    """A step of many rows may overspend far; strict steps have to pay for it."""
    budget = QualityBudget(0.1)
    budget.observe(tokens=100, cost=110.0)  # 100 nats too many
    certain = logits_of([0.9, 0.1])
    for _ in range(8):  # pays 10 nats each; the first 200 tokens' allowance pays 20
        budget.observe(tokens=100, cost=0.0)
        assert float(budget.floor(certain)) == pytest.approx(math.log(0.9))
    budget.observe(tokens=100, cost=0.0)
    budget.observe(tokens=100, cost=0.0)
    assert float(budget.floor(certain)) < math.log(0.9)


def test_savings_of_a_quality_budget_end_somewhere():
    """However long nothing was lost, a token has to make some sense."""
    budget = QualityBudget(1.0)
    budget.observe(tokens=10_000, cost=0.0)
    assert float(budget.floor(logits_of([0.9, 0.1]))) == pytest.approx(math.log(0.9) - 4.0)


def test_what_is_drafted_behind_a_stop_does_not_make_a_branch_longer():
    """The stop is the model's first choice on one branch; the other branch is really longer."""
    tree = tree_of([3, STOP, 4, 5, 4, 6], [-1, 0, 1, 2, -1, 4])
    logits = torch.full((7, 8), -9.0)
    logits[0, 3], logits[0, 4] = 2.0, 1.9  # both may stay
    logits[1, STOP] = logits[2, 4] = logits[3, 5] = 3.0  # stop, and junk that would follow it
    logits[5, 6] = logits[6, 7] = 3.0
    row = Row(Request("a", np.array([1], np.int32), 9), 0)
    row.chunk = 1
    rule = Relaxed(TopKFloor(2, 0.1), STOPS, prefer="longest")
    Verifier(rule, NO_PROCESSORS, STOPS).accept([row], [tree], np.array([0]), logits)
    assert row.output.tolist() == [4, 6, 7]
