import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import DataError
from pipeline.generative.event_log import NO_ITEM, as_histories, read_event_log
from pipeline.schemas import INTERACTIONS

USERS, ITEMS = pa.array(["u0", "u1", "u2"]), pa.array(["i0", "i1", "i2", "i3"])


def log_of(rows):
    columns = ("user_id", "item_id", "label", "timestamp", "split")
    table = {name: [row[place] for row in rows] for place, name in enumerate(columns)}
    table["rating"] = [1.0] * len(rows)
    schema = INTERACTIONS
    return read_event_log(pa.table({n: table[n] for n in schema.names}, schema), USERS, ITEMS)


@pytest.fixture
def log():
    return log_of(
        [
            ("u2", "i3", 1, 5, "test"),
            ("u0", "i0", 1, 1, "knowledge"),
            ("u2", "i1", 1, 1, "knowledge"),
            ("u2", "i2", 0, 2, "knowledge"),  # not liked
            ("u2", "i0", 1, 3, "train"),
            ("u2", "i2", 1, 3, "valid"),
        ]
    )


def test_events_stand_by_user_and_time(log):
    assert log.starts.tolist() == [0, 1, 1, 5]
    assert log.items.tolist() == [0, 1, 0, 2, 3]
    assert log.users.tolist() == [0, 2, 2, 2, 2]
    assert log.events("test").items.tolist() == [3]
    assert log.events("knowledge").users.tolist() == [0, 2]


def test_a_history_ends_before_the_second_asked_about(log):
    users, times = np.array([2, 2, 2, 0, 1, 2]), np.array([3, 4, 6, 1, 9, 1])
    assert log.before(users, times, 3).tolist() == [
        [1, NO_ITEM, NO_ITEM],
        [1, 0, 2],
        [0, 2, 3],
        [NO_ITEM] * 3,
        [NO_ITEM] * 3,
        [NO_ITEM] * 3,
    ]
    assert log.latest(np.array([2, 1]), 2).tolist() == [[2, 3], [NO_ITEM, NO_ITEM]]


def test_splits_are_kept_apart(log):
    past = log.of_splits(("knowledge", "train"))
    assert past.items.tolist() == [0, 1, 0]
    assert past.starts.tolist() == [0, 1, 1, 3]


def test_tokens_of_histories():
    codes = np.array([[0, 1], [2, 0], [1, 1]])
    found = as_histories(np.array([[2, 0, NO_ITEM], [NO_ITEM] * 3]), codes, 3)
    assert found.tokens.tolist() == [[6, 1, 4, 0, 4], [6, 6, 6, 6, 6]]
    assert found.lengths.tolist() == [5, 1]
    assert as_histories(np.full((2, 4), NO_ITEM), codes, 3).tokens.tolist() == [[6], [6]]


def test_nobody_likes_anything():
    log = log_of([("u0", "i0", 0, 1, "knowledge")])
    assert log.before(np.array([0]), np.array([5]), 2).tolist() == [[NO_ITEM] * 2]


def test_unknown_items_are_named():
    with pytest.raises(DataError, match=r"item_id: 1 ids .* such as \['i9'\]"):
        log_of([("u0", "i9", 1, 1, "knowledge")])
