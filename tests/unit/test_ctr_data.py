"""Histories against a brute-force loop, vocabularies, attribute fields and refusals."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.ctr.data import DISLIKED, LIKED, latest_before, make_ctr_data
from features.ctr.fields import make_fields
from pipeline.errors import DataError
from pipeline.schemas import ATTRIBUTES, INTERACTIONS, ITEMS, USERS

# user, item, label, timestamp, split; a and b are train users, c is a test user
ROWS = [
    ("a", "x", 1, 10, "knowledge"),
    ("b", "y", 0, 11, "knowledge"),
    ("a", "y", 0, 20, "train"),
    ("a", "z", 1, 20, "train"),
    ("b", "x", 1, 25, "train"),
    ("a", "x", 0, 30, "valid"),
    ("b", "z", 1, 31, "valid"),
    ("a", "new", 1, 40, "test"),
    ("a", "y", 0, 41, "test"),
    ("c", "x", 1, 42, "test"),
]


def interactions(rows):
    names = ("user_id", "item_id", "label", "timestamp", "split")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    columns["rating"] = [4.0 if label else 2.0 for label in columns["label"]]
    return pa.table({name: list(columns[name]) for name in INTERACTIONS.names}, INTERACTIONS)


def users(ids="abc", attributes=None):
    return pa.table([list(ids), attributes or [{}] * len(ids)], schema=USERS)


def items(ids=("x", "y", "z", "new")):
    return pa.table([list(ids), [f"title {i}" for i in ids], [{}] * len(ids)], schema=ITEMS)


def make(rows=ROWS, length=3, **tables):
    return make_ctr_data(
        interactions(rows), tables.get("users", users()), tables.get("items", items()), length
    )


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=40),
    st.integers(1, 5),
)
def test_latest_events_equal_a_loop_over_rows_with_ties(events, length):
    events = sorted(events, key=lambda event: event[1])
    owners, times = (np.array(column) for column in zip(*events, strict=True))
    found = latest_before(owners, times, np.arange(len(events)), length)
    for row, (owner, time) in enumerate(events):
        past = [i for i, event in enumerate(events) if event[0] == owner and event[1] < time]
        wanted = past[::-1][:length]
        assert found[row].tolist() == wanted + [-1] * (length - len(wanted))


def test_latest_events_do_not_need_a_table_sorted_by_time():
    owners, times = np.array([0, 1, 0, 0]), np.array([5, 1, 9, 2])
    assert latest_before(owners, times, np.array([2]), 3).tolist() == [[0, 3, -1]]


def test_a_row_never_sees_a_twin_of_the_same_second():
    data = make()
    y, z = data.splits["train"][:2]
    assert data.history_signals[y].tolist() == [LIKED, 0, 0]
    assert data.history_signals[z].tolist() == [LIKED, 0, 0]
    assert data.history_items[y].tolist() == data.history_items[z].tolist()


def test_history_is_latest_first_and_spans_the_splits():
    data = make()
    last = data.splits["test"][1]
    codes = dict(zip(data.item_ids.to_pylist(), data.item_fields.codes[:, 0], strict=True))
    assert data.history_items[last].tolist() == [codes["new"], codes["x"], codes["z"]]
    assert data.history_signals[last].tolist() == [LIKED, DISLIKED, LIKED]


def test_an_id_first_seen_after_training_is_unknown_but_its_signal_counts():
    data = make()
    assert data.item_fields.codes[3, 0] == 0
    assert data.user_fields.codes[2, 0] == 0
    assert data.item_fields.sizes[0] == 4
    assert data.history_items[data.splits["test"][1], 0] == 0
    assert data.history_signals[data.splits["test"][1], 0] == LIKED


def test_a_user_without_past_has_an_empty_history():
    data = make()
    assert data.history_signals[data.splits["test"][2]].tolist() == [0, 0, 0]


def test_user_ids_are_left_out_when_validation_users_are_new():
    rows = [("c" if row[4] == "valid" else row[0], *row[1:]) for row in ROWS]
    data = make(rows)
    assert data.user_fields.sizes[0] == 1
    assert not data.user_fields.codes[:, 0].any()
    assert data.user_fields.left_out == ("ids, since most users of valid rows have no train row",)
    assert make().user_fields.sizes[0] == 3
    assert make().user_fields.left_out == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: (row[0], row[1], 1, *row[3:]), "train rows hold 1 of the 2 labels"),
        (lambda row: (*row[:4], row[4].replace("test", "valid")), "0 test rows"),
        (lambda row: ("ghost", *row[1:]), r"1 users that the catalog lacks, such as \['ghost'\]"),
    ],
)
def test_data_that_cannot_be_checked_are_refused(change, message):
    with pytest.raises(DataError, match=message):
        make([change(row) for row in ROWS])


def test_test_rows_of_one_label_are_let_through():
    rows = [(*row[:2], 1 if row[4] == "test" else row[2], *row[3:]) for row in ROWS]
    assert make(rows).labels[make(rows).splits["test"]].tolist() == [1, 1, 1]


def fields_of(rows, known=None, trained=None):
    everyone = np.ones(len(rows), bool)
    column = pa.chunked_array([pa.array([list(row.items()) for row in rows], ATTRIBUTES)])
    return make_fields(
        column,
        everyone if known is None else known,
        everyone if trained is None else trained,
    )


def column_of(fields, name):
    return fields.codes[:, fields.names.index(name)]


def test_numbers_become_quantiles_of_the_trained_entities():
    ages = list(range(20, 60)) + [1000] * 40  # the untrained would shift every quantile
    trained = np.arange(80) < 40
    fields = fields_of([{"age": str(age)} for age in ages], trained=trained)
    codes = column_of(fields, "age")
    assert np.bincount(codes[:40]).tolist() == [0] + [5] * 8
    assert set(codes[40:]) == {8}


def test_an_unreadable_number_of_an_untrained_entity_is_unknown():
    rows = [{"age": str(age)} for age in range(20)] + [{"age": "n/a"}, {}]
    codes = column_of(fields_of(rows, trained=np.arange(22) < 20), "age")
    assert codes[20:].tolist() == [0, 0]
    assert codes[:20].min() == 1


def test_categories_come_from_known_entities_only():
    rows = [{"job": job} for job in ("nurse", "nurse", "clerk", "clerk", "pilot")]
    fields = fields_of(rows, known=np.arange(5) < 4)
    assert column_of(fields, "job").tolist() == [2, 2, 1, 1, 0]
    assert fields.sizes[fields.names.index("job")] == 3


def test_titles_genres_and_free_text_are_no_fields():
    rows = [
        {"title": "T", "genres": "A, B", "genre": "A", "plot": f"plot {i}", "empty": ""}
        for i in range(6)
    ]
    assert fields_of(rows).names == ("id", "genre")
    assert fields_of(rows).left_out == tuple(
        f"attribute {name}, which is free text or empty" for name in ("empty", "plot")
    )
