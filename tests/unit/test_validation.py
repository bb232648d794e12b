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
        "users: 1 of 5 rows repeat the user_id of an earlier row (row 3: user_id 'u1'",
        "items: 1 of 3 rows repeat the item_id of an earlier row (row 2:",
        "interactions: 1 of 7 rows without user_id (row 6:",
        "interactions: 1 of 7 rows name a user that the users table lacks (row 2: user_id 'u9'",
        "interactions: 1 of 7 rows name an item that the items table lacks (row 3:",
        "interactions: 3 of 7 rows without a rating that is a finite number (rows 2, 6, 7:",
        "1 of 7 rows repeat the (user_id, item_id, timestamp) of an earlier row (row 5:",
        "interactions: 1 of 7 rows without a readable timestamp (row 3:",
        "interactions: 1 of 7 rows have a negative timestamp (row 6:",
        "interactions: 1 of 7 rows have a timestamp outside 1990 to tomorrow when read as s (",
    ):
        assert part in message
    assert len(message.splitlines()) == 12


def test_ids_with_a_nul_which_may_become_one_are_refused():
    raw = make_raw()
    users = pa.table({"user_id": ["u0", "u1", "u1\0"]})
    message = complaint_about(RawTables(users, raw.items, raw.interactions))
    assert "users: 1 of 3 rows have a NUL character in their user_id (row 3: user_id 'u1" in message


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


def test_repeated_rows_are_counted_among_those_that_are_good():
    """As `pipeline.usable_rows` leaves them out: a row goes for one reason only."""
    raw = make_raw(user_id=["u0"] * 4 + ["ghost"] * 6, item_id=["i0"] * 10, timestamp=[START] * 10)
    message = complaint_about(raw)
    assert (
        "3 of 10 rows repeat the (user_id, item_id, timestamp) of an earlier row (rows 2, 3, 4"
        in (message)
    )
    assert "6 of 10 rows name a user" in message


def test_times_are_shown_with_their_date():
    raw = make_raw(rating=[None] * 10, timestamp=[(978_300_760 + n) * 1_000 for n in range(10)])
    message = complaint_about(raw, "ms")
    assert "timestamp 978300760000 = 2000-12-31 22:12:40 UTC" in message
    assert "timestamp 99999999999999999" in complaint_about(make_raw(timestamp=[10**17 - 1] * 10))


@pytest.mark.parametrize(("factor", "given", "named"), [(1_000, "s", "ms"), (1, "ms", "s")])
@pytest.mark.parametrize("others", [1, 3])
def test_the_unit_of_most_rows_is_named(factor, given, named, others):
    other = {"s": 1, "ms": 1_000}[given]
    times = [(START + n) * (other if n < others else factor) for n in range(10)]
    message = complaint_about(make_raw(timestamp=times), given)
    assert f"{10 - others} of 10 rows have a timestamp outside" in message
    assert f"set catalog.timestamp_unit: {named}, which fits {10 - others} of 10 rows" in message


def test_a_few_times_of_another_unit_are_told_as_such():
    times = [(START + n) * (1_000 if n == 4 else 1) for n in range(10)]
    message = complaint_about(make_raw(timestamp=times))
    assert "1 of 10 rows have a timestamp outside" in message
    assert "in ms they could be: write them in s as the others, or drop the rows" in message
    assert "set catalog.timestamp_unit" not in message
