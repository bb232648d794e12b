"""A small model's beams as drafts: lists stay those of beam search, calls get fewer."""

import copy

import numpy as np
import pytest
import torch

from pipeline.generative.beam_engine import BeamEngine
from pipeline.generative.beams import Beams, Draft, Level, root_beams, score_tree
from pipeline.generative.code_tree import NONE
from pipeline.generative.drafters import NoDraft, Requests
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.recommender import make_recommender
from pipeline.generative.sampling import Sampling
from pipeline.generative.session import Histories, Session
from pipeline.generative.small_model_draft import SmallModelDraft
from pipeline.generative.trie_tensors import trie_tensors
from pipeline.generative.verification import StrictTopK
from pipeline.generative_config import RecommenderSettings

LEVELS, CODES, ITEMS = 5, 3, 90
LENGTHS = [4, 0, 2, 1, 3, 4, 2, 0]


def a_model(seed=0, hidden_dim=16, layers=2):
    settings = RecommenderSettings(
        hidden_dim=hidden_dim, layers=layers, heads=2, history_length=4, dropout=0.0
    )
    model = make_recommender(settings, LEVELS, CODES, seed).eval()
    generator = torch.Generator().manual_seed(seed)
    for weights in model.parameters():
        if weights.dim() > 1:  # large enough that histories matter
            weights.data = 0.4 * torch.randn(weights.shape, generator=generator)
    return model


def disturbed(model, by):
    """A model that agrees with another now and then."""
    generator = torch.Generator().manual_seed(1)
    found = copy.deepcopy(model)
    for weights in (found.heads, found.tokens.weight):
        weights.data += by * torch.randn(weights.shape, generator=generator)
    return found


def a_catalog(is_constraint=True, items=ITEMS):
    every = np.stack(np.unravel_index(np.arange(CODES**LEVELS), [CODES] * LEVELS), 1)
    codes = np.random.default_rng(0).permutation(every)[:items]
    trie = ItemTrie(np.arange(items), codes, np.ones(items, bool))
    return trie_tensors(trie, CODES, "cpu", is_constraint), codes


def requests(codes, lengths):
    rng = np.random.default_rng(0)
    tokens = np.full((len(lengths), 1 + max(lengths) * LEVELS), LEVELS * CODES)
    for user, length in enumerate(lengths):
        own = codes[rng.integers(0, len(codes), length)] + np.arange(LEVELS) * CODES
        tokens[user, 1 : 1 + length * LEVELS] = own.ravel()
    spans = torch.tensor([1 + length * LEVELS for length in lengths])
    seeds = torch.arange(len(lengths))
    return Requests(Histories(torch.from_numpy(tokens), spans), spans[:, None] - 1, seeds)


def assert_same(found, plain):
    assert torch.equal(found.codes, plain.codes)
    assert torch.equal(found.nodes, plain.nodes)
    torch.testing.assert_close(found.scores, plain.scores, atol=1e-4, rtol=0)
    assert torch.equal(found.calls + found.accepted, torch.full_like(plain.calls, LEVELS))


@pytest.mark.parametrize("is_constraint", [True, False])
@pytest.mark.parametrize(
    ("width", "beams", "levels"), [(1, 3, 4), (4, 8, 4), (6, 12, 2), (30, 45, 4)]
)
def test_strict_lists_are_those_of_beam_search(width, beams, levels, is_constraint):
    model, (catalog, codes) = a_model(), a_catalog(is_constraint)
    batch = requests(codes, LENGTHS)
    plain = BeamEngine(model, catalog, NoDraft(), StrictTopK(), width).search(batch)
    calls = []
    for small in (disturbed(model, 0.05), disturbed(model, 0.3), a_model(7, 8, 1)):
        draft = SmallModelDraft(small, beams, levels)
        found = BeamEngine(model, catalog, draft, StrictTopK(), width).search(batch)
        assert_same(found, plain)
        calls += found.calls.tolist()
    assert len(set(calls)) > 1  # users were done at different calls


