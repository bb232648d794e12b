"""The rules, and the bookkeeping of a walk."""

import numpy as np
import pytest
import torch

from pipeline.engine.row import Row
from pipeline.engine.types import DraftTree, Request
from pipeline.engine.verify import Relaxed, Strict, Verifier, Walk

STOP = 0


def logits_of(*rows):
    """Log-probabilities as logits; each row must sum to 1."""
    return torch.tensor(rows).log()


def offers(*rows):
    return [np.array(row, np.int32) for row in rows]


def tree(tokens, parents):
    size = len(tokens)
    return DraftTree(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.ones(size, np.float32),
        np.zeros(size, np.int8),
        np.zeros(size, np.int32),
    )


def test_strict_ignores_what_is_offered():
    logits = logits_of([0.1, 0.6, 0.3], [0.2, 0.2, 0.6])
    assert Strict().choose(logits, offers([2], [])).tokens == [1, 2]


@pytest.mark.parametrize(
    ("probabilities", "offered", "token", "why"),
    [
        ([0.05, 0.50, 0.30, 0.15], [2], 2, "second best above the floor"),
        ([0.05, 0.50, 0.30, 0.15], [1, 2], 1, "the best is offered too"),
        ([0.05, 0.50, 0.30, 0.15], [3], 1, "third best is outside the top 2"),
        ([0.05, 0.86, 0.05, 0.04], [2], 1, "second best below the floor"),
        ([0.05, 0.50, 0.30, 0.15], [], 1, "nothing offered"),
        ([0.50, 0.30, 0.15, 0.05], [1], 0, "the model wants to stop"),
        ([0.30, 0.50, 0.15, 0.05], [0], 1, "a stop is never taken for second best"),
    ],
)
def test_relaxed_takes_an_offer_only_in_the_top_k_and_above_the_floor(
    probabilities, offered, token, why
):
    rule = Relaxed(top_k=2, floor=0.1, stop_ids=frozenset([STOP]))
    choice = rule.choose(logits_of(probabilities), offers(offered))
    assert choice.tokens == [token], why
    best = max(probabilities)
    expected = np.log(best / probabilities[token])
    assert choice.costs[0] == pytest.approx(expected, abs=1e-5)


def test_relaxed_takes_the_most_probable_acceptable_offer():
    rule = Relaxed(top_k=3, floor=0.01, stop_ids=frozenset([STOP]))
    choice = rule.choose(logits_of([0.05, 0.5, 0.15, 0.3]), offers([2, 3]))
    assert choice.tokens == [3]


def test_relaxed_with_k_1_is_strict():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 9, generator=generator)
    offered = [np.arange(9, dtype=np.int32)] * 25 + [np.array([3], np.int32)] * 25
    rule = Relaxed(top_k=1, floor=0.0, stop_ids=frozenset([STOP]))
    assert rule.choose(logits, offered).tokens == Strict().choose(logits, offered).tokens


def test_a_walk_marks_chosen_siblings_refused_and_leaves_the_rest_untested():
    row = Row(Request("a", np.array([5], np.int32), 10), 0)
    walk = Walk(row, tree([7, 8, 9, 9], [-1, -1, 1, 0]), root=0)
    assert walk.take(8, 0.0, {STOP})
    assert walk.path == [1]
    assert not walk.take(4, 0.25, {STOP})
    assert walk.outcomes.tolist() == [0, 1, 0, -1]
    assert row.output.tolist() == [8, 4]
    assert row.statistics.relaxed_tokens == 1
    assert row.statistics.relaxed_cost == 0.25


def test_a_walk_ends_at_the_length_limit_even_if_the_draft_goes_on():
    row = Row(Request("a", np.array([5], np.int32), 1), 0)
    walk = Walk(row, tree([8, 9], [-1, 0]), root=0)
    assert not walk.take(8, 0.0, {STOP})
    assert row.finish_reason == "length"


def test_the_penalty_sees_prompt_output_and_path():
    """Logits favour token 3 by little; once it was said, token 4 wins."""
    rows = [Row(Request("a", np.array([5, 5, 6], np.int32), 4), 0)]
    rows[0].num_cached, rows[0].chunk = 2, 1
    logits = torch.tensor([[0.0, 0.0, 0.0, 2.0, 1.9, 9.0, -1.0, 0.0]])
    verifier = Verifier(Strict(), {STOP}, repetition_penalty=5.0)
    drafted = tree([3, 4, 3], [-1, 0, 1])
    walks = verifier.accept(rows, [drafted], np.array([0]), logits.repeat(4, 1))
    # 5 is in the prompt: 9 / 5 = 1.8 < 2.0 -> 3; then 3 is penalised: 4; then 5 (1.8 is best)
    assert rows[0].output.tolist() == [3, 4, 5]
    assert walks[0].outcomes.tolist() == [1, 1, 0]
