"""Beam search with and without drafts, against plain beam search that computes everything anew."""

import numpy as np
import pytest
import torch

from pipeline.generative.beam_engine import BeamEngine
from pipeline.generative.code_tree import NONE
from pipeline.generative.drafters import ExhaustiveDraft, NoDraft, Requests
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.recommender import load_recommender, make_recommender
from pipeline.generative.session import Histories
from pipeline.generative.trie_tensors import trie_tensors
from pipeline.generative.verification import StrictTopK
from pipeline.generative_config import RecommenderSettings

LEVELS, CODES, ITEMS = 3, 5, 60
SETTINGS = RecommenderSettings(hidden_dim=16, layers=2, heads=2, history_length=4)


def a_model(seed=0):
    model = make_recommender(SETTINGS, LEVELS, CODES, seed).eval()
    generator = torch.Generator().manual_seed(seed)
    for weights in (model.heads, model.tokens.weight):
        weights.data = torch.randn(weights.shape, generator=generator)
    return model


def a_trie(seed=0, items=ITEMS):
    every = np.stack(np.unravel_index(np.arange(CODES**LEVELS), [CODES] * LEVELS), 1)
    codes = np.random.default_rng(seed).permutation(every)[:items]
    return ItemTrie(np.arange(items), codes, np.ones(items, bool)), codes


def requests(codes, lengths, seed=0):
    """Users with so many items in their histories."""
    rng = np.random.default_rng(seed)
    most = max(lengths)
    items = np.full((len(lengths), most), -1)
    tokens = np.full((len(lengths), 1 + most * LEVELS), LEVELS * CODES)
    for user, length in enumerate(lengths):
        items[user, :length] = rng.integers(0, len(codes), length)
        own = codes[items[user, :length]] + np.arange(LEVELS) * CODES
        tokens[user, 1 : 1 + length * LEVELS] = own.ravel()
    spans = torch.tensor([1 + length * LEVELS for length in lengths])
    histories = Histories(torch.from_numpy(tokens), spans)
    return Requests(histories, torch.from_numpy(items), torch.arange(len(lengths)))


@torch.inference_mode()
def plain_beam_search(model, trie, tokens, width):
    """One user, no cache, no batch: every beam is a sequence of its own."""
    beams = [((), 0.0, 0)]
    for level in range(LEVELS):
        found = []
        for codes, score, node in beams:
            own = [code + place * CODES for place, code in enumerate(codes)]
            sequence = torch.cat([tokens, torch.tensor(own, dtype=torch.int64)])[None]
            size = sequence.shape[1]
            sees = torch.ones(1, size, size, dtype=torch.bool).tril()
            hidden = model(sequence, torch.arange(size)[None], sees)
            log_probs = model.log_probs(hidden[:, -1:], torch.tensor([level]))[0, 0]
            for code in range(CODES):
                child = int(trie.advance(np.array([node]), np.array([code]))[0])
                if child != NONE:
                    found.append(((*codes, code), score + float(log_probs[code]), child))
        beams = sorted(found, key=lambda beam: -beam[1])[:width]
    return beams


def check(found, row, expected):
    count = len(expected)
    assert found.codes[row, :count].tolist() == [list(codes) for codes, _, _ in expected]
    np.testing.assert_allclose(found.scores[row, :count], [s for _, s, _ in expected], atol=1e-4)
    assert (found.scores[row, count:] == -torch.inf).all()


@pytest.mark.parametrize("drafter", [NoDraft(), ExhaustiveDraft(5), ExhaustiveDraft(30)])
@pytest.mark.parametrize("width", [1, 4, 25, 80])
def test_lists_are_those_of_plain_beam_search(drafter, width):
    model, (trie, codes) = a_model(), a_trie()
    batch = requests(codes, [4, 0, 2, 1, 3])
    engine = BeamEngine(model, trie_tensors(trie, CODES, "cpu"), drafter, StrictTopK(), width)
    found = engine.search(batch)
    for row, length in enumerate(batch.histories.lengths.tolist()):
        tokens = batch.histories.tokens[row, :length]
        check(found, row, plain_beam_search(model, trie, tokens, width))


