"""`laser init`: a user's own tables -> a config that loads, and over which a catalog is made."""

import csv
import datetime as dt
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from jobs import build_catalog, group_entities, train_embeddings
from jobs.init_config import init, propose
from pipeline.config import RunConfig
from pipeline.config_file import load_config
from pipeline.errors import ConfigError, DataError
from pipeline.store import Store

TESTS = Path(__file__).parents[1]
WORDS = ["river", "night", "stone", "garden", "letter", "winter", "crown", "silence", "sea", "ash"]
GENRES = ["Crime", "Poetry", "History"]
START = 1_700_000_000


class Shop:
    """Three tables as lists of rows, to be made odd and written."""

    def __init__(self, users=40, items=30, rows=600):
        random = np.random.default_rng(3)
        self.users = [["card", "job", "mail"]]
        jobs = ["nurse", "baker"]
        self.users += [[f"r{n:03d}", jobs[n % 2], f"r{n}@shop.example"] for n in range(users)]
        self.items = [["isbn", "name", "genre"]]
        self.items += [
            [f"b{n:03d}", f"The {WORDS[n % 10]} of {WORDS[n // 10]}", GENRES[n % 3]]
            for n in range(items)
        ]
        pairs = random.permutation(users * items)[:rows].tolist()
        self.log = [["card", "isbn", "stars", "day"]]
        for step, pair in enumerate(pairs):
            user, item = divmod(pair, items)
            stars = int(random.integers(1, 6))
            self.log.append([f"r{user:03d}", f"b{item:03d}", stars, START + step * 3600])

    def change(self, table, column, make):
        """Replace a column by `make(value)`."""
        rows = getattr(self, table)
        place = rows[0].index(column)
        for row in rows[1:]:
            row[place] = make(row[place])

    def rename(self, table, **names):
        rows = getattr(self, table)
        rows[0] = [names.get(name, name) for name in rows[0]]

    def drop(self, table, column):
        rows = getattr(self, table)
        place = rows[0].index(column)
        for row in rows:
            del row[place]

    def write(self, folder, names=("readers", "books", "ratings"), separator=",", encoding="utf-8"):
        """CSV files; their paths."""
        paths = []
        for name, rows in zip(names, (self.users, self.items, self.log), strict=True):
            if name:
                text = io.StringIO()
                csv.writer(text, delimiter=separator, lineterminator="\n").writerows(rows)
                paths.append(folder / f"{name}.csv")
                paths[-1].write_bytes(text.getvalue().encode(encoding))
        return paths


@pytest.fixture
def shop():
    return Shop()


def made(paths, tmp_path, **options):
    """The proposal, its config, and the catalog that a run makes of it."""
    output = tmp_path / "conf" / "shop.yaml"
    proposal = init(paths, output, **options)
    config = load_config(output, [f"artifacts={tmp_path / 'artifacts'}"])
    store = Store(tmp_path / "artifacts" / config.run)
    build_catalog.run(config, store)
    return proposal, config, store


def columns_of(config):
    tables = config.catalog.tables
    return {name: table.columns for name in ("users", "items", "interactions")
            if (table := getattr(tables, name))}  # fmt: skip


PLAIN = {
    "users": {"user_id": "card"},
    "items": {"item_id": "isbn", "title": "name"},
    "interactions": {
        "user_id": "card",
        "item_id": "isbn",
        "rating": "stars",
        "timestamp": "day",
    },
}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_three_tables_are_told_apart_in_any_order(shop, tmp_path, order):
    paths = shop.write(tmp_path)
    proposal, config, store = made([paths[place] for place in order], tmp_path)
    assert columns_of(config) == PLAIN
    assert config.catalog.tables.users.path == tmp_path / "readers.csv"
    assert config.catalog.tables.users.attributes == ["job"]  # a mail address describes nobody
    assert config.catalog.tables.items.attributes == ["genre"]
    assert config.groups.item_attributes == ["genre"]
    assert config.prompts.domain == "book"
    assert config.catalog.positive_rating in (3.0, 4.0)
    assert config.run == "shop"
    assert not proposal.doubts
    assert store.read("interactions").num_rows == 600


