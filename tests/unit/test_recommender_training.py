"""Windows, the loss and early stopping, against plain loops; a killed training ends as it would."""

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.errors import ConfigError, DataError
from pipeline.generative.event_log import NO_ITEM, EventLog
from pipeline.generative.packed_placeholders import NO_CUT
from pipeline.generative.placeholder_head import make_placeholder_head
from pipeline.generative.recommender import load_recommender, make_recommender
from pipeline.generative.recommender_training import (
    HeldOut,
    draw_cuts,
    held_out,
    language_model_loss,
    mean_log_probability,
    tokens_of,
    train_recommender,
)
from pipeline.generative.training_loop import fit
from pipeline.generative.windows import draw_windows
from pipeline.generative_config import RecommenderSettings, TrainingSettings

LEVELS, CODES, ITEMS = 2, 4, 12
TRAINING = TrainingSettings(batch_size=8, max_epochs=6, patience=3, warm_up=7, learning_rate=1e-2)
SETTINGS = RecommenderSettings(
    hidden_dim=16,
    layers=1,
    heads=2,
    history_length=4,
    dropout=0.1,
    training=TRAINING,
)
CODES_OF = np.stack(np.unravel_index(np.arange(ITEMS), (CODES, CODES)), 1)


def a_log(sizes, seed=0):
    """Users who like the next item of a circle, mostly."""
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    items = [(rng.integers(ITEMS) + np.arange(size)) % ITEMS for size in sizes]
    times = [np.arange(size) for size in sizes]
    splits = [np.where(np.arange(size) < size - 1, 0, 2) for size in sizes]
    return EventLog(
        starts, *(np.concatenate([*parts, []]).astype(np.int64) for parts in (items, times, splits))
    )


def test_windows_hold_every_event_once_in_order():
    log = a_log([0, 3, 4, 5, 23, 0, 1])
    for epoch in range(5):
        windows = draw_windows(log, 4, [7, epoch])
        lengths = (windows != NO_ITEM).sum(1)
        assert lengths.min() >= 1
        assert (windows[np.arange(4) >= lengths[:, None]] == NO_ITEM).all()
        assert sorted(windows[windows != NO_ITEM]) == sorted(log.items)
        for row, length in zip(windows, lengths, strict=True):
            assert ((np.diff(row[:length]) % ITEMS) == 1).all()
    assert (lengths == 1).sum() <= 3  # the user of one event, and who is cut so
    again = draw_windows(log, 4, [7, 4])
    np.testing.assert_array_equal(again, windows)
    assert len(draw_windows(a_log([0, 0]), 4, [0])) == 0


def test_a_short_history_is_never_cut():
    for epoch in range(20):
        assert len(draw_windows(a_log([3, 4]), 4, [epoch])) == 2


def naive_log_probs(model, items):
    """Of every code of one history, by a forward pass for each."""
    tokens = [model.bos]
    found = []
    for item in items:
        for level, code in enumerate(CODES_OF[item].tolist()):
            size = len(tokens)
            sees = torch.ones(1, size, size, dtype=torch.bool).tril()
            hidden = model(torch.tensor([tokens]), torch.arange(size)[None], sees)
            log_probs = model.log_probs(hidden[:, -1:], torch.tensor([level]))
            found.append(float(log_probs[0, 0, code]))
            tokens.append(level * CODES + code)
    return found


@torch.inference_mode()
def test_the_loss_is_that_of_one_code_after_another():
    model = make_recommender(SETTINGS, LEVELS, CODES, 0).eval()
    model.heads.data.normal_()
    windows = np.array([[3, 5, 1, NO_ITEM], [11, NO_ITEM, NO_ITEM, NO_ITEM], [0, 1, 2, 3]])
    expected = [one for row in windows for one in naive_log_probs(model, row[row != NO_ITEM])]
    loss = language_model_loss(model, tokens_of(windows, CODES_OF, model))
    assert float(loss) == pytest.approx(-np.mean(expected), abs=1e-5)


@torch.inference_mode()
def test_held_out_events_are_scored_given_their_histories():
    model = make_recommender(SETTINGS, LEVELS, CODES, 0).eval()
    model.heads.data.normal_()
    events = HeldOut(np.array([[3, 5], [7, NO_ITEM], [NO_ITEM] * 2]), np.array([2, 9, 0]))
    expected = [
        np.mean(naive_log_probs(model, items)[-LEVELS:]) for items in ([3, 5, 2], [7, 9], [0])
    ]
    found = mean_log_probability(model, events, CODES_OF)
    assert found == pytest.approx(np.mean(expected), abs=1e-5)


def test_cold_targets_do_not_decide_when_to_stop():
    log = a_log([5, 6])
    targets = log.events("valid").items
    is_warm = np.ones(ITEMS, bool)
    is_warm[targets[0]] = False
    assert held_out(log, "valid", is_warm, 3, 0).targets.tolist() == [
        t for t in targets if is_warm[t]
    ]


