"""Slices by what training has seen; a slice that cannot be measured has no AUC, and says why."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from features.ctr.data import CtrData
from features.ctr.fields import Fields
from features.ctr.slices import slice_aucs, slices_of

USERS, ITEMS, TRAIN, TEST = 6, 8, 400, 1200


def data(liked=None):
    """Training shows users 0 to 2 and items 0 to 5, item 0 in half of its rows."""
    rng = np.random.default_rng(0)
    rows = TRAIN + TEST
    items = np.r_[np.zeros(200, int), rng.integers(1, 6, 200), rng.integers(0, ITEMS, TEST)]
    users = np.r_[rng.integers(0, 3, TRAIN), rng.integers(0, USERS, TEST)]
    labels = rng.integers(0, 2, rows).astype(np.float32)
    if liked is not None:
        labels[TRAIN:] = liked(users[TRAIN:], items[TRAIN:], labels[TRAIN:])
    ids = pa.chunked_array([[str(number) for number in range(ITEMS)]])
    return CtrData(
        user_ids=ids.slice(0, USERS),
        item_ids=ids,
        users=users,
        items=items,
        timestamps=np.arange(rows),
        labels=labels,
        splits={
            "train": np.arange(TRAIN),
            "valid": np.arange(1),
            "test": np.arange(TRAIN, rows),
        },
        history_items=np.zeros((rows, 1), int),
        history_signals=np.zeros((rows, 1), np.int8),
        user_fields=Fields(("id",), (1,), np.zeros((USERS, 1), int)),
        item_fields=Fields(("id",), (1,), np.zeros((ITEMS, 1), int)),
    )


def scores(seeds=2):
    return {
        arm: np.random.default_rng(number).random((seeds, TEST), np.float32)
        for number, arm in enumerate(("base", "knowledge"))
    }


def wanted_masks(rows):
    test = rows.splits["test"]
    users, items = rows.users[test], rows.items[test]
    return {
        "warm users": users < 3,
        "cold users": users >= 3,
        "warm items": items < 6,
        "cold items": items >= 6,
        "head items": items == 0,
        "tail items": items > 0,
    }


def test_an_item_that_the_history_of_a_train_row_shows_is_warm():
    """Items 6 and 7 have no train row; 6 is known from the past, 7 is unknown (code 0)."""
    codes = np.array([[1], [2], [3], [4], [5], [6], [7], [0]])
    rows = replace(data(), item_fields=Fields(("id",), (8,), codes))
    rows.history_items[TRAIN:] = 7  # only test rows look back on it
    assert slices_of(rows)["warm items"]["rows"] == wanted_masks(rows)["warm items"].sum()
    rows.history_items[5] = 7
    items = rows.items[rows.splits["test"]]
    assert slices_of(rows)["warm items"]["rows"] == (items < 7).sum()
    assert slices_of(rows)["cold items"]["rows"] == (items == 7).sum()


def test_each_slice_has_its_rows_and_the_auc_of_every_arm():
    rows = data()
    parts, aucs = slices_of(rows), slice_aucs(rows, scores())
    labels = rows.labels[rows.splits["test"]]
    users = rows.users[rows.splits["test"]]
    assert parts.keys() == aucs.keys() == wanted_masks(rows).keys()
    for name, is_in in wanted_masks(rows).items():
        assert parts[name] == {
            "rows": is_in.sum(),
            "users": len(set(users[is_in])),
            "liked": labels[is_in].sum(),
            "reason": "",
        }
        for arm, probabilities in scores().items():
            by_seed = [roc_auc_score(labels[is_in], row[is_in]) for row in probabilities]
            assert aucs[name][arm] == pytest.approx(np.mean(by_seed))


@pytest.mark.parametrize(
    ("liked", "name", "reason"),
    [
        (lambda _, items, labels: np.where(items >= 6, 1, labels), "cold items", "have one label"),
        (
            lambda _, items, labels: (
                (np.cumsum(items == 0) <= 30) & (items == 0) | (labels * items > 0)
            ),
            "head items",
            "30 liked and",
        ),
    ],
)
def test_a_slice_of_one_label_or_of_few_rows_has_no_auc_and_a_reason(liked, name, reason):
    rows = data(liked)
    parts = json.loads(json.dumps(slices_of(rows), allow_nan=False))
    aucs = json.loads(json.dumps(slice_aucs(rows, scores()), allow_nan=False))
    assert reason in parts[name]["reason"]
    assert aucs[name] == {"base": None, "knowledge": None}
    assert parts["warm users"]["reason"] == ""
    assert aucs["warm users"]["base"] is not None


def test_a_slice_without_a_row_says_so():
    rows = data()
    rows.users[TRAIN:] = 4  # as in a split by users, where no test user was trained
    assert slices_of(rows)["warm users"]["reason"] == "no test row is of this kind"
    assert slice_aucs(rows, scores())["warm users"] == {"base": None, "knowledge": None}
    assert slices_of(rows)["cold users"]["rows"] == TEST


def test_slices_by_whose_texts_vectors_are_from_are_those_that_occur_in_test_rows():
    """User 5 and item 7 have their group's mean; that of item 6 no test row shows."""
    sources = {
        "user": np.array(["own"] * 5 + ["group"]),
        "item": np.array(["own"] * 6 + ["none", "default"]),
    }
    rows = replace(
        data(liked=lambda _, items, labels: np.where(items == 7, 1, labels)), sources=sources
    )
    test = rows.splits["test"]
    rows.items[test[rows.items[test] == 6]] = 5
    users, items = rows.users[test], rows.items[test]
    wanted = {
        "users with own text": users < 5,
        "users by group": users == 5,
        "items with own text": items < 7,
        "items by default": items == 7,
    }
    parts, aucs = slices_of(rows), slice_aucs(rows, scores())
    assert list(parts)[6:] == list(aucs)[6:] == list(wanted)
    assert [parts[name]["rows"] for name in wanted] == [mask.sum() for mask in wanted.values()]
    labels = rows.labels[test]
    by_seed = [roc_auc_score(labels[users == 5], row[users == 5]) for row in scores()["base"]]
    assert aucs["users by group"]["base"] == pytest.approx(np.mean(by_seed))
    assert (
        parts["items by default"]["reason"] == f"all {(items == 7).sum()} test rows have one label"
    )
    assert aucs["items by default"] == {"base": None, "knowledge": None}