def test_every_line_says_what_was_seen(shop, tmp_path):
    text = propose(shop.write(tmp_path), "r").text
    for line in (
        "item_id: isbn  # 30 distinct; all of ratings.isbn occur in it",
        "# left out: mail, by its name it may be personal",
        "- genre  # 3 distinct, such as 'Crime'",
        "rating: stars  # 5 different values, 1 to 5",
        "day  # numbers that are times in s, such as 1700000000 = 2023-11-14 22:13:20 UTC",
    ):
        assert line in text


@pytest.mark.parametrize("names", [("a", "b", "c"), ("c", "a", "b")])
def test_names_of_files_are_not_needed(shop, tmp_path, names):
    _, config, _ = made(shop.write(tmp_path, names), tmp_path)
    assert columns_of(config) == PLAIN


def test_nothing_but_numbers_for_ids_and_a_column_called_id(shop, tmp_path):
    """Users 0-39, items 0-29 and stars 1-5 all occur in each other; names decide."""
    for table, column in (("users", "card"), ("items", "isbn"), ("log", "card"), ("log", "isbn")):
        shop.change(table, column, lambda value: int(value[1:]))
    shop.rename("users", card="id")
    shop.rename("items", isbn="id")
    shop.rename("log", card="user_id", isbn="item_id")
    _, config, _ = made(shop.write(tmp_path, ("users", "items", "events")), tmp_path)
    assert columns_of(config)["users"] == {"user_id": "id"}
    assert columns_of(config)["interactions"]["user_id"] == "user_id"
    assert columns_of(config)["interactions"]["rating"] == "stars"
    assert config.prompts.domain == "item"
    assert "domain: item  # check:" in (tmp_path / "conf/shop.yaml").read_text()


def test_leading_zeros_stay(shop, tmp_path):
    for table, column in (("users", "card"), ("log", "card")):
        shop.change(table, column, lambda value: f"00{value[1:]}")
    _, _, store = made(shop.write(tmp_path), tmp_path)
    assert store.read("users")["user_id"][7].as_py() == "00007"


def test_zeros_that_one_table_lost_are_named(shop, tmp_path):
    shop.change("log", "isbn", lambda value: int(value[1:]))
    shop.change("items", "isbn", lambda value: value[1:])
    shop.drop("log", "card")
    with pytest.raises(DataError, match=r"ratings\.csv\.isbn and books\.csv\.isbn are alike but"):
        propose(shop.write(tmp_path, (None, "books", "ratings")), "r")


def test_a_byte_order_mark_and_another_separator(shop, tmp_path):
    paths = shop.write(tmp_path, separator=";", encoding="utf-8-sig")
    _, config, _ = made(paths, tmp_path)
    assert columns_of(config) == PLAIN
    assert config.catalog.tables.items.separator == ";"


def test_tabs_in_csv_and_commas_in_titles(shop, tmp_path):
    shop.change("items", "name", lambda value: f"{value}, a novel, revised")
    _, config, store = made(shop.write(tmp_path, separator="\t"), tmp_path)
    assert config.catalog.tables.items.separator == "\t"
    assert store.read("items")["title"][0].as_py() == "The river of river, a novel, revised"


def test_a_text_file_of_another_name_is_read_by_its_separator(shop, tmp_path):
    paths = [path.rename(path.with_suffix(".txt")) for path in shop.write(tmp_path)]
    _, config, _ = made(paths, tmp_path)
    assert config.catalog.tables.items.separator == ","


@pytest.mark.parametrize("encoding", ["gb18030", "utf-16"])
def test_a_file_that_is_not_utf8_is_named_with_the_command(shop, tmp_path, encoding):
    shop.change("items", "name", lambda value: f"红楼梦 {value}")
    paths = shop.write(tmp_path, encoding=encoding)
    with pytest.raises(DataError) as caught:
        propose([paths[1], paths[2]], "r")
    assert f"iconv -f {encoding.upper()} -t UTF-8 {paths[1]}" in str(caught.value)


