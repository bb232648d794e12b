"""Validation: every problem at once, with counts, examples and the remedy."""

import pyarrow as pa
import pytest

from pipeline.errors import DataError
from pipeline.raw_tables import RawTables
from pipeline.validation import validate

START = 1_600_000_000  # a plausible second


def make_raw(**columns):
    """Ten good interactions between two users and five items; keywords replace their columns."""
    interactions = {
        "user_id": ["u0"] * 5 + ["u1"] * 5,
        "item_id": [f"i{n % 5}" for n in range(10)],
        "rating": [3.0] * 10,
        "timestamp": [START + n for n in range(10)],
    }
    return RawTables(
        pa.table({"user_id": ["u0", "u1"]}),
        pa.table({"item_id": [f"i{n}" for n in range(5)], "title": list("ABCDE")}),
        pa.table(interactions | columns),
    )


def complaint_about(raw, unit="s"):
    with pytest.raises(DataError) as caught:
        validate(raw, unit)
    return str(caught.value)


def test_good_tables_pass_in_every_unit():
    for unit, ticks in (("s", 1), ("ms", 1_000), ("us", 1_000_000)):
        validate(make_raw(timestamp=[(START + n) * ticks for n in range(10)]), unit)


def test_every_problem_is_listed_at_once_with_counts_examples_and_remedy():
    raw = RawTables(
        pa.table({"user_id": ["u0", "u1", "u1", " ", None]}),
        pa.table({"item_id": ["i0", "i0", "i1"], "title": ["A", "B", "C"]}),
        pa.table(
            {
                "user_id": ["u0", "u9", "u1", "u1", "u1", "", "u0"],
                "item_id": ["i0", "i0", "i7", "i1", "i1", "i1", "i1"],
                "rating": [5.0, None, 3.0, 3.0, 4.0, None, None],
                "timestamp": [START, START + 1, None, START + 3, START + 3, -5, 12],
            }
        ),
    )
    message = complaint_about(raw)
    for part in (
        "users: 2 of 5 rows without user_id (rows 4, 5: user_id ' '; user_id None); give each",
        "users: 2 of 5 rows share their user_id with another row (rows 2, 3: user_id 'u1'",
        "items: 2 of 3 rows share their item_id with another row (rows 1, 2:",
        "interactions: 1 of 7 rows without user_id (rows 6:",
        "interactions: 1 of 7 rows name a user that the users table lacks (rows 2: user_id 'u9'",
        "interactions: 1 of 7 rows name an item that the items table lacks (rows 3:",
        "interactions: 3 of 7 rows without a rating that is a finite number (rows 2, 6, 7:",
        "interactions: 2 rows repeat the (user_id, item_id, timestamp) of another (user_id 'u1'",
        "interactions: 1 of 7 rows without a readable timestamp (rows 3:",
        "interactions: 1 of 7 rows have a negative timestamp (rows 6:",
        "interactions: 1 of 7 rows have a timestamp outside 1990 to tomorrow when read as s (",
    ):
        assert part in message
    assert len(message.splitlines()) == 12


def test_ids_with_a_nul_which_may_become_one_are_refused():
    raw = make_raw()
    users = pa.table({"user_id": ["u0", "u1", "u1\0"]})
    message = complaint_about(RawTables(users, raw.items, raw.interactions))
    assert (
        "users: 1 of 3 rows have a NUL character in their user_id (rows 3: user_id 'u1" in message
    )


def test_at_most_three_examples_are_shown():
    message = complaint_about(make_raw(user_id=["stranger"] * 10))
    assert "10 of 10 rows name a user" in message
    assert message.count("'stranger'") == 3


def test_empty_tables_are_refused():
    raw = make_raw()
    message = complaint_about(
        RawTables(raw.users.slice(0, 0), raw.items.slice(0, 0), raw.interactions.slice(0, 0))
    )
    for name in ("users", "items", "interactions"):
        assert f"{name}: no rows" in message


@pytest.mark.parametrize(
    ("factor", "given_unit", "advice"),
    [
        (1_000, "s", "set catalog.timestamp_unit: ms"),
        (1_000_000, "ms", "set catalog.timestamp_unit: us"),
        (1, "us", "set catalog.timestamp_unit: s"),
        (1_000_000_000, "s", "divide by 1,000 and set catalog.timestamp_unit: us"),
        (7, "s", "correct or drop the rows"),
    ],
)
def test_a_wrong_timestamp_unit_is_noticed_and_the_right_one_named(factor, given_unit, advice):
    raw = make_raw(timestamp=[(START + n) * factor for n in range(10)])
    message = complaint_about(raw, given_unit)
    assert f"10 of 10 rows have a timestamp outside 1990 to tomorrow when read as {given_unit}" in (
        message
    )
    assert advice in message


def test_one_row_in_the_future_is_refused_without_doubting_the_unit():
    message = complaint_about(make_raw(timestamp=[START + n for n in range(9)] + [2**33]))
    assert "1 of 10 rows have a timestamp outside" in message
    assert "correct or drop the rows" in message


def test_a_pair_may_come_again_at_another_time():
    validate(make_raw(item_id=["i0"] * 10), "s")