def test_a_batch_whose_users_stand_at_different_depths():
    model, (catalog, codes) = a_model(), a_catalog()
    batch = requests(codes, LENGTHS * 4)
    draft = SmallModelDraft(disturbed(model, 0.1), 8, 4)
    plain = BeamEngine(model, catalog, NoDraft(), StrictTopK(), 4).search(batch)
    engine = BeamEngine(model, catalog, draft, StrictTopK(), 4)
    search, spread = engine._begin(batch), 0
    with torch.inference_mode():
        while len(search.users):
            search = engine.step(search)
            list(engine._retire(search))
            if len(search.users):
                spread = max(spread, int(search.beams.depth.max() - search.beams.depth.min()))
    assert spread >= 2
    together = engine.search(batch)
    assert_same(together, plain)
    for row in (0, 1, 5):
        one = Histories(batch.histories.tokens[[row]], batch.histories.lengths[[row]])
        alone = engine.search(Requests(one, batch.items[[row]], batch.seeds[[row]]))
        assert torch.equal(alone.codes[0], together.codes[row])
        assert alone.calls[0] == together.calls[row]  # drafts too are the same in any batch


def test_excluded_items_are_neither_drafted_nor_found():
    model, (catalog, codes) = a_model(), a_catalog()
    batch = requests(codes, [4, 1, 0])
    excluded = torch.rand(3, ITEMS, generator=torch.Generator().manual_seed(0)) < 0.5
    excluded[2] = True  # nothing is left
    batch = batch._replace(excluded=excluded)
    plain = BeamEngine(model, catalog, NoDraft(), StrictTopK(), 20).search(batch)
    draft = SmallModelDraft(disturbed(model, 0.2), 30)
    found = BeamEngine(model, catalog, draft, StrictTopK(), 20).search(batch)
    real = plain.scores > -torch.inf
    assert not real[2].any()
    assert torch.equal(found.codes[real], plain.codes[real])
    assert torch.equal(found.scores > -torch.inf, real)


@pytest.mark.parametrize("width", [1, 7, 40])
def test_the_model_as_its_own_drafter_needs_one_call(width):
    model, (catalog, codes) = a_model(), a_catalog()
    batch = requests(codes, LENGTHS)
    draft = SmallModelDraft(model, width, LEVELS)
    found = BeamEngine(model, catalog, draft, StrictTopK(), width).search(batch)
    assert_same(found, BeamEngine(model, catalog, NoDraft(), StrictTopK(), width).search(batch))
    assert found.calls.tolist() == [1] * len(LENGTHS)
    assert found.accepted.tolist() == [LEVELS - 1] * len(LENGTHS)


@torch.inference_mode()
def test_drafts_are_the_small_models_own_beams_with_its_sums():
    small, (catalog, codes) = a_model(3), a_catalog()
    batch = requests(codes, [4, 0, 2])
    beams = root_beams(3, LEVELS, torch.device("cpu"))
    session = Session(small, batch.histories)
    draft = (
        SmallModelDraft(small, 8, 3, Sampling())
        .begin(batch, catalog)
        .propose(session, beams, catalog)
    )
    assert [level.codes.shape[1] for level in draft.levels] == [3, 8, 8]
    assert draft.log_q is not None
    for user in range(3):
        tokens = batch.histories.tokens[user, : batch.histories.lengths[user]]
        above = [()]
        for number, (level, log_q) in enumerate(zip(draft.levels, draft.log_q, strict=True)):
            paths = []
            for column, path in enumerate(above):
                expected = naive_sums(small, tokens, path)
                allowed = log_q[user, column] > -torch.inf
                torch.testing.assert_close(
                    log_q[user, column][allowed], expected[allowed], atol=1e-4, rtol=0
                )
            for parent, code, node, is_real in zip(
                *(own[user] for own in (level.parents, level.codes, level.nodes, level.is_real)),
                strict=True,
            ):
                paths.append((*above[int(parent)], int(code)))
                assert bool(is_real) == (int(node) != NONE)
                assert not is_real or [*paths[-1]] in codes[:, : number + 1].tolist()
            assert len(set(paths)) == len(paths)
            above = paths


