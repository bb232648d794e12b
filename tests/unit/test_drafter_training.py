"""Teacher beams against plain beam search, and drafters that learn from them."""

from collections import Counter

import numpy as np
import pytest
import torch

from pipeline.generative.drafter_training import (
    Target,
    accepted_levels,
    align_drafter,
    draw_contexts,
)
from pipeline.generative.event_log import NO_ITEM, EventLog
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.recommender import make_recommender
from pipeline.generative.recommender_training import tokens_of
from pipeline.generative.teacher_beams import find_teacher_beams, tree_log_probs
from pipeline.generative.trie_tensors import trie_tensors
from pipeline.generative_config import (
    AlignedDrafterSettings,
    RecommenderSettings,
    TrainingSettings,
)

LEVELS, CODES, ITEMS, MOST = 3, 6, 150, 3
EVERY = np.stack(np.unravel_index(np.arange(CODES**LEVELS), [CODES] * LEVELS), 1)
CODES_OF = np.random.default_rng(0).permutation(EVERY)[:ITEMS]
SETTINGS = AlignedDrafterSettings(
    hidden_dim=16,
    layers=1,
    heads=2,
    teacher_beams=8,
    training=TrainingSettings(
        learning_rate=1e-2, batch_size=16, max_epochs=4, patience=4, warm_up=0
    ),
)


@pytest.fixture(scope="module")
def target():
    settings = RecommenderSettings(hidden_dim=16, layers=2, heads=2, history_length=MOST)
    model = make_recommender(settings, LEVELS, CODES, 0).eval()
    generator = torch.Generator().manual_seed(0)
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data = 0.3 * torch.randn(weights.shape, generator=generator)
    tree = ItemTrie(np.arange(ITEMS), CODES_OF, np.ones(ITEMS, bool))
    return Target(model, trie_tensors(tree, CODES, "cpu"), CODES_OF)


def a_log(users, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 6, users)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    times = np.concatenate([np.arange(size) for size in sizes])
    items = rng.integers(0, ITEMS, len(times))
    return EventLog(starts, items, times, np.zeros(len(times), np.int8))


def a_drafter(seed=1):
    return make_recommender(SETTINGS.shape(MOST), LEVELS, CODES, seed)


@torch.inference_mode()
def naive_log_probs(model, items, codes):
    """Of each next code of one id after one history, a forward pass for each."""
    tokens = [model.bos]
    tokens += (CODES_OF[items] + np.arange(LEVELS) * CODES).ravel().tolist()
    found = []
    for level, code in enumerate(codes.tolist()):
        size = len(tokens)
        sees = torch.ones(1, size, size, dtype=torch.bool).tril()
        hidden = model(torch.tensor([tokens]), torch.arange(size)[None], sees)
        found.append(model.log_probs(hidden[:, -1:], torch.tensor([level]))[0, 0])
        tokens.append(level * CODES + code)
    return torch.stack(found)


def test_contexts_are_events_with_what_came_before():
    log = a_log(40)
    contexts = draw_contexts(log, 30, MOST, 5)
    assert len(contexts) == 30
    users = log.users
    expected = []
    for row in range(len(log.items)):
        before = log.items[log.starts[users[row]] : row][-MOST:]
        expected.append((*before.tolist(), *[NO_ITEM] * (MOST - len(before)), log.items[row]))
    found = [
        (*own.tolist(), item)
        for own, item in zip(contexts.histories, contexts.targets, strict=True)
    ]
    assert Counter(found) <= Counter(expected)
    assert len(set(found)) > 25  # drawn among all
    assert len(draw_contexts(log, 10**6, MOST, 5)) == len(log.items)


def test_teacher_beams_are_the_models_best_ids_with_its_probabilities(target, monkeypatch):
    monkeypatch.setattr("pipeline.generative.teacher_beams._AT_ONCE", 4)
    items = draw_contexts(a_log(40), 6, MOST, 0).histories
    beams = find_teacher_beams(target.model, target.trie, items, CODES_OF, 200)
    assert beams.is_real.sum(1).tolist() == [ITEMS] * 6  # more were asked for than there are
    first, *later = beams.log_probs()
    assert [first.shape, *(own.shape for own in later)] == [
        (6, 1, CODES),
        *[(6, 200, CODES)] * (LEVELS - 1),
    ]
    for row in range(6):
        history = items[row][items[row] != NO_ITEM]
        real = beams.codes[row, :ITEMS]
        assert len({*map(tuple, real.tolist())}) == ITEMS
        sums = []
        for column in range(0, ITEMS, 7):
            own = naive_log_probs(target.model, history, real[column])
            found = torch.stack([first[row, 0], *(level[row, column] for level in later)])
            torch.testing.assert_close(found, own, atol=1e-4, rtol=0)
            sums.append(float(own.gather(1, real[column][:, None]).sum()))
        assert (np.diff(sums) < 1e-5).all()
    few = find_teacher_beams(target.model, target.trie, items, CODES_OF, 8)
    assert few.is_real.all()
    assert few.nbytes == 6 * (8 * LEVELS * 8 + 8 + CODES * 4 + 8 * (LEVELS - 1) * CODES * 4)


