"""Splits: KAR's prefix against a plain loop, one clock that never turns back, no empty part."""

import math
from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from pipeline.catalog_config import SplitSettings
from pipeline.errors import DataError
from pipeline.splits import assign_splits


def split_by_hand(rows, limit):
    """KAR's prefix, user by user, in plain Python."""
    by_user = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["timestamp"], row["item_id"])):
        by_user[row["user_id"]].append(row)
    past = set()
    for user, own in by_user.items():
        for row in own[: min(math.ceil(len(own) / 2), limit)]:
            past.add((user, row["item_id"], row["timestamp"]))
    return past


def interactions_of(pairs):
    """(user, item, time) triples -> a sorted table without duplicates."""
    triples = sorted(set(pairs), key=lambda row: (row[2], row[0], row[1]))
    return pa.table(
        {
            "user_id": [f"u{user}" for user, _, _ in triples],
            "item_id": [f"i{item}" for _, item, _ in triples],
            "timestamp": pa.array([time for _, _, time in triples], pa.int64()),
        }
    )


triples = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 20)), min_size=40, max_size=200
)


@settings(max_examples=40)
@given(triples, st.integers(1, 6))
def test_prefix_split_agrees_with_a_plain_loop_and_keeps_users_apart(pairs, limit):
    table = interactions_of(pairs)
    keywords = SplitSettings(
        protocol="per_user_prefix", history_limit=limit, train_share=0.5, valid_share=0.2
    )
    try:
        split = assign_splits(table, keywords)
    except DataError:
        counts = pc.value_counts(table["user_id"])
        assert pc.sum(pc.greater(pc.struct_field(counts, "counts"), 1)).as_py() < 4
        return
    rows = table.append_column("split", split).to_pylist()
    past = {
        (row["user_id"], row["item_id"], row["timestamp"])
        for row in rows
        if row["split"] == "knowledge"
    }
    assert past == split_by_hand(rows, limit)
    parts = defaultdict(set)
    for row in rows:
        if row["split"] != "knowledge":
            parts[row["user_id"]].add(row["split"])
    assert all(len(part) == 1 for part in parts.values())
    ctr_users = len(parts)
    test_users = sum(part == {"test"} for part in parts.values())
    assert abs(test_users - 0.3 * ctr_users) <= 1


@settings(max_examples=40)
@given(triples, st.floats(0.1, 0.8), st.floats(0.2, 0.7))
def test_global_time_never_parts_rows_of_one_time_nor_turns_time_back(pairs, past, train):
    table = interactions_of(pairs)
    keywords = SplitSettings(knowledge_share=past, train_share=train, valid_share=0.2)
    try:
        split = assign_splits(table, keywords)
    except DataError:  # too few different times for these shares
        reject()
    order = ["knowledge", "train", "valid", "test"]
    codes = [order.index(name) for name in split.to_pylist()]
    assert codes == sorted(codes)
    sides = defaultdict(set)
    for time, code in zip(table["timestamp"].to_pylist(), codes, strict=True):
        sides[time].add(code)
    assert all(len(side) == 1 for side in sides.values())


def test_global_time_hits_its_shares_when_all_times_differ():
    table = interactions_of([(n % 7, n, n) for n in range(1000)])
    split = assign_splits(
        table, SplitSettings(knowledge_share=0.5, train_share=0.8, valid_share=0.1)
    )
    counts = {row["values"]: row["counts"] for row in split.value_counts().to_pylist()}
    assert counts == {"knowledge": 500, "train": 400, "valid": 50, "test": 50}


@pytest.mark.parametrize(
    ("keywords", "remedy"),
    [
        ({"protocol": "global_time", "knowledge_share": 0.0}, "knowledge_share"),
        ({"protocol": "global_time", "knowledge_share": 1.0}, "knowledge_share"),
        ({"protocol": "per_user_prefix", "valid_share": 0.0}, "valid_share"),
        ({"protocol": "per_user_prefix", "train_share": 0.0}, "more users"),
    ],
)
def test_an_empty_part_is_an_error_with_a_remedy(keywords, remedy):
    table = interactions_of([(n % 7, n, n) for n in range(100)])
    with pytest.raises(DataError, match="leaves a part empty") as caught:
        assign_splits(table, SplitSettings(**keywords))
    assert remedy in str(caught.value)


def test_one_moment_cannot_be_split_by_time():
    table = interactions_of([(n % 7, n, 5) for n in range(100)])
    with pytest.raises(DataError, match="never parted"):
        assign_splits(table, SplitSettings())


def test_the_part_of_a_user_does_not_depend_on_the_other_rows_order():
    pairs = [(user, item, 100 - item) for user in range(10) for item in range(4)]
    keywords = SplitSettings(protocol="per_user_prefix", train_share=0.5, valid_share=0.2)
    first = interactions_of(pairs)
    later = interactions_of([(user, item, time + user) for user, item, time in pairs])

    def parts(table):
        rows = table.append_column("split", assign_splits(table, keywords)).to_pylist()
        return {row["user_id"]: row["split"] for row in rows if row["split"] != "knowledge"}

    assert parts(first) == parts(later)


@pytest.mark.parametrize("protocol", ["global_time", "per_user_prefix"])
def test_cold_items_are_in_no_split_but_test_and_the_others_stay_where_they_were(protocol):
    table = interactions_of([(n % 20, n % 37, n) for n in range(2000)])
    warm = SplitSettings(protocol=protocol, history_limit=5)
    cold = SplitSettings(protocol=protocol, history_limit=5, cold_items=0.2)
    before, after = (assign_splits(table, own).to_pylist() for own in (warm, cold))
    items = table["item_id"].to_pylist()
    moved = {item for item, own, now in zip(items, before, after, strict=True) if own != now}
    assert len(moved) == round(0.2 * 37)
    assert {now for item, now in zip(items, after, strict=True) if item in moved} == {"test"}
    assert "cold_items" not in warm.model_dump(mode="json")
    assert cold.model_dump(mode="json")["cold_items"] == 0.2