def test_the_title_is_the_better_named_of_two_and_the_other_is_mentioned(shop, tmp_path):
    rows = shop.items
    rows[0].insert(1, "original_title")
    for row in rows[1:]:
        row.insert(1, f"Original {row[1]}")
    proposal, config, _ = made(shop.write(tmp_path), tmp_path)
    assert config.catalog.tables.items.columns["title"] == "name"
    assert proposal.doubts == ["title: name: could also be original_title"]


def iso(second):
    return dt.datetime.fromtimestamp(second, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("write", "unit"),
    [
        (iso, "s"),
        (lambda second: iso(second)[:10], "s"),
        (lambda second: iso(second).replace("Z", "+02:00"), "s"),
        (lambda second: iso(second)[:16].replace("-", "/").replace("T", " "), "s"),
        (lambda second: second * 1000, "ms"),
        (lambda second: second * 1_000_000, "us"),
        (lambda second: second + 0.5, "s"),
    ],
)
def test_times_are_told_with_their_unit(shop, tmp_path, write, unit):
    shop.change("log", "day", write)
    _, config, store = made(shop.write(tmp_path), tmp_path)
    assert config.catalog.timestamp_unit == unit
    times = store.read("interactions")["timestamp"].to_pylist()
    assert abs(times[0] - START) <= 86_400


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda second: second * 10**9, "day is in ns: divide it by 1,000"),
        (
            lambda second: "31.12.2023",
            r"like 2024-05-31, .*; looked at .*day \('31\.12\.2023'\); day holds days before "
            "months: write them as 2024-05-31",
        ),
        (
            lambda second: 20231231,
            r"no column of the interactions is a time .*day \('20231231'\); day holds days without "
            "dashes: write them as 2024-05-31",
        ),
        (lambda second: "1/31/2024 8:15", "day holds dates whose year comes last: write them as 2"),
        (
            lambda second: "2024-05-31 8:15 PM",
            "ratings.csv: no column .*; day holds dates in another form: write them as 2024-05-31",
        ),
        (
            lambda second: iso(second) if second // 3600 % 2 else second,
            r"day mixes dates \('2023-.*'\) and s \('1\d{9}'\): write all of them alike",
        ),
        (
            lambda second: second * 1000 if second // 3600 % 2 else second,
            r"day mixes ms \('1\d{12}'\) and s \('1\d{9}'\): write all of them alike",
        ),
        (
            lambda second: f"{second % 28 + 1:02d}.11.2023" if second // 3600 % 2 else iso(second),
            r"day mixes dates \('2023-.*'\) and days before months \('\d\d\.11\.2023'\): "
            "write them as 2024-05-31",
        ),
        (lambda second: "last week", r"day \('last week'\); day is called a time: write them as 2"),
    ],
)
def test_times_that_cannot_be_read_are_named(shop, tmp_path, write, words):
    shop.change("log", "day", write)
    with pytest.raises(DataError, match=words):
        propose(shop.write(tmp_path), "r")


def test_ratings_to_ten_are_parted_in_the_middle(shop, tmp_path):
    shop.change("log", "stars", lambda stars: stars * 2)
    _, config, store = made(shop.write(tmp_path), tmp_path)
    share = np.mean(store.read("interactions")["label"].to_numpy())
    assert config.catalog.positive_rating in (6.0, 8.0)
    assert 0.3 < share < 0.7


@pytest.mark.parametrize("kind", ["none", "constant"])
def test_without_ratings_every_interaction_is_a_like(shop, tmp_path, kind):
    if kind == "none":
        shop.drop("log", "stars")
    else:
        shop.change("log", "stars", lambda _: 1)
    proposal, config, store = made(shop.write(tmp_path), tmp_path)
    assert config.catalog.positive_rating is None
    assert set(store.read("interactions")["label"].to_pylist()) == {1}
    assert ["CTR check" in doubt for doubt in proposal.doubts] == [True]


