"""Tables as people have them: other separators and encodings, no users, no ratings, bad rows."""

import pickle

import pytest

from jobs import check_ctr
from pipeline.catalog import load_catalog
from pipeline.catalog_config import CatalogSettings
from pipeline.config import RunConfig
from pipeline.encodings import by_iconv, is_utf8, likely_encoding
from pipeline.errors import CheckError, ConfigError, DataError, UnusableCatalog
from pipeline.text_rows import csv_rows

READERS = "user_id\n" + "\n".join(f"r{n}" for n in range(10))
BOOKS = "item_id,title\n" + "\n".join(f"b{n},Book {n}" for n in range(10))


def ratings(row="r{user},b{item},{stars},{time}", head="user_id,item_id,rating,timestamp"):
    rows = [
        row.format(user=n % 10, item=(n * 3) % 10, stars=n % 5 + 1, time=1_700_000_000 + n * 3600)
        for n in range(40)
    ]
    return "\n".join([head, *rows])


@pytest.fixture
def settings(tmp_path):
    """Settings for texts of the three tables; `specs` adds to what is said of a table."""

    def write(texts=None, specs=None, encoding="utf-8", users=True, **sections):
        all_texts = {"users": READERS, "items": BOOKS, "interactions": ratings()} | (texts or {})
        tables = {}
        for name, text in all_texts.items():
            path = tmp_path / f"{name}.csv"
            path.write_bytes(text.encode(encoding))
            if name != "users" or users:
                tables[name] = {"path": str(path), **(specs or {}).get(name, {})}
        return CatalogSettings.model_validate({"tables": tables, **sections})

    return write


@pytest.mark.parametrize("separator", [";", "|", "\t"])
def test_a_table_with_another_separator_is_read_if_the_config_says_so(settings, separator):
    books = BOOKS.replace(",", separator)
    with pytest.raises(DataError, match=r"items: .*set `separator: \"") as caught:
        load_catalog(settings({"items": books}))
    assert separator.replace("\t", "\\t") in str(caught.value)
    said = settings({"items": books}, {"items": {"separator": separator}})
    assert load_catalog(said).items["title"][3].as_py() == "Book 3"


def test_a_separator_makes_a_text_table_of_any_name(settings, tmp_path):
    path = tmp_path / "books.txt"
    path.write_text(BOOKS.replace(",", ";"), encoding="utf-8")
    said = settings(specs={"items": {"path": str(path), "separator": ";"}})
    assert load_catalog(said).items.num_rows == 10


def test_a_config_without_the_new_settings_is_dumped_as_before(settings):
    dumped = settings().model_dump(mode="json")
    assert not {"unusable_rows", "max_unusable_share"} & set(dumped)
    assert "separator" not in dumped["tables"]["items"]


@pytest.mark.parametrize(
    ("text", "encoding", "name"),
    [
        ("Les Misérables, à côté", "latin-1", "LATIN1"),
        ("“Straße” … über", "cp1252", "CP1252"),
        ("书名,作者\n红楼梦,曹雪芹\n西游记,吴承恩", "gb18030", "GB18030"),
        ("吾輩は猫である", "shift_jis", "SHIFT_JIS"),
        ("Война и мир, Толстой", "cp1251", "CP1251"),
        ("title,书名", "utf-16", "UTF-16"),
        ("title,name", "utf-16-le", "UTF-16LE"),
    ],
)
def test_an_encoding_is_told_by_its_bytes(text, encoding, name):
    data = text.encode(encoding)
    assert not is_utf8(data)
    assert likely_encoding(data) == name
    assert f"iconv -f {name} -t UTF-8 books.csv" in by_iconv(data, "books.csv")


def test_utf8_is_utf8_wherever_it_is_cut():
    data = "红楼梦".encode()
    assert all(is_utf8(data[:end]) for end in range(len(data) + 1))
    assert "find out what it is in" in by_iconv(b"\xa4\xa6\xa7\xa9\xab")


@pytest.mark.parametrize(
    ("encoding", "name"), [("gb18030", "GB18030"), ("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE")]
)
def test_a_file_in_another_encoding_is_named_with_the_command(settings, encoding, name):
    books = BOOKS.replace("title", "书名").replace("Book", "红楼梦")
    spec = {"items": {"columns": {"title": "书名"}}}
    said = settings({"items": books}, spec, encoding)
    with pytest.raises(DataError, match=f"iconv -f {name} -t UTF-8"):
        load_catalog(said)