def test_gradients_of_a_tree_are_those_of_sequences(target):
    drafter = a_drafter()
    items = np.array([[3, 4, NO_ITEM], [7, NO_ITEM, NO_ITEM]])
    codes = torch.from_numpy(CODES_OF[[[1, 2, 3], [4, 5, 6]]])
    found = tree_log_probs(drafter, tokens_of(items, CODES_OF, drafter), codes)
    weights = torch.randn(2, 3, LEVELS, CODES, generator=torch.Generator().manual_seed(0))
    total = sum((own * weights[:, :, level]).sum() for level, own in enumerate(found))
    assert isinstance(total, torch.Tensor)
    used = [own for name, own in drafter.named_parameters() if "embed_tokens" not in name]
    ours = torch.autograd.grad(total, used)
    plain = torch.zeros(())
    for user in range(2):
        for beam in range(3):
            with_id = np.append(items[user][items[user] != NO_ITEM], -1)[:-1]
            own = sequence_log_probs(drafter, with_id, codes[user, beam])
            plain = plain + (own * weights[user, beam]).sum()
    theirs = torch.autograd.grad(plain, used)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def sequence_log_probs(model, items, codes):
    """Of each next code, (levels, codes), the id as the end of one sequence."""
    offset = torch.arange(LEVELS) * CODES
    tokens = torch.from_numpy(CODES_OF[items]) + offset
    sequence = torch.cat([torch.tensor([model.bos]), tokens.flatten(), (codes + offset)[:-1]])
    size = len(sequence)
    sees = torch.ones(1, size, size, dtype=torch.bool).tril()
    hidden = model(sequence[None], torch.arange(size)[None], sees)[0, -LEVELS:]
    rows = [
        model.log_probs(hidden[level].view(1, 1, -1), torch.tensor([level]))[0, 0]
        for level in range(LEVELS)
    ]
    return torch.stack(rows)


def trained(target, loss, seed=0, checkpoint=None, **changes):
    contexts = draw_contexts(a_log(200), 300, MOST, seed)
    stop_by = draw_contexts(a_log(60, seed=9), 60, MOST, seed).histories
    beams = find_teacher_beams(
        target.model, target.trie, contexts.histories, CODES_OF, SETTINGS.teacher_beams
    )
    training = SETTINGS.training.model_copy(update=changes)
    settings = SETTINGS.model_copy(update={"loss": loss, "training": training})
    drafter = a_drafter()
    fitted = align_drafter(drafter, target, beams, contexts, stop_by, settings, seed, checkpoint)
    return drafter, fitted, stop_by


@pytest.fixture(scope="module")
def narrower(target):
    """Of searches that are hard enough: all 40 of 150 items' prefixes would cover nearly any."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.generative.drafter_training._KEPT", 4)
        patch.setattr("pipeline.generative.drafter_training._DRAFTED", 8)
        yield target


@pytest.fixture(scope="module")
def unaligned(narrower):
    return trained(narrower, "sft")[0]


@pytest.mark.parametrize("loss", ["atspeed_s", "atspeed_r", "forward_kl", "reverse_kl"])
def test_alignment_on_teacher_beams_beats_learning_from_likes(narrower, unaligned, loss):
    """R3 at equal steps: likes here say nothing of the model, its beams do."""
    aligned, fitted, stop_by = trained(narrower, loss)
    before = accepted_levels(narrower, unaligned, stop_by)
    after = accepted_levels(narrower, aligned, stop_by)
    assert after > before + 0.3
    assert fitted.best_epoch >= 1
    assert fitted.best == pytest.approx(
        accepted_levels(narrower, aligned, stop_by, samples=loss == "atspeed_r")
    )


def test_accepted_levels_are_those_of_all_batches(narrower, monkeypatch):
    drafter, stop_by = narrower.model, draw_contexts(a_log(60), 50, MOST, 0).histories
    assert accepted_levels(narrower, drafter, stop_by) == LEVELS - 1
    other = a_drafter().eval()
    whole = [accepted_levels(narrower, other, stop_by, samples) for samples in (False, True)]
    monkeypatch.setattr("pipeline.generative.drafter_training._AT_ONCE", 7)
    parts = [accepted_levels(narrower, other, stop_by, samples) for samples in (False, True)]
    assert parts == whole
    assert accepted_levels(narrower, other, stop_by[:0]) == 0.0


def test_a_killed_training_ends_as_it_would(narrower, tmp_path):
    place = tmp_path / "c.safetensors"
    whole, _, _ = trained(narrower, "atspeed_s", max_epochs=2)
    trained(narrower, "atspeed_s", checkpoint=place, max_epochs=1)
    assert place.exists()
    resumed, fitted, _ = trained(narrower, "atspeed_s", checkpoint=place, max_epochs=2)
    assert fitted.epochs == 2
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