def test_chinese_headers_titles_and_blanks(shop, tmp_path):
    shop.rename("users", card="会员 号", job="职业")
    shop.rename("items", isbn="图书编号", name="书名", genre="类 别: 主")
    shop.rename("log", card="会员", isbn="书", stars="评 分", day="时间")
    shop.change("items", "书名", lambda value: f"红楼{value}梦#1: 'x'")
    _, config, store = made(shop.write(tmp_path), tmp_path)
    assert columns_of(config)["interactions"]["rating"] == "评 分"
    assert config.groups.item_attributes == ["类 别: 主"]
    assert store.read("items")["title"][0].as_py().startswith("红楼")


def test_missing_genres_silent_users_and_unknown_items(shop, tmp_path):
    for row in shop.items[1::4]:
        row[2] = ""
    shop.users += [[f"new{n}", "nurse", f"new{n}@shop.example"] for n in range(5)]
    shop.log[3][1] = shop.log[9][1] = "ghost"
    proposal, config, store = made(shop.write(tmp_path), tmp_path)
    assert config.catalog.unusable_rows == "drop"
    assert "2 of 600 rows name an item that the items table lacks" in proposal.doubts[0]
    assert store.read("users").num_rows == 45
    assert store.read("interactions").num_rows == 598
    text = proposal.text
    assert "5 users have no interaction" in text
    assert "- genre  # 3 distinct, 27% empty" in text


def test_a_day_that_no_calendar_has_costs_its_row_only(shop, tmp_path):
    shop.change("log", "day", iso)
    shop.log[7][3] = "2024-06-31"
    proposal, config, store = made(shop.write(tmp_path), tmp_path)
    assert config.catalog.unusable_rows == "drop"
    assert "1 of 600 rows without a readable timestamp" in proposal.doubts[0]
    assert store.read("interactions").num_rows == 599


def test_all_that_is_left_out_is_told_however_much_it_is(shop, tmp_path):
    shop.log[3][1] = shop.log[9][1] = "ghost (1; 2)"
    shop.log[4][0] = ""
    shop.log[5][2] = "none (at all)"
    shop.log[6][3] = ""
    shop.log.append(list(shop.log[1]))
    shop.items.append(list(shop.items[1]))
    proposal, config, _ = made(shop.write(tmp_path), tmp_path)
    told = " ".join(line.strip(" #") for line in proposal.text.splitlines())
    for kind in (
        "items: 1 of 31 rows repeat the item_id of an earlier row, which is kept;",
        "interactions: 1 of 601 rows without user_id;",
        "interactions: 2 of 601 rows name an item that the items table lacks;",
        "interactions: 1 of 601 rows without a rating that is a finite number;",
        "interactions: 1 of 601 rows repeat the (user_id, item_id, timestamp) of an earlier row, "
        "which is kept",
        "interactions: 1 of 601 rows without a readable timestamp;",
    ):
        assert kind in told
    assert "ghost" not in told  # an example
    assert max(map(len, proposal.text.splitlines())) < 250
    assert config.catalog.unusable_rows == "drop"


def test_a_wide_table_is_listed_to_its_last_column(shop, tmp_path):
    wide = [f"a rather long name {n}" for n in range(40)]
    shop.users = [row + (wide if row[0] == "card" else ["x"] * 40) for row in shop.users]
    proposal, _, _ = made(shop.write(tmp_path), tmp_path)
    lines = proposal.text.splitlines()
    path = next(place for place, line in enumerate(lines) if line.endswith("readers.csv"))
    assert all(line.lstrip().startswith("#") for line in lines[path - 4 : path])
    assert lines[path - 1].endswith("a rather long name 39")
    assert max(map(len, lines)) < 250


def test_a_file_is_looked_at_as_a_run_reads_it(shop, tmp_path):
    """RecBole's files know no quotes, so one in a title takes in no rows."""
    shop.change("items", "name", lambda value: value.replace("The river of", '"The river of'))
    paths = []
    for path, rows in zip(
        ("r.user", "r.item", "r.inter"), (shop.users, shop.items, shop.log), strict=True
    ):
        lines = "\n".join("\t".join(map(str, row)) for row in rows)
        paths.append(tmp_path / path)
        paths[-1].write_text(lines + "\n", encoding="utf-8")
    _, config, store = made(paths, tmp_path)
    assert config.catalog.tables.items.separator is None
    assert store.read("items").num_rows == 30
    assert store.read("items")["title"][0].as_py() == '"The river of river'