def test_events_of_another_split_may_decide():
    log = a_log([5, 6])
    found = held_out(log, "knowledge", np.ones(ITEMS, bool), 3, 0)
    assert found.targets.tolist() == log.events("knowledge").items.tolist()
    assert (found.histories[0] == NO_ITEM).all()
    assert found.histories[1].tolist() == [log.items[0], NO_ITEM, NO_ITEM]


def trained(checkpoint=None, epochs=6, with_head=True):
    log = a_log([9] * 30)
    model = make_recommender(SETTINGS, LEVELS, CODES, 0)
    head = make_placeholder_head(LEVELS, CODES, model.width, 0) if with_head else None
    training = TRAINING.model_copy(update={"max_epochs": epochs})
    settings = SETTINGS.model_copy(update={"training": training})
    stop_by = held_out(log, "valid", np.ones(ITEMS, bool), 4, 0)
    train = log.of_splits(("knowledge", "train"))
    return model, train_recommender(model, head, train, stop_by, CODES_OF, settings, 3, checkpoint)


@pytest.mark.parametrize("with_head", [False, True])
def test_a_recommender_and_its_head_learn_what_comes_next(with_head):
    _, run = trained(with_head=with_head)
    assert run.figures[-1] > -0.5 * (1 + with_head)  # by chance: -log(12) / 2 = -1.24 for each
    assert run.best == max(run.figures)


def test_cuts_differ_and_leave_an_item_to_be_foretold():
    windows = np.array([[3, 5, 1, 2], [11, NO_ITEM, NO_ITEM, NO_ITEM], [0, 1, 2, NO_ITEM]])
    seen = set()
    for epoch in range(50):
        cuts = draw_cuts(windows, 3, [0, epoch])
        assert sorted(cuts[1].tolist()) == [NO_CUT, NO_CUT, 0]
        assert sorted(cuts[2].tolist()) == [0, 1, 2]
        assert len(set(cuts[0].tolist())) == 3
        seen |= set(cuts[0].tolist())
    assert seen == {0, 1, 2, 3}


def test_a_training_that_was_killed_ends_as_it_would_have(tmp_path):
    whole, expected = trained()
    place = tmp_path / "own" / "at.safetensors"
    trained(place, epochs=2)
    torch.manual_seed(99)  # whatever happened in between
    model, run = trained(place)
    assert run.losses == expected.losses
    assert run.figures == expected.figures
    for name, value in whole.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


class Slope(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


def test_the_best_epoch_is_kept_and_patience_ends_it():
    module, figures = Slope(), iter([0.5, 1.0, 3.0, 2.0, 2.5, 2.9, 9.0])
    seen = []

    def losses(epoch):
        yield -module.weight.sum()
        seen.append(float(module.weight.detach()))

    run = fit(module, losses, lambda: next(figures), TRAINING, None, "slope")
    assert (run.best_epoch, run.epochs) == (2, 5)
    assert float(module.weight.detach()) == seen[1]


def test_what_training_begins_with_is_kept_if_no_epoch_is_better():
    module, figures = Slope(), iter([2.0, 1.0, 1.9, 2.0])
    run = fit(
        module, lambda _: iter([-module.weight.sum()]), lambda: next(figures), TRAINING, None, "s"
    )
    assert (run.best_epoch, run.epochs, run.best) == (0, 3, 2.0)
    assert float(module.weight.detach()) == 0.0


def test_without_held_out_events_all_epochs_are_run_and_the_last_counts():
    module = Slope()
    run = fit(module, lambda _: iter([-module.weight.sum()]), None, TRAINING, None, "slope")
    assert (run.best_epoch, run.epochs) == (TRAINING.max_epochs, TRAINING.max_epochs)
    assert float(module.weight.detach()) > 0.0


def test_a_loss_that_is_no_number_is_an_error():
    module = Slope()
    with pytest.raises(ConfigError, match="slope: the loss is no longer a number"):
        fit(module, lambda _: iter([module.weight.sum() / 0]), lambda: 0.0, TRAINING, None, "slope")


def test_a_damaged_checkpoint_is_told_and_training_begins_anew(tmp_path, caplog):
    place = tmp_path / "at.safetensors"
    _, expected = trained(place, epochs=2)
    place.write_bytes(place.read_bytes()[:-9])
    _, run = trained(place, epochs=2)
    assert "is damaged" in caplog.text
    assert run.losses == expected.losses


def test_a_truncated_model_is_named(tmp_path):
    make_recommender(SETTINGS, LEVELS, CODES, 0).save(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(DataError, match="holds no usable recommender"):
        load_recommender(tmp_path)