def test_drafts_save_calls():
    model, (trie, codes) = a_model(), a_trie()
    batch = requests(codes, [4, 0, 2, 1, 3])
    edges = trie_tensors(trie, CODES, "cpu")
    plain, drafted = (
        BeamEngine(model, edges, drafter, StrictTopK(), 4).search(batch)
        for drafter in (NoDraft(), ExhaustiveDraft(CODES + CODES**2))
    )
    assert plain.calls.tolist() == [LEVELS] * 5
    assert plain.accepted.tolist() == [0] * 5
    assert drafted.calls.tolist() == [1] * 5
    assert drafted.accepted.tolist() == [LEVELS - 1] * 5
    some = BeamEngine(model, edges, ExhaustiveDraft(CODES), StrictTopK(), 4).search(batch)
    assert some.calls.tolist() == [2] * 5


def test_what_is_no_beam_is_not_scored():
    model, (trie, codes) = a_model(), a_trie()
    engine = BeamEngine(model, trie_tensors(trie, CODES, "cpu"), NoDraft(), StrictTopK(), 80)
    prefixes = [len(np.unique(codes[:, :depth], axis=0)) for depth in range(1, LEVELS)]
    assert engine.search(requests(codes, [3])).scored.tolist() == [sum(prefixes)]


def test_without_a_constraint_lists_may_hold_what_is_no_item():
    model, (trie, codes) = a_model(), a_trie()
    batch = requests(codes, [4, 1])
    edges = trie_tensors(trie, CODES, "cpu", is_constraint=False)
    found = BeamEngine(model, edges, NoDraft(), StrictTopK(), CODES**LEVELS).search(batch)
    assert torch.isfinite(found.scores).all()
    for row in range(2):
        valid = trie.contains(found.codes[row].numpy())
        assert valid.sum() == ITEMS
        assert ((found.nodes[row] != NONE).numpy() == valid).all()


def test_excluded_items_are_not_found():
    model, (trie, codes) = a_model(), a_trie()
    batch = requests(codes, [4, 1])
    edges = trie_tensors(trie, CODES, "cpu")
    whole = BeamEngine(model, edges, ExhaustiveDraft(40), StrictTopK(), ITEMS).search(batch)
    assert torch.isfinite(whole.scores).all()
    excluded = torch.zeros(2, ITEMS, dtype=torch.bool)
    excluded[0, whole.nodes[0, :7] - trie.first_leaf] = True
    rest = BeamEngine(model, edges, ExhaustiveDraft(40), StrictTopK(), ITEMS).search(
        batch._replace(excluded=excluded)
    )
    assert rest.codes[0, : ITEMS - 7].tolist() == whole.codes[0, 7:].tolist()
    assert (rest.scores[0, ITEMS - 7 :] == -torch.inf).all()
    assert rest.codes[1].tolist() == whole.codes[1].tolist()


def test_beams_that_lead_to_nothing_do_not_take_the_place_of_others():
    model, (trie, codes) = a_model(), a_trie()
    batch = requests(codes, [4, 1])
    edges = trie_tensors(trie, CODES, "cpu")
    engine = BeamEngine(model, edges, NoDraft(), StrictTopK(), 3)
    liked = engine.search(batch).codes[:, :, 0]  # first codes of the best
    first = trie.leaves_of(np.arange(ITEMS)) - trie.first_leaf  # leaf of every item
    excluded = torch.zeros(2, ITEMS, dtype=torch.bool)
    for user in range(2):
        is_gone = np.isin(codes[:, 0], liked[user].numpy())
        excluded[user, first[is_gone]] = True
    found = engine.search(batch._replace(excluded=excluded))
    assert torch.isfinite(found.scores).all()
    assert not any(set(found.codes[u, :, 0].tolist()) & set(liked[u].tolist()) for u in range(2))
    # One item alone is left: it is found whatever the model thinks of its beginning.
    for item in range(0, ITEMS, 7):
        excluded[:] = True
        excluded[:, first[item]] = False
        found = engine.search(batch._replace(excluded=excluded))
        assert found.codes[:, 0].tolist() == [codes[item].tolist()] * 2
        assert (found.scores[:, 1:] == -torch.inf).all()


def test_a_saved_model_scores_as_before(tmp_path):
    model, (trie, codes) = a_model(), a_trie()
    model.save(tmp_path / "m")
    batch = requests(codes, [4, 1])
    lists = [
        BeamEngine(one, trie_tensors(trie, CODES, "cpu"), NoDraft(), StrictTopK(), 9).search(batch)
        for one in (model, load_recommender(tmp_path / "m"))
    ]
    assert torch.equal(lists[0].codes, lists[1].codes)
    assert torch.equal(lists[0].scores, lists[1].scores)