def test_decimal_commas_and_flags_are_ratings(shop, tmp_path):
    shop.rename("log", stars="sterne")
    shop.change("log", "sterne", lambda stars: f"{stars},5")
    _, config, store = made(shop.write(tmp_path, separator=";"), tmp_path)
    assert columns_of(config)["interactions"]["rating"] == "sterne"
    assert set(store.read("interactions")["rating"].to_pylist()) == {1.5, 2.5, 3.5, 4.5, 5.5}
    shop.rename("log", sterne="liked")
    shop.change("log", "liked", lambda stars: str(stars > "4"))
    _, config, store = made(shop.write(tmp_path), tmp_path, overwrite=True)
    assert columns_of(config)["interactions"]["rating"] == "liked"
    assert config.catalog.positive_rating == 1.0
    assert set(store.read("interactions")["label"].to_pylist()) == {0, 1}


def test_a_rating_that_cannot_be_read_is_told(shop, tmp_path):
    shop.change("log", "stars", lambda stars: f"{stars} stars")
    proposal, config, _ = made(shop.write(tmp_path), tmp_path)
    assert config.catalog.positive_rating is None
    [doubt] = proposal.doubts
    assert "stars seems to be a rating and cannot be read, such as '" in doubt
    assert "write numbers, such as 4 or 4.5; the CTR check needs dislikes" in doubt


def test_without_a_table_of_users(shop, tmp_path):
    _, config, store = made(shop.write(tmp_path, (None, "books", "ratings")), tmp_path)
    assert config.catalog.tables.users is None
    assert columns_of(config)["interactions"]["user_id"] == "card"
    assert store.read("users").num_rows == 40


def test_without_a_table_of_items_the_remedy_is_to_give_one(shop, tmp_path):
    with pytest.raises(DataError, match="seems to hold users, and no table holds items"):
        propose(shop.write(tmp_path, ("readers", None, "ratings")), "r")


def test_interactions_without_ids_of_items_are_not_blamed_on_the_items(shop, tmp_path):
    shop.drop("log", "isbn")
    paths = shop.write(tmp_path)
    said = r"no column of the interactions holds ids of books\.csv; add one to ratings\.csv \(card"
    with pytest.raises(DataError, match=said):
        propose(paths, "r")
    with pytest.raises(DataError, match=said):
        propose(paths, "r", users=paths[0])
    with pytest.raises(DataError, match=said):
        propose(paths, "r", items=paths[1])


@pytest.mark.parametrize("flag", ["users", "items"])
def test_a_flag_that_does_not_fit_its_table_is_named(shop, tmp_path, flag):
    shop.change("log", "card", lambda value: value.replace("r", "1"))
    shop.change("users", "card", lambda value: value.replace("r", "1"))
    readers, books, log = shop.write(tmp_path)
    with pytest.raises(DataError) as caught:
        propose([readers, books], "r", **{flag: log})
    said = str(caught.value)
    assert f"--{flag} names ratings.csv, which holds interactions (" in said
    assert "card holds ids of readers.csv" in said
    assert "zeros" not in said


def test_what_is_called_interactions_and_is_not_is_named(shop, tmp_path):
    readers, books, log = shop.write(tmp_path)
    said = r"--interactions names books\.csv, but ratings\.csv holds them"
    with pytest.raises(DataError, match=said):
        propose([readers, log], "r", interactions=books)


def test_ids_that_are_alike_as_they_are_do_not_differ_by_zeros(shop, tmp_path):
    for table, column in (("log", "card"), ("users", "card")):
        shop.change(table, column, lambda value: "7" + value[1:])
    shop.drop("log", "day")  # or it were named as what holds interactions
    readers, books, log = shop.write(tmp_path)
    with pytest.raises(DataError, match="no table names rows of another") as caught:
        propose([readers, log], "r", interactions=books)
    assert "zeros" not in str(caught.value)


