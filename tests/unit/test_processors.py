"""Every branch's logits are changed as transformers changes those of its own path."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from pipeline.engine.branch import Branch
from pipeline.engine.processors import Processors
from pipeline.engine.row import Row
from pipeline.engine.stops import Stops
from pipeline.engine.types import DraftTree, Request

VOCAB = 7  # few, so that n-grams recur
NO_STOPS = Stops([])


def chain(tokens):
    size = len(tokens)
    return DraftTree(
        np.array(tokens, np.int32),
        np.arange(-1, size - 1, dtype=np.int32),
        np.ones(size, np.float32),
        np.zeros(size, np.int8),
        np.zeros(size, np.int32),
    )


def branch_of(prompt, output, path):
    """A row that has said `output`, and a branch over its drafted `path`."""
    row = Row(Request("a", np.array(prompt, np.int32), 40), 0)
    for token in output:
        row.append(token, NO_STOPS)
    nodes = tuple(range(len(path)))
    return Branch(row, chain([*path, 0]), 0, nodes, (0.0,) * len(nodes))


def theirs(scores, prompt, output, path, processors):
    """What transformers makes of one row of scores (vocab,)."""
    chosen = LogitsProcessorList()
    if processors.repetition_penalty != 1.0:
        chosen.append(RepetitionPenaltyLogitsProcessor(processors.repetition_penalty))
    if processors.no_repeat_ngram:
        chosen.append(NoRepeatNGramLogitsProcessor(processors.no_repeat_ngram))
    if processors.min_new_tokens:
        stops = sorted(processors.stop_ids)
        least = processors.min_new_tokens
        chosen.append(MinNewTokensLengthLogitsProcessor(len(prompt), least, stops))
    return chosen(torch.tensor([[*prompt, *output, *path]]), scores[None].clone())[0]


tokens = st.integers(0, VOCAB - 1)
contexts = st.tuples(
    st.lists(tokens, min_size=1, max_size=9),
    st.lists(tokens, max_size=6),
    st.lists(tokens, max_size=5),
)


@settings(max_examples=150)
@given(
    cases=st.lists(contexts, min_size=1, max_size=4),
    seed=st.integers(0, 10**6),
    processors=st.builds(
        Processors,
        stop_ids=st.frozensets(tokens, min_size=1, max_size=3),
        repetition_penalty=st.sampled_from([1.0, 1.1, 2.0]),
        no_repeat_ngram=st.integers(0, 4),
        min_new_tokens=st.integers(0, 12),
    ),
)
def test_all_together_are_those_of_transformers(cases, seed, processors):
    scores = torch.randn(len(cases), VOCAB, generator=torch.Generator().manual_seed(seed))
    expected = [theirs(own, *case, processors) for own, case in zip(scores, cases, strict=True)]
    got = processors.apply(scores.clone(), [branch_of(*case) for case in cases])
    torch.testing.assert_close(got, torch.stack(expected), rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    ("processors", "changed"),
    [
        (Processors(frozenset([6])), set()),
        (Processors(frozenset([6]), repetition_penalty=1.5), {1, 2, 3, 4}),
        (Processors(frozenset([6]), no_repeat_ngram=2), {4}),  # 3 4 was said, and 3 is the last
        (Processors(frozenset([6]), no_repeat_ngram=3), {4}),
        (Processors(frozenset([6]), no_repeat_ngram=4), set()),  # 1 2 3 4, but now 4 2 3
        (Processors(frozenset([6]), min_new_tokens=4), {6}),
        (Processors(frozenset([6]), min_new_tokens=3), set()),
    ],
)
def test_each_changes_what_it_should(processors, changed):
    """Prompt 1 2 3, output 4, path 2 3: each processor has to see all three."""
    branch = branch_of([1, 2, 3], [4], [2, 3])
    before = torch.linspace(1.0, 2.0, VOCAB)[None]
    after = processors.apply(before.clone(), [branch])
    assert set(np.flatnonzero((after != before)[0].numpy())) == changed


@pytest.mark.parametrize("outside", [-1, VOCAB, 1000])
def test_stop_ids_that_no_token_has_ban_nothing(outside):
    processors = Processors(frozenset([2, outside]), min_new_tokens=5)
    scores = torch.linspace(1.0, 2.0, VOCAB)
    got = processors.apply(scores[None].clone(), [branch_of([1], [3], [])])[0]
    assert torch.equal(got, theirs(scores, [1], [3], [], processors))
    assert torch.isneginf(got).nonzero().ravel().tolist() == [2]


def test_paths_of_one_row_do_not_see_each_other():
    row = Row(Request("a", np.array([1], np.int32), 9), 0)
    tree = DraftTree(
        np.array([2, 3], np.int32),
        np.array([-1, -1], np.int32),
        np.ones(2, np.float32),
        np.zeros(2, np.int8),
        np.zeros(2, np.int32),
    )
    branches = [Branch(row, tree, 0, (node,), (0.0,)) for node in range(2)]
    scores = Processors(frozenset([6]), 2.0).apply(torch.ones(2, VOCAB), branches)
    assert scores.tolist() == [[1, 0.5, 0.5, 1, 1, 1, 1], [1, 0.5, 1, 0.5, 1, 1, 1]]


def test_a_banned_token_is_never_kept_however_probable():
    """A penalty turns no ban round: minus infinity stays what it is."""
    processors = Processors(frozenset([6]), 2.0, 1, 9)
    scores = processors.apply(torch.full((1, VOCAB), 5.0), [branch_of([1, 2], [3], [])])
    assert torch.isneginf(scores[0]).nonzero().ravel().tolist() == [1, 2, 3, 6]