@torch.inference_mode()
def test_beams_of_different_depths_are_read_from_their_first_codes_on():
    small, (catalog, codes) = a_model(3), a_catalog(is_constraint=False)
    batch = requests(codes, [4, 0, 2, 1])
    scores = -torch.rand(4, 2, generator=torch.Generator().manual_seed(0))
    paths = torch.from_numpy(codes[:8].reshape(4, 2, LEVELS)).long()
    nodes = torch.zeros(4, 2, dtype=torch.int64)
    beams = Beams(paths, torch.tensor([3, 1, 2, 4]), scores, nodes, nodes)
    proposer = SmallModelDraft(small, 6, 3, Sampling()).begin(batch, catalog)
    for _ in range(2):  # the second time the histories are there already
        draft = proposer.propose(Session(small, batch.histories), beams, catalog)
        assert draft.log_q is not None
        for user, depth in enumerate(beams.depth.tolist()):
            tokens = batch.histories.tokens[user, : batch.histories.lengths[user]]
            for column in range(2):
                path = paths[user, column, :depth].tolist()
                own = naive_sums(small, tokens, path, depth) + scores[user, column]
                torch.testing.assert_close(draft.log_q[0][user, column], own, atol=1e-4, rtol=0)
        for number, level in enumerate(draft.levels, 1):  # no last code is drafted
            assert level.is_real.all(1).tolist() == (beams.depth + number < LEVELS).tolist()
            assert level.is_real.any(1).tolist() == (beams.depth + number < LEVELS).tolist()


@torch.inference_mode()
def test_what_is_drafted_below_complete_ids_does_no_harm():
    settings = RecommenderSettings(hidden_dim=16, layers=1, heads=2, history_length=1)
    model = make_recommender(settings, LEVELS, 50, 0).eval()
    histories = Histories(torch.full((2, 1), LEVELS * 50), torch.ones(2, dtype=torch.int64))
    codes = torch.full((2, 1, LEVELS), 49)
    nodes = torch.zeros(2, 1, dtype=torch.int64)
    level = Level(codes[..., 0], nodes, nodes, nodes > 0)
    beams = Beams(codes, torch.tensor([1, 4]), nodes.float(), nodes, nodes - 1)
    found = score_tree(Session(model, histories), beams, Draft([level] * 3))
    alone = score_tree(
        Session(model, Histories(*(own[:1] for own in histories))),
        beams.narrow(torch.tensor([0])),
        Draft([Level(*(own[:1] for own in level))] * 3),
    )
    for both, one in zip(found.log_probs, alone.log_probs, strict=True):
        torch.testing.assert_close(both[:1], one)


def naive_sums(model, tokens, path, after=0):
    """Log-probabilities of all continuations of a path, summed `after` so many codes: (codes,)."""
    total = torch.zeros(CODES)
    for depth in range(after, len(path) + 1):
        own = torch.tensor([code + level * CODES for level, code in enumerate(path[:depth])])
        sequence = torch.cat([tokens, own.long()])[None]
        size = sequence.shape[1]
        sees = torch.ones(1, size, size, dtype=torch.bool).tril()
        hidden = model(sequence, torch.arange(size)[None], sees)
        log_p = model.log_probs(hidden[:, -1:], torch.tensor([depth]))[0, 0]
        total = total + (log_p[path[depth]] if depth < len(path) else log_p)
    return total


def test_more_levels_are_accepted_with_more_drafted_and_fewer_kept():
    model, (catalog, codes) = a_model(), a_catalog()
    batch = requests(codes, [4, 1, 2, 3] * 50)
    small = disturbed(model, 0.1)

    def accepted(width, beams):
        draft = SmallModelDraft(small, beams, LEVELS)
        found = BeamEngine(model, catalog, draft, StrictTopK(), width).search(batch)
        return float(found.accepted.double().mean())

    by_beams = [accepted(4, beams) for beams in (4, 8, 16)]
    by_width = [accepted(width, 16) for width in (2, 4, 8)]
    assert np.diff(by_beams).min() > 0.2
    assert np.diff(by_width).max() < -0.2