def test_ids_that_differ_by_zeros_are_told(shop, tmp_path):
    for table, column in (("log", "card"), ("users", "card"), ("log", "isbn"), ("items", "isbn")):
        digits = "00" if table == "log" else ""
        shop.change(table, column, lambda value, digits=digits: digits + "7" + value[1:])
    with pytest.raises(DataError, match=r"ratings\.csv\.card and readers\.csv\.card are alike but"):
        propose(shop.write(tmp_path), "r")


@pytest.mark.parametrize(
    ("write", "what"),
    [(lambda value: f" {value}", "blanks around them"), (str.upper, "capital letters")],
)
def test_ids_that_differ_by_how_they_are_written_are_told(shop, tmp_path, write, what):
    shop.change("log", "isbn", write)
    said = rf"ratings\.csv\.isbn and books\.csv\.isbn are alike but for {what}; write"
    with pytest.raises(DataError, match=said):
        propose(shop.write(tmp_path), "r")


def test_a_table_that_is_left_out_for_its_zeros_is_a_doubt(shop, tmp_path):
    shop.change("users", "card", lambda value: f"00{value[1:]}")
    shop.change("log", "card", lambda value: int(value[1:]))
    proposal = propose(shop.write(tmp_path), "r")
    [doubt] = [one for one in proposal.doubts if "readers.csv" in one]
    assert doubt.startswith("left out: readers.csv (card, job, mail): ratings.csv.card and readers")
    assert "are alike but for leading zeros" in doubt
    assert config_of(proposal).catalog.tables.users is None


def config_of(proposal):
    """The config of a proposal."""
    return RunConfig.model_validate(yaml.safe_load(proposal.text))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace(",", "~"), "has one column only, 'isbn~name~genre': begin it"),
        (lambda text: f"sep=,\n{text}", "begins with a line for spreadsheets, 'sep=,'; delete it"),
    ],
)
def test_a_table_that_nothing_parts_is_named(shop, tmp_path, change, words):
    paths = shop.write(tmp_path)
    paths[1].write_text(change(paths[1].read_text()))
    with pytest.raises(DataError) as caught:
        propose(paths, "r")
    assert f"books.csv {words}" in str(caught.value)


def test_a_quote_that_takes_in_rows_is_told_by_its_line(shop, tmp_path):
    paths = shop.write(tmp_path)
    paths[1].write_text(paths[1].read_text().replace("b003,The", 'b003,"The'))
    with pytest.raises(DataError, match=r"books\.csv, line 5: a quote opens a cell that takes in"):
        propose(paths, "r")


def test_roles_can_be_said(shop, tmp_path):
    shop.rename("users", job="name", card="book")  # as misleading as can be
    shop.rename("log", card="book")
    users, items, log = shop.write(tmp_path, ("books", "readers", "x"))
    _, config, _ = made([log], tmp_path, users=users, items=items)
    assert config.catalog.tables.users.path == users
    assert config.catalog.tables.items.path == items


def test_what_does_not_fit_together_is_told_with_all_that_was_looked_at(shop, tmp_path):
    shop.change("log", "isbn", lambda value: f"x{value}")
    shop.change("log", "card", lambda value: f"x{value}")
    with pytest.raises(DataError) as caught:
        propose(shop.write(tmp_path), "r")
    message = str(caught.value)
    assert "no table names rows of another" in message
    assert "readers.csv (card, job, mail)" in message
    assert "books.csv: isbn, name" in message


def test_users_who_did_all_in_one_sitting_are_split_one_by_one(shop, tmp_path):
    rows = sorted(shop.log[1:], key=lambda row: row[0])
    for step, row in enumerate(rows):
        row[3] = START + step * 60
    shop.log[1:] = rows
    proposal, config, _ = made(shop.write(tmp_path), tmp_path)
    assert config.catalog.split.protocol == "per_user_prefix"
    assert "one clock would leave" in proposal.text


