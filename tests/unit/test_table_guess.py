"""What columns are, told by heads of tables: names that mislead, numbers that look like others."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline import table_links
from pipeline.table_guess import guess_tables
from pipeline.table_heads import Head
from pipeline.table_links import Table
from pipeline.table_roles import find_roles

START = 1_500_000_000
USERS, ITEMS, ROWS = 20, 30, 400
RANDOM = np.random.default_rng(5)
WHO, WHAT = RANDOM.integers(0, USERS, ROWS), RANDOM.integers(0, ITEMS, ROWS)
TITLES = [f"The {word}" for word in "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123"]


def table_of(name, columns):
    texts = {key: pa.array([str(value) for value in values]) for key, values in columns.items()}
    return Table.of(Head(name, pa.table(texts), None, True))


def guess(items=None, **log):
    """Of a log without a table of users; each argument a column."""
    all_items = {"item_id": [f"i{n}" for n in range(ITEMS)]} | (items or {"title": TITLES})
    columns = {"user_id": [f"u{n}" for n in WHO], "item_id": [f"i{n}" for n in WHAT]} | log
    columns.setdefault("time", [START + n for n in range(ROWS)])
    return guess_tables(
        find_roles([table_of("items.csv", all_items), table_of("log.csv", columns)])
    )


def steps(count):
    return RANDOM.integers(1, count + 1, ROWS)


@pytest.mark.parametrize("name", ["user_id", "customer", "用户"])
def test_users_whose_ids_are_like_times_are_no_times(name):
    log = {name: START + WHO, "session": steps(5), "t": [2 * START // 2 + n for n in range(ROWS)]}
    found = guess_tables(
        find_roles(
            [
                table_of("items.csv", {"item_id": START + np.arange(ITEMS), "title": TITLES}),
                table_of("log.csv", log | {"item_id": START + WHAT}),
            ]
        )
    )
    assert (found.user_id.column, found.item_id.column) == (name, "item_id")
    assert (found.timestamp.column, found.timestamp.doubt) == ("t", "")


def test_ids_like_times_in_the_items_make_no_log_of_them():
    """A catalog of parts: items name each other as often as the log names them."""
    ids = START + np.arange(ITEMS)
    items = {"item_id": ids, "parent_item": ids // 2 * 2, "title": TITLES}
    people = {"user_id": START + np.arange(USERS), "job": ["a", "b"] * (USERS // 2)}
    log = {"user_id": START + WHO, "item_id": START + WHAT, "day": ["2024-05-31"] * ROWS}
    tables = [table_of("items.csv", items), table_of("log.csv", log), table_of("users.csv", people)]
    roles = find_roles(tables)
    assert roles.interactions.head.name == "log.csv"
    assert guess_tables(roles).timestamp.column == "day"


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (["author_name", "book_title", "publisher_name"], "book_title"),
        (["publisher_name", "name", "brand_name"], "name"),
        (["original_title", "name"], "name"),
        (["original_title", "title"], "title"),
        (["name", "product_title"], "product_title"),
        (["category_name", "productName"], "productName"),
        (["作者名", "出版社名称", "图书名称"], "图书名称"),
        (["verlag_name", "titel"], "titel"),
    ],
)
def test_a_title_is_what_is_called_so_rather_than_who_made_it(names, title):
    found = guess({name: [f"{name} {n}" for n in range(ITEMS)] for name in names}).title
    assert found.column == title
    others = [name for name in names if name not in (title, "original_title", "name")]
    assert not any(name in found.doubt for name in others)


def test_a_maker_in_place_of_a_title_is_doubted():
    found = guess({"author_name": [f"Author {n}" for n in range(ITEMS)]}).title
    assert (found.column, found.doubt) == (
        "author_name",
        "names who made it rather than the item?",
    )
    found = guess({"topic_title": TITLES}).title
    assert (found.column, found.doubt) == (
        "topic_title",
        "names a kind of items rather than the item?",
    )
    columns = {"author": TITLES, "what": TITLES[::-1]}
    assert guess(columns).title.column == "what"


@pytest.mark.parametrize(
    ("log", "rating", "doubt"),
    [
        ({"vote": steps(60), "overall": steps(5)}, "overall", ""),
        ({"helpful_votes": steps(9), "star_rating": steps(5)}, "star_rating", ""),
        (
            {"rating_count": steps(9), "likes": steps(9), "x": steps(5)},
            "x",
            "its name does not say",
        ),
        ({"vote": steps(5)}, "vote", "a count rather than a rating?"),
        ({"liked": ["TRUE", "False"] * (ROWS // 2)}, "liked", ""),
        ({"sterne": ["3,5", "4", "2,5", "1"] * (ROWS // 4)}, "sterne", ""),
        (
            {"stars": ["4 stars", "2 stars"] * (ROWS // 2), "x": steps(5)},
            "x",
            "its name does not say so; stars seems to be a rating and cannot be read, such as '4 s",
        ),
    ],
)
def test_a_rating_is_what_is_called_so_and_a_count_only_if_there_is_none(log, rating, doubt):
    found = guess(**log).rating.choice
    assert found.column == rating
    assert doubt in found.doubt
    assert bool(found.doubt) == bool(doubt)


def test_the_columns_of_published_reviews_are_known():
    log = {"reviewerID": WHO, "vote": steps(90), "overall": steps(5), "verified": ["true"] * ROWS}
    log |= {"asin": [f"B{n:09d}" for n in WHAT], "unixReviewTime": START + np.arange(ROWS)}
    items = {"asin": [f"B{n:09d}" for n in range(ITEMS)], "brand": TITLES[::-1], "title": TITLES}
    found = guess_tables(find_roles([table_of("meta.csv", items), table_of("reviews.csv", log)]))
    assert (found.user_id.column, found.user_id.doubt) == ("reviewerID", "")
    assert (found.item_id.column, found.title.column) == ("asin", "title")
    assert (found.rating.choice.column, found.rating.choice.doubt) == ("overall", "")
    assert found.timestamp.column == "unixReviewTime"


def test_flags_that_are_not_called_a_rating_are_none():
    found = guess(verified=["true", "false"] * (ROWS // 2)).rating
    assert (found.choice, found.doubt) == (None, "")


def test_a_rating_that_cannot_be_read_is_no_silent_none():
    found = guess(stars=["4", "none at all"] * (ROWS // 2)).rating
    assert found.choice is None
    assert found.doubt.startswith("stars seems to be a rating and cannot be read, such as 'none at")


def test_a_long_example_is_its_beginning():
    found = guess({"title": [f"{word} {'long ' * 50}" for word in TITLES]}).title
    assert "long long..." in found.seen
    assert len(found.seen) < 120


def test_a_key_is_hashed_a_few_times_however_many_columns_there_are(monkeypatch):
    calls = []
    monkeypatch.setattr(
        table_links.pc,
        "is_in",
        lambda *some, is_in=pc.is_in, **more: calls.append(1) or is_in(*some, **more),
    )
    items = {f"key{n}": [f"{n}-{one}" for one in range(ITEMS)] for n in range(12)}
    log = {f"column{n}": [f"x{n}-{one}" for one in WHAT] for n in range(12)}
    tables = [
        table_of("items.csv", items | {"title": TITLES}),
        table_of("log.csv", log | {"key": [f"7-{one}" for one in WHAT], "user": WHO}),
    ]
    roles = find_roles(tables)
    assert (roles.to_items.column.name, roles.to_items.key.name) == ("key", "key7")
    assert len(calls) <= 2 * (len(items) + 1 + len(log) + 2)  # was: the product of all


def test_a_link_is_found_by_the_values_that_are_there():
    """Half of those that occur are enough; what the log names first may be long gone."""
    log = table_of("log.csv", {"item": [f"i{n:05d}" for n in (*range(6_000), 5_999)] * 2})
    items = table_of("items.csv", {"id": [f"i{n:05d}" for n in range(2_500, 6_000)]})
    [link] = table_links.links_from(log, [items])
    assert link.share == pytest.approx(3_500 / 6_000)