def test_a_published_file_with_a_header_that_is_not_utf8_is_refused_as_such(tmp_path):
    path = tmp_path / "movies.csv"
    path.write_bytes("movieId,título\n1,a\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"movies\.csv has a header that is not UTF-8"):
        list(csv_rows(path, ["movieId"], "somewhere"))


@pytest.mark.parametrize(
    ("written", "second"),
    [
        ("2024-05-01 12:00:00+02:00", 1_714_557_600),
        ("2024-05-01T12:00:00-0130", 1_714_570_200),
        ("2024/05/01", 1_714_521_600),
        ("2024/05/01 12:00:00", 1_714_564_800),
        ("2024-05-01", 1_714_521_600),
    ],
)
def test_dates_with_offsets_and_slashes_are_read(settings, written, second):
    times = [f"r{n % 10},b{n % 7},{n % 5 + 1},2024-04-{n % 28 + 1:02d}" for n in range(40)]
    head = "user_id,item_id,rating,timestamp"
    rows = [head, *times, f"r1,b2,3,{written}", "r1,b3,4,2024-05-02"]
    found = (
        load_catalog(settings({"interactions": "\n".join(rows)}))
        .interactions["timestamp"]
        .to_pylist()
    )
    assert found[-2] == second


def test_without_a_table_of_users_they_are_who_has_an_interaction(settings):
    catalog = load_catalog(settings(users=False))
    assert sorted(catalog.users["user_id"].to_pylist()) == sorted(f"r{n}" for n in range(10))
    assert catalog.users["attributes"].to_pylist() == [[]] * 10


def test_without_ratings_every_interaction_is_a_like(settings):
    bare = ratings("r{user},b{item},{time}", "user_id,item_id,timestamp")
    rows = load_catalog(settings({"interactions": bare}, positive_rating=None)).interactions
    assert set(rows["label"].to_pylist()) == {1}
    assert set(rows["rating"].to_pylist()) == {1.0}
    with pytest.raises(DataError, match="'rating' is missing"):
        load_catalog(settings({"interactions": bare}))


def test_without_ratings_the_check_is_left_out_unless_something_is_to_be_shown(settings, caplog):
    sections = {"run": "r", "language_model": {"path": "m"}, "encoder": {"path": "e"}}
    catalog = settings(positive_rating=None)
    config = RunConfig.model_validate({**sections, "catalog": catalog})
    check_ctr.run(config, store=None)  # nothing is read
    assert "ctr: left out, without ratings" in caplog.text
    for asked in ({"min_auc_gain": 0.0}, {"require_lossless": True}):
        strict = RunConfig.model_validate({**sections, "catalog": catalog, "ctr": asked})
        with pytest.raises(CheckError, match="the CTR check cannot be made"):
            check_ctr.run(strict, store=None)


def test_ratings_that_are_and_are_not_there_are_a_contradiction(settings):
    spec = {"interactions": {"columns": {"rating": "rating"}}}
    with pytest.raises(ConfigError, match=r"columns\.rating names a column.*remove one"):
        load_catalog(settings(specs=spec, positive_rating=None))


BAD = {
    "items": BOOKS + "\nb3,Again\n,Nameless",
    "users": READERS + "\nr1\n",
    "interactions": "\n".join(
        [
            ratings(),
            "r1,ghost,3,1700000001",
            "ghost,b1,3,1700000001",
            "r1,b1,good,1700000001",
            "r1,b1,4,someday",
            "r0,b0,2,1700000000",
        ]
    ),
}


def test_rows_that_cannot_be_used_are_refused_or_left_out_as_the_config_says(settings, caplog):
    with pytest.raises(DataError, match="repeat the item_id"):
        load_catalog(settings(BAD))
    catalog = load_catalog(settings(BAD, unusable_rows="drop", max_unusable_share=0.2))
    good = load_catalog(settings())
    assert catalog.interactions.equals(good.interactions)
    assert catalog.items.equals(good.items)
    assert catalog.users.equals(good.users)
    for words in (
        "items: 1 of 12 rows have no item_id",
        "items: 1 of 12 rows repeat the item_id of an earlier row, which is kept; left out",
        "users: 1 of 11 rows repeat the user_id",
        "interactions: 1 of 45 rows name users that their table lacks",
        "interactions: 1 of 45 rows name items that their table lacks",
        "1 of 45 rows lack a rating",
        "1 of 45 rows lack a time",
        "1 of 45 rows repeat the (user_id, item_id, timestamp) of an earlier row, which is kept",
    ):
        assert words in caplog.text
    assert good.left_out == ()
    assert [(one.table, one.rows, one.of_rows) for one in catalog.left_out] == [
        *[("users", 1, 11), ("items", 1, 12), ("items", 1, 12)],
        *[("interactions", 1, 45)] * 5,
    ]
    assert ("interactions", "lack a rating", 1, 45, False) in catalog.left_out


def test_what_is_cut_to_size_is_counted_behind_what_cannot_be_used(settings):
    said = settings(BAD, unusable_rows="drop", max_unusable_share=0.2, max_users=4)
    catalog = load_catalog(said)
    tables = {one.table: one for one in catalog.left_out if one.is_asked}
    assert {name: one.of_rows for name, one in tables.items()}["interactions"] == 40
    assert tables["users"].rows == 6
    assert tables["interactions"].rows == 40 - catalog.interactions.num_rows
    assert len(catalog.left_out) == 8 + len(tables)


def test_more_rows_than_the_config_allows_are_not_left_out(settings):
    with pytest.raises(UnusableCatalog) as caught:
        load_catalog(settings(BAD, unusable_rows="drop"))
    said = str(caught.value)
    assert "items: 2 of 12 rows: 1 have no item_id that can be used, 1 repeat the item_id" in said
    assert "interactions: 5 of 45 rows: 1 name users that their table lacks, 1 name items" in said
    assert "raise catalog.max_unusable_share (0.1 of a table's rows" in said
    assert "users" not in [line.split(":")[0].strip() for line in said.splitlines()]  # 1 of 11


def test_a_table_is_never_left_out_as_a_whole(settings):
    texts = {"interactions": ratings("x{user},b{item},{stars},{time}")}
    with pytest.raises(UnusableCatalog) as caught:
        load_catalog(settings(texts, unusable_rows="drop", max_unusable_share=1.0))
    assert "interactions: 40 of 40 rows: 40 name users that their table lacks" in str(caught.value)
    assert "check the path" not in str(caught.value)


def test_a_time_to_come_is_left_out_like_other_rows(settings, caplog):
    texts = {"interactions": ratings() + f"\nr1,b1,3,{4_070_908_800}"}
    with pytest.raises(UnusableCatalog, match="outside 1990 to tomorrow"):
        load_catalog(settings(texts))
    assert load_catalog(settings(texts, unusable_rows="drop")).interactions.num_rows == 40
    assert "1 of 41 rows have a time outside 1990 to tomorrow when read as s; left out" in (
        caplog.text
    )


def test_a_day_that_no_calendar_has_is_one_row_of_many(settings):
    days = [
        f"r{n % 10},b{n % 9},{n % 5 + 1},{2022 + n // 12}-{n % 12 + 1:02d}-28" for n in range(30)
    ]
    head = "user_id,item_id,rating,timestamp"
    texts = {"interactions": "\n".join([head, *days, "r1,b2,3,2024-06-31"])}
    with pytest.raises(DataError) as caught:
        load_catalog(settings(texts))
    assert "1 of 31 rows without a readable timestamp (row 31: user_id 'r1'" in str(caught.value)
    assert caught.value.found == ["interactions: 1 of 31 rows without a readable timestamp"]
    assert pickle.loads(pickle.dumps(caught.value)).found == caught.value.found  # of a Ray worker
    assert load_catalog(settings(texts, unusable_rows="drop")).interactions.num_rows == 30


def test_a_wrong_unit_is_refused_even_where_rows_may_be_left_out(settings):
    with pytest.raises(DataError, match=r"set catalog\.timestamp_unit: s"):
        load_catalog(settings(unusable_rows="drop", timestamp_unit="ms"))


def test_a_folder_of_text_tables_is_told_what_it_is(settings, tmp_path):
    said = settings(specs={"items": {"path": str(tmp_path)}})
    with pytest.raises(DataError, match=r"\(but interactions\.csv: text tables are given one by"):
        load_catalog(said)


def test_what_could_not_be_read_is_shown(settings):
    rows = ["r1,b1,,1700000001", "r2,b1,good,1700000002", "r3,b1,3, ", "r4,b1,3,15.11.2023"]
    with pytest.raises(UnusableCatalog) as caught:
        load_catalog(settings({"interactions": "\n".join([ratings(), *rows])}))
    said = str(caught.value)
    assert "fill it or drop the rows; 'good' is no number" in said
    assert "give numbers, or dates like 2024-05-31; '15.11.2023' is neither" in said


def test_a_table_that_nothing_parts_is_told_so(settings):
    with pytest.raises(DataError, match=r"items\.csv has one column only, 'item_id~title': begin"):
        load_catalog(settings({"items": BOOKS.replace(",", "~")}))