def test_parquet_files_and_folders_with_types(shop, tmp_path):
    paths = []
    for name, rows in (("readers", shop.users), ("books", shop.items), ("ratings", shop.log)):
        header, *body = rows
        columns = dict(zip(header, zip(*body, strict=True), strict=True))
        if name == "ratings":
            columns["day"] = pa.array(columns["day"], pa.timestamp("s", "UTC"))
        table = pa.table({key: pa.array(list(v) if isinstance(v, tuple) else v)
                          for key, v in columns.items()})  # fmt: skip
        folder = tmp_path / name
        folder.mkdir()
        half = table.num_rows // 2
        pq.write_table(table.slice(0, half), folder / "part-0.parquet")
        pq.write_table(table.slice(half), folder / "part-1.parquet")
        paths.append(folder)
    _, config, store = made(paths, tmp_path)
    assert columns_of(config) == PLAIN
    assert store.read("interactions").num_rows == 600


def test_cells_of_several_values_are_pointed_out(shop, tmp_path):
    shop.change("items", "genre", lambda genre: f"{genre}|{GENRES[0]}")
    assert "parted by '|'" in propose(shop.write(tmp_path), "r").text


def test_a_config_that_is_there_is_not_lost(shop, tmp_path):
    paths = shop.write(tmp_path)
    output = tmp_path / "mine.yaml"
    output.write_text("precious")
    with pytest.raises(ConfigError, match=r"mine\.yaml exists; .*--force"):
        init(paths, output)
    assert output.read_text() == "precious"
    init(paths, output, overwrite=True)
    assert load_config(output).run == "mine"
    assert sorted(tmp_path.glob(".*")) == []


def test_the_schema_is_written_beside_the_config_and_named_in_its_first_line(shop, tmp_path):
    paths = shop.write(tmp_path)
    init(paths, tmp_path / "conf" / "mine.yaml")
    file = tmp_path / "conf" / "schema.json"
    line = "# yaml-language-server: $schema=schema.json"
    assert (tmp_path / "conf" / "mine.yaml").read_text().splitlines()[0] == line
    assert json.loads(file.read_text())["properties"]["seed"]
    older = json.dumps({"title": "RunConfig", "properties": {}})
    file.write_text(older)
    init(paths, tmp_path / "conf" / "again.yaml")
    assert file.read_text() == older
    assert (tmp_path / "conf" / "again.yaml").read_text().splitlines()[0] == line


@pytest.mark.parametrize("theirs", ['{"title": "My shop"}', "[1]", "not JSON"])
def test_a_schema_of_something_else_is_left_alone(shop, tmp_path, theirs):
    (tmp_path / "schema.json").write_text(theirs)
    init(shop.write(tmp_path), tmp_path / "mine.yaml")
    assert (tmp_path / "schema.json").read_text() == theirs
    first = (tmp_path / "mine.yaml").read_text().splitlines()[0]
    assert first.startswith("# schema.json here is another file; `laser schema --output")
    assert load_config(tmp_path / "mine.yaml").run == "mine"


def test_a_link_stays_a_link(shop, tmp_path):
    target = tmp_path / "kept" / "real.yaml"
    target.parent.mkdir()
    target.write_text("old")
    output = tmp_path / "mine.yaml"
    output.symlink_to(target)
    init(shop.write(tmp_path), output, overwrite=True)
    assert output.is_symlink()
    assert load_config(target).run == "mine"
    assert sorted(target.parent.iterdir()) == [target]


def test_what_cannot_be_written_is_named_as_it_was_given(shop, tmp_path):
    paths = shop.write(tmp_path)
    with pytest.raises(ConfigError, match=rf"^{tmp_path} is a folder; give --output a file in it"):
        init(paths, tmp_path, overwrite=True)
    for output, why in (
        (paths[0] / "own.yaml", "Not a directory|File exists"),
        (Path("/proc/nowhere/own.yaml"), "No such file"),
        (tmp_path / f"{'x' * 300}.yaml", "File name too long"),
    ):
        with pytest.raises(ConfigError, match=rf"{output} cannot be written \(({why})"):
            init(paths, output)


