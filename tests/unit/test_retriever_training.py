"""Towers and their losses, against plain loops; what they learn; files; killed trainings."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.errors import DataError
from pipeline.generative.event_log import NO_ITEM, EventLog
from pipeline.generative.recommender import make_recommender
from pipeline.generative.recommender_training import (
    HeldOut,
    held_out,
    language_model_loss,
    tokens_of,
)
from pipeline.generative.retriever import (
    ContentTower,
    EncoderTower,
    Retriever,
    load_retriever,
)
from pipeline.generative.retriever_encoder_training import (
    EncoderAndTower,
    read_windows,
    train_encoder_tower,
)
from pipeline.generative.retriever_losses import (
    contrastive_loss,
    log_popularity,
    ranking_loss,
    recall,
)
from pipeline.generative.retriever_training import Lessons, end_states, train_content_tower
from pipeline.generative.session import Session
from pipeline.generative_config import RecommenderSettings, RetrieverSettings, TrainingSettings

LEVELS, CODES, ITEMS = 2, 12, 120
TRAINING = TrainingSettings(batch_size=8, max_epochs=5, patience=3, warm_up=0, learning_rate=1e-2)
CODES_OF = np.stack(np.unravel_index(np.arange(ITEMS), (CODES, CODES)), 1)
SMALL = RecommenderSettings(hidden_dim=16, layers=1, heads=2, history_length=4, dropout=0.0)


def a_model(seed=0):
    model = make_recommender(SMALL, LEVELS, CODES, seed).eval()
    generator = torch.Generator().manual_seed(seed)
    model.tokens.weight.data = torch.randn(model.tokens.weight.shape, generator=generator)
    return model


def lessons(users=30, cold=(), seed=0):
    """Users who like the next item of a circle; of each the last but one is held out."""
    rng = np.random.default_rng(seed)
    starts = np.arange(users + 1) * 9
    items = (rng.integers(ITEMS, size=(users, 1)) + np.arange(9)) % ITEMS
    splits = np.where(np.arange(9) < 8, 0, 2)
    log = EventLog(starts, items.ravel(), np.tile(np.arange(9), users), np.tile(splits, users))
    is_warm = np.ones(ITEMS, bool)
    is_warm[list(cold)] = False
    train = log.of_splits(("knowledge", "train"))
    return Lessons(train, held_out(log, "valid", is_warm, 4, 0), CODES_OF, is_warm, 4, seed)


def naive_hidden(model, items):
    tokens = [model.bos] + [
        level * CODES + int(code) for item in items for level, code in enumerate(CODES_OF[item])
    ]
    size = len(tokens)
    sees = torch.ones(1, size, size, dtype=torch.bool).tril()
    return model(torch.tensor([tokens]), torch.arange(size)[None], sees)[0]


HISTORIES = np.array([[3, 5, 1], [11, NO_ITEM, NO_ITEM], [NO_ITEM] * 3])


@torch.inference_mode()
def test_content_scores_are_cosines_with_the_end_of_each_history():
    model, tower = a_model(), ContentTower(16, 6, 8).eval()
    content = torch.randn(ITEMS, 6, generator=torch.Generator().manual_seed(1)) + 3
    tower.centre_on(content)
    vectors = tower.items(content)
    vectors[7] = 0  # nothing is known of it
    session = Session(model, tokens_of(HISTORIES, CODES_OF, model))
    session.open()
    scores = Retriever(tower, vectors).scores(session)
    for row, items in enumerate(HISTORIES):
        user = tower.user(naive_hidden(model, items[items != NO_ITEM])[-1])
        for item in (0, 1, 50):
            direction = content[item] / content[item].norm()
            own = tower.item(direction - (content / content.norm(dim=1, keepdim=True)).mean(0))
            expected = float(torch.cosine_similarity(user, own, dim=0))
            assert float(scores[row, item]) == pytest.approx(expected, abs=1e-5)
        assert scores[row, 7] == -torch.inf


@torch.inference_mode()
def test_encoder_scores_are_cosines_of_mean_states_of_history_and_item():
    model, tower = a_model(), EncoderTower(16, 8).eval()
    session = Session(model, tokens_of(HISTORIES, CODES_OF, model))
    session.open()
    scores = Retriever(tower, tower.all_items(model, CODES_OF)).scores(session)
    for row, items in enumerate(HISTORIES):
        user = tower.projection(naive_hidden(model, items[items != NO_ITEM]).mean(0))
        for item in (0, 1, 50):
            own = tower.projection(naive_hidden(model, [item]).mean(0))
            expected = float(torch.cosine_similarity(user, own, dim=0))
            assert float(scores[row, item]) == pytest.approx(expected, abs=1e-5)


@torch.inference_mode()
def test_who_goes_on_keeps_the_mean_of_its_history():
    model = a_model()
    session = Session(model, tokens_of(HISTORIES, CODES_OF, model))
    session.open()
    mean = session.mean
    session.narrow(torch.tensor([1, 2]))
    assert torch.equal(session.mean, mean[1:])
    session.open()
    assert session.calls == 1


@torch.inference_mode()
def test_one_pass_over_windows_gives_every_cut_and_the_loss_of_codes():
    both = EncoderAndTower(a_model(), 8).eval()
    windows = np.array([[3, 5, 1, 9], [11, 2, NO_ITEM, NO_ITEM], [7] + [NO_ITEM] * 3])
    cuts = read_windows(both, windows, CODES_OF)
    assert cuts.targets.tolist() == [5, 1, 9, 2]
    assert cuts.groups.tolist() == [0, 0, 0, 1]
    for user, past in zip(cuts.users, ([3], [3, 5], [3, 5, 1], [11]), strict=True):
        own = both.tower.projection(naive_hidden(both.model, past).mean(0))
        torch.testing.assert_close(user, own / own.norm(), atol=1e-5, rtol=1e-5)
    expected = language_model_loss(both.model, tokens_of(windows, CODES_OF, both.model))
    assert float(cuts.loss) == pytest.approx(float(expected), abs=1e-5)


@torch.inference_mode()
def test_end_states_stand_before_their_items():
    model, own = a_model(), lessons(3)
    ends = end_states(model, own)
    assert sorted(ends.targets.tolist()) == sorted(own.train.items.tolist())
    # Whatever the window shows of the past is the circle up to the item before, or nothing.
    for state, target in zip(ends.states, ends.targets.tolist(), strict=True):
        pasts = [[(target - back) % ITEMS for back in range(n, 0, -1)] for n in range(5)]
        found = [naive_hidden(model, past)[-1] for past in pasts]
        assert min(float((state - other).abs().max()) for other in found) < 1e-4


def unit(rows, seed, dim=4):
    vectors = torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))
    return vectors / vectors.norm(dim=1, keepdim=True)


def test_contrastive_loss_leaves_out_what_is_no_negative():
    users, items = unit(5, 0), unit(5, 1)
    targets, groups = torch.tensor([4, 8, 4, 6, 2]), torch.tensor([0, 0, 1, 1, 2])
    total = 0.0
    for row in range(5):
        scores = {}
        for column in range(5):
            is_same = targets[row] == targets[column] or groups[row] == groups[column]
            if column == row or not is_same:
                scores[column] = np.exp(float(users[row] @ items[column]) / 0.07)
        total -= np.log(scores[row] / sum(scores.values()))
    found = contrastive_loss(users, items, targets, groups, 0.07)
    assert float(found) == pytest.approx(total / 5, rel=1e-5)
    alone = contrastive_loss(users, items, torch.full((5,), 3), groups, 0.07)
    assert float(alone) == 0  # nobody has a negative; were they counted as exp(0), it would not be


def test_ranking_loss_is_over_warm_items_and_takes_popularity_off():
    users, items = unit(3, 0), unit(6, 1)
    is_warm = torch.tensor([True, True, False, True, True, False])
    prior = log_popularity(np.array([9, 0, 5, 4, 3, 0]), is_warm)
    shares = np.array([10, 1, 0, 5, 4, 0]) / 20
    np.testing.assert_allclose(prior.exp(), shares, atol=1e-6)
    targets, total = [0, 3, 1], 0.0
    for user, target in zip(users, targets, strict=True):
        weights = [
            float(s) * np.exp(float(user @ item) / 0.07)
            for s, item in zip(shares, items, strict=True)
        ]
        total -= np.log(weights[target] / sum(weights))
    found = ranking_loss(users, items, torch.tensor(targets), prior, 0.07)
    assert float(found) == pytest.approx(total / 3, rel=1e-5)


def test_recall_counts_targets_among_the_fifty_nearest_warm_items():
    items = torch.zeros(300, 2)
    items[:, 0] = torch.linspace(1, 0, 300)
    is_warm = torch.ones(300, dtype=torch.bool)
    is_warm[:10] = False
    users = torch.tensor([[1.0, 0.0]]).expand(3, 2)
    assert recall(users, items, torch.tensor([10, 59, 60]), is_warm) == pytest.approx(2 / 3)
    assert recall(users[:0], items, torch.zeros(0, dtype=torch.int64), is_warm) == 0
    is_warm[50:] = False  # 40 are left
    assert recall(users, items, torch.tensor([10, 19, 20]), is_warm) == pytest.approx(2 / 3)


def circle():
    """Content that tells where on the circle an item is."""
    angle = torch.arange(ITEMS) / ITEMS * 2 * torch.pi
    return torch.stack([f(angle * n) for f in (torch.sin, torch.cos) for n in (1, 2, 3, 5)], 1)


def content_settings(**update):
    return RetrieverSettings(dim=16, training=TRAINING.model_copy(update=update))


def test_a_content_tower_finds_what_comes_next_and_cold_items_like_it():
    cold = range(40, 60, 4)
    own = lessons(200, cold)
    content = circle()
    retriever, run = train_content_tower(a_model(), content, own, content_settings(max_epochs=12))
    assert run.best > 0.9  # by chance 50 / 115
    histories = np.array([[item - 2, item - 1] for item in cold])
    session = Session(a_model(), tokens_of(histories, CODES_OF, a_model()))
    with torch.inference_mode():
        session.open()
        scores = retriever.scores(session)
    rank = (scores > scores[torch.arange(5), list(cold)][:, None]).sum(1)
    assert rank.double().mean() < 35  # of 120; by chance 60


def test_items_without_content_are_trained_around():
    content = circle()
    content[5] = 0
    retriever, _ = train_content_tower(
        a_model(), content, lessons(), content_settings(max_epochs=1)
    )
    assert not retriever.vectors[5].any()
    torch.testing.assert_close(retriever.vectors[6].norm(), torch.tensor(1.0))


@pytest.mark.parametrize("tower", ["content", "encoder"])
def test_a_stored_retriever_scores_as_before(tmp_path, tower):
    model = a_model()
    if tower == "content":
        own = ContentTower(16, 8, 8)
        own.centre_on(circle())
        with torch.no_grad():
            vectors = own.items(circle())
    else:
        own = EncoderTower(16, 8)
        vectors = own.all_items(model, CODES_OF)
    Retriever(own.eval(), vectors).save(tmp_path / "r")
    with torch.inference_mode():
        session = Session(model, tokens_of(HISTORIES, CODES_OF, model))
        session.open()
        again = load_retriever(tmp_path / "r").scores(session)
        assert torch.equal(again, Retriever(own, vectors).scores(session))
    (tmp_path / "r" / "tower.json").write_text('{"tower": "other"}')
    with pytest.raises(DataError, match="holds no usable retriever"):
        load_retriever(tmp_path / "r")
    with pytest.raises(DataError, match="holds no usable retriever"):
        load_retriever(tmp_path / "nowhere")


def encoder_run(checkpoint=None, epochs=4):
    model = a_model()
    settings = RetrieverSettings(
        tower="encoder", dim=8, training=TRAINING.model_copy(update={"max_epochs": epochs})
    )
    own = lessons(60)
    trained = train_encoder_tower(model, own, settings, checkpoint)
    return model, own, trained.retriever, trained.stages


def test_an_encoder_learns_to_find_and_still_to_write():
    model, own, retriever, (first, second) = encoder_run()
    assert first.best > 0.7  # by chance 50 / 120
    assert second.best >= first.best - 0.05
    windows = tokens_of(own.stop_by.with_targets(), CODES_OF, model)
    with torch.inference_mode():
        before = language_model_loss(a_model(), windows)
        assert language_model_loss(model, windows) < before
        norms = retriever.vectors.norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(ITEMS))


def test_an_encoder_training_that_was_killed_ends_as_it_would_have(tmp_path):
    _, _, whole, expected = encoder_run(epochs=2)
    place = tmp_path / "own" / "at.safetensors"
    encoder_run(place, epochs=1)  # stage 2 had begun; its steps do not count
    (tmp_path / "own" / "at-stage2.safetensors").unlink()
    torch.manual_seed(99)
    _, _, again, found = encoder_run(place, epochs=2)
    assert [run.losses for run in found] == [run.losses for run in expected]
    assert torch.equal(again.vectors, whole.vectors)


NOBODY = HeldOut(np.zeros((0, 4), np.int64), np.zeros(0, np.int64))


@pytest.mark.parametrize("tower", ["content", "encoder"])
def test_without_held_out_events_the_last_epoch_counts(tower):
    own, settings = replace(lessons(8), stop_by=NOBODY), content_settings(max_epochs=3)
    if tower == "content":
        stages = [train_content_tower(a_model(), circle(), own, settings)[1]]
    else:
        stages = train_encoder_tower(a_model(), own, settings, None).stages
    assert {(run.best_epoch, run.epochs) for run in stages} == {(3, 3)}


def test_histories_of_one_item_teach_the_encoder_codes_only():
    own = lessons(4)
    rows = np.arange(4) * 8
    train = EventLog(
        np.arange(5), own.train.items[rows], own.train.times[rows], own.train.splits[rows]
    )
    single = Lessons(
        train,
        NOBODY,
        *(getattr(own, n) for n in ("codes", "is_warm", "most", "seed")),
    )
    settings = RetrieverSettings(
        tower="encoder", dim=8, training=TRAINING.model_copy(update={"max_epochs": 1})
    )
    retriever = train_encoder_tower(a_model(), single, settings, None).retriever
    assert torch.isfinite(retriever.vectors).all()


def test_items_called_cold_that_training_events_like_are_targets_like_others():
    own = lessons(8)
    liked = np.unique(own.train.items)
    is_warm = np.ones(ITEMS, bool)
    is_warm[liked[:5]] = is_warm[np.setdiff1d(np.arange(ITEMS), liked)[0]] = False
    called = replace(own, is_warm=is_warm)
    once = TRAINING.model_copy(update={"max_epochs": 1})
    settings = RetrieverSettings(tower="encoder", dim=8, training=once)
    trained = train_encoder_tower(a_model(), called, settings, None)
    expected = train_encoder_tower(a_model(), own, settings, None)
    assert np.isfinite(trained.stages[1].losses).all()
    assert trained.stages[0].losses == expected.stages[0].losses
    device = torch.device("cpu")
    assert (called.warm_on(device) != own.warm_on(device)).sum() == 1  # of who nobody likes
    _, run = train_content_tower(a_model(), circle(), called, content_settings(max_epochs=1))
    assert np.isfinite(run.losses).all()