@pytest.mark.parametrize("run", ["my run", "", "-x", "a/b"])
def test_a_run_that_cannot_be_called_so_is_refused_as_what_was_said(shop, tmp_path, run):
    with pytest.raises(ConfigError, match=rf"^--run '{run}': a run is called by letters"):
        init(shop.write(tmp_path), tmp_path / "mine.yaml", run=run)
    assert not list(tmp_path.glob("*.yaml"))


@pytest.mark.parametrize("name", ["my shop", "日本", "2024-05"])
def test_a_run_is_called_as_the_file_as_far_as_it_may(shop, tmp_path, name):
    proposal = init(shop.write(tmp_path), tmp_path / f"{name}.yaml")
    assert load_config(tmp_path / f"{name}.yaml").run == {"日本": "catalog"}.get(
        name, name.replace(" ", "-")
    )
    assert proposal.text


def test_too_few_tables_missing_ones_and_empty_ones(shop, tmp_path):
    paths = shop.write(tmp_path)
    with pytest.raises(ConfigError, match="tables given: 1; give 2 to 8"):
        propose(paths[:1], "r")
    with pytest.raises(DataError, match=r"nowhere\.csv does not exist; .* has books\.csv, rat"):
        propose([*paths, tmp_path / "nowhere.csv"], "r")
    paths[0].write_text("card,job\n")
    with pytest.raises(DataError, match="has no rows"):
        propose(paths, "r")
    paths[0].write_text("card,card\n1,2\n")
    with pytest.raises(DataError, match="two columns 'card'"):
        propose(paths, "r")


def test_what_is_no_table_or_lacks_its_header_is_told_with_the_remedy(shop, tmp_path):
    paths = shop.write(tmp_path)
    book = tmp_path / "books.xlsx"
    book.write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match=r"books\.xlsx is a spreadsheet, no .* save it as CSV"):
        propose([paths[0], book, paths[2]], "r")
    rows = paths[2].read_text().splitlines()
    paths[2].write_text("\n".join(row.replace("r", "").replace("b", "") for row in rows[1:]))
    with pytest.raises(DataError, match=r"ratings\.csv seems to have no header"):
        propose(paths, "r")


def test_ratings_of_any_number_are_a_rating_if_called_so(shop, tmp_path):
    random = np.random.default_rng(1)
    shop.change("log", "stars", lambda stars: round(float(stars + random.normal()), 3))
    _, config, store = made(shop.write(tmp_path), tmp_path)
    assert columns_of(config) == PLAIN
    assert 0.45 < np.mean(store.read("interactions")["label"].to_numpy()) < 0.55


def test_a_table_too_many_is_left_out_and_said(shop, tmp_path):
    paths = shop.write(tmp_path)
    extra = tmp_path / "towns.csv"
    extra.write_text("town,mayor\nA,B\nC,D\n")
    proposal, config, _ = made([*paths, extra], tmp_path)
    assert columns_of(config) == PLAIN
    assert "# check: left out: towns.csv (town, mayor): ratings.csv names no row" in proposal.text
    assert "left out: towns.csv" in proposal.doubts[0]


@pytest.mark.parametrize("name", ["bookshop", "foreign"])
def test_the_catalogs_of_the_docs_need_no_change(name, tmp_path):
    proposal, config, store = made(sorted((TESTS / name).glob("*.csv")), tmp_path)
    assert config.catalog.split.protocol == "global_time"
    assert config.prompts.domain == "book"
    assert f"path: tests/{name}/" in proposal.text  # of the project's root, wherever we are
    facts = store.require("interactions").facts
    assert facts["test_rows_of_users_without_past_share"] < 0.1
    assert 0.3 < facts["positive_share"] < 0.6
    quick = {"embeddings": config.embeddings.model_copy(update={"max_epochs": 5})}
    for stage in (train_embeddings, group_entities):
        stage.run(config.model_copy(update=quick), store)
    groups = store.read("groups")
    assert groups.num_rows == store.read("users").num_rows + store.read("items").num_rows
    kinds = {name.split("=")[0] for name in store.require("groups").facts["sizes"]}
    assert len(kinds) >= 4  # collaborative ones, and by attributes of users and items
