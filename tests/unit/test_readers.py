"""Readers: somebody's Parquet and CSV -> our columns, ids as text, nothing guessed."""

import datetime as dt
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.catalog_config import CatalogSettings
from pipeline.columns import as_numbers, as_timestamps
from pipeline.errors import ConfigError, DataError
from pipeline.readers import raw_files, read_raw

TIMES = [1_600_000_000, 1_600_000_060, 1_600_000_120]


def make_tables():
    return {
        "users": pa.table({"user_id": ["u0", "u1", "u2"]}),
        "items": pa.table({"item_id": ["i0", "i1", "i2"], "title": ["A", "B", "C"]}),
        "interactions": pa.table(
            {
                "user_id": ["u0", "u1", "u2"],
                "item_id": ["i0", "i1", "i2"],
                "rating": [1.0, 2.0, 3.0],
                "timestamp": TIMES,
            }
        ),
    }


@pytest.fixture
def settings_for(tmp_path):
    """Write tables as Parquet; give settings that read them. `specs` overrides per table."""

    def write(tables, specs=None, unit="s"):
        given = {}
        for name, table in (make_tables() | tables).items():
            pq.write_table(table, tmp_path / f"{name}.parquet")
            given[name] = {"path": tmp_path / f"{name}.parquet", **(specs or {}).get(name, {})}
        return CatalogSettings(source="tables", tables=given, timestamp_unit=unit)

    return write


def with_column(name, values):
    """The interactions with one column replaced."""
    table = make_tables()["interactions"]
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def attributes_of(table):
    return [dict(row) for row in table["attributes"].to_pylist()]


def test_ids_in_csv_stay_text_with_their_zeros_and_words(tmp_path, settings_for):
    path = tmp_path / "users.csv"
    path.write_text('user_id,age\n007,30\nNA,\n"a,b",41\n', encoding="utf-8")
    spec = {"users": {"path": path, "attributes": ["age"]}}
    users = read_raw(settings_for({}, spec)).users
    assert users["user_id"].to_pylist() == ["007", "NA", "a,b"]
    assert attributes_of(users) == [{"age": "30"}, {}, {"age": "41"}]


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([1, 2, 3], pa.int16()),
        pa.array([1, 2, 3], pa.uint64()),
        pa.array([1.0, 2.0, 3.0], pa.float64()),
        pa.array([1.0, 2.0, 3.0], pa.float32()),
        pa.array([1, 2, 3], pa.decimal128(38, 0)),
        pa.array(["1", "2", "3"], pa.large_string()),
        pa.array(["1", "2", "3"]).dictionary_encode(),
        pa.array([b"1", b"2", b"3"]),
    ],
    ids=lambda ids: str(ids.type),
)
def test_an_id_of_any_type_becomes_its_decimal_text(settings_for, ids):
    users = read_raw(settings_for({"users": pa.table({"user_id": ids})})).users
    assert users["user_id"].type == pa.string()
    assert users["user_id"].to_pylist() == ["1", "2", "3"]


@pytest.mark.parametrize(
    "ids",
    [
        pa.array([0.5, 1.0, 2.0]),
        pa.array([2.0**53, 2.0**53 + 2, 1.0]),
        pa.array([2.0**24, 1.0, 2.0], pa.float32()),
        pa.array([0.5, 1.0, 2.0]).dictionary_encode(),
    ],
)
def test_float_ids_that_may_have_lost_digits_are_refused(settings_for, ids):
    with pytest.raises(DataError, match="store them as strings or integers"):
        read_raw(settings_for({"users": pa.table({"user_id": ids})}))


def test_a_float_id_that_is_missing_is_null_not_the_text_nan(settings_for):
    users = read_raw(
        settings_for({"users": pa.table({"user_id": [1.0, float("nan"), None]})})
    ).users
    assert users["user_id"].to_pylist() == ["1", None, None]


def test_ids_that_are_not_text_at_all_are_refused(settings_for):
    for ids, what in (
        ([{"a": 1}] * 3, "cannot be read as text"),
        (pa.array([b"\xff", b"1", b"2"]), "1 ids are not UTF-8"),
    ):
        with pytest.raises(DataError, match=f"column user_id: {what}"):
            read_raw(settings_for({"users": pa.table({"user_id": ids})}))


def test_a_title_stored_as_bytes_is_mended_as_text_is(settings_for):
    titles = pa.array([b"A\xff"] + [b"B"] * 4)
    items = pa.table({"item_id": [f"i{n}" for n in range(5)], "title": titles})
    assert read_raw(settings_for({"items": items})).items["title"].to_pylist()[0] == "A\ufffd"


def test_a_folder_of_parts_is_read_whole_even_when_their_id_types_differ(tmp_path, settings_for):
    folder = tmp_path / "users" / "day=1"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"user_id": ["0", "1"]}), folder / "a.parquet")
    pq.write_table(pa.table({"user_id": [2, 3]}), folder / "b.parquet")
    (tmp_path / "users" / "_unfinished.parquet").write_text("no Parquet")
    settings = settings_for({}, {"users": {"path": tmp_path / "users"}})
    assert read_raw(settings).users["user_id"].to_pylist() == ["0", "1", "2", "3"]
    assert [file.name for file in raw_files(settings)] == [
        "a.parquet",
        "b.parquet",
        "items.parquet",
        "interactions.parquet",
    ]


def test_columns_are_renamed_and_only_wanted_attributes_kept(settings_for):
    users = pa.table({"uid": ["u0", "u1", "u2"], "age": [20, None, 40], "phone": ["1", "2", "3"]})
    spec = {"users": {"columns": {"user_id": "uid"}, "attributes": ["age"]}}
    table = read_raw(settings_for({"users": users}, spec)).users
    assert table.column_names == ["user_id", "attributes"]
    assert attributes_of(table) == [{"age": "20"}, {}, {"age": "40"}]


def test_attributes_of_any_type_become_text_and_missing_ones_are_absent(settings_for):
    columns = {
        "year": [1995.0, float("nan"), 2001.0],
        "score": [7.5, None, 8.0],
        "genres": [["Drama", "War"], [], None],
        "blank": ["", "  ", "x"],
        "new": [True, False, None],
    }
    items = pa.table({"item_id": ["i0", "i1", "i2"], "title": ["A", "B", "C"], **columns})
    spec = {"items": {"attributes": list(columns)}}
    assert attributes_of(read_raw(settings_for({"items": items}, spec)).items) == [
        {"year": "1995", "score": "7.5", "genres": "Drama, War", "new": "true"},
        {"new": "false"},
        {"year": "2001", "score": "8", "blank": "x"},
    ]


def test_maps_of_many_rows_agree_with_a_plain_loop(settings_for):
    rows = 70_000  # more than one slice
    columns = {
        "a": [str(n) if n % 3 else None for n in range(rows)],
        "b": [str(n) if n % 5 else "" for n in range(rows)],
    }
    users = pa.table({"user_id": [str(n) for n in range(rows)], **columns})
    table = read_raw(settings_for({"users": users}, {"users": {"attributes": ["a", "b"]}})).users
    assert attributes_of(table) == [
        {key: values[n] for key, values in columns.items() if values[n]} for n in range(rows)
    ]


def test_a_missing_column_names_table_file_columns_and_the_nearest(settings_for, tmp_path):
    table = make_tables()["interactions"].rename_columns(["user", "item_id", "stars", "timestamp"])
    with pytest.raises(DataError) as caught:
        read_raw(settings_for({"interactions": table}))
    message = str(caught.value)
    assert f"interactions: {tmp_path / 'interactions.parquet'} has the columns user, " in message
    assert "'user_id' is missing; the nearest is 'user'" in message
    assert "'rating' is missing; give your name for it under" in message  # nothing is near
    assert "catalog.tables.interactions.columns, as rating: yours" in message


def test_a_missing_column_that_the_config_names_is_corrected_where_it_stands(settings_for):
    users = pa.table({"card": ["u0", "u1", "u2"], "occupation": ["a", "b", "c"]})
    spec = {"users": {"columns": {"user_id": "cart"}, "attributes": ["ocupation", "zzz"]}}
    with pytest.raises(DataError) as caught:
        read_raw(settings_for({"users": users}, spec))
    attributes = "correct catalog.tables.users.attributes, which lists columns by your names"
    assert set(str(caught.value).splitlines()[1:]) == {
        "  'cart' is missing; the nearest is 'card'; correct catalog.tables.users.columns.user_id",
        f"  'ocupation' is missing; the nearest is 'occupation'; {attributes}",
        f"  'zzz' is missing; {attributes}",
    }


def test_a_mapping_for_a_column_we_do_not_have_is_a_config_error(settings_for):
    with pytest.raises(ConfigError, match=r"users\.columns\.user_ids.*nearest is user_id"):
        read_raw(settings_for({}, {"users": {"columns": {"user_ids": "x"}}}))
    with pytest.raises(ConfigError, match="interactions have none"):
        read_raw(settings_for({}, {"interactions": {"attributes": ["rating"]}}))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: None, r"catalog\.tables\.users\.path: .*users-file does not exist"),
        (lambda path: path.write_text("hello"), r"users-file cannot be read as Parquet"),
        (lambda path: path.mkdir(), r"no \*\.parquet file in the folder .*users-file"),
    ],
)
def test_files_that_are_missing_or_not_tables_are_named(tmp_path, settings_for, make, complaint):
    path = tmp_path / "users-file"
    make(path)
    with pytest.raises(DataError, match=complaint):
        read_raw(settings_for({}, {"users": {"path": path}}))


def test_a_csv_that_is_no_table_is_named(tmp_path, settings_for):
    path = tmp_path / "users.csv"
    for text in ("", "\n\n"):
        path.write_text(text)
        with pytest.raises(
            DataError,
            match=r"users\.csv cannot be read as a text table .*correct catalog\.tables\.u",
        ):
            read_raw(settings_for({}, {"users": {"path": path}}))


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize(
    "as_column",
    [
        lambda ticks, dates: ticks,
        lambda ticks, dates: [str(tick) for tick in ticks],
        lambda ticks, dates: [float(tick) for tick in ticks],
        lambda ticks, dates: pa.array(dates, pa.timestamp("ns", "UTC")),
        lambda ticks, dates: [date.strftime("%Y-%m-%d %H:%M:%S") for date in dates],
        lambda ticks, dates: [date.strftime("%Y-%m-%dT%H:%M:%SZ") for date in dates],
    ],
    ids=["integer", "text", "float", "timestamp", "ISO", "ISO with Z"],
)
def test_times_of_any_type_come_out_in_the_unit(settings_for, unit, as_column):
    ticks = [time * {"s": 1, "ms": 1_000, "us": 1_000_000}[unit] for time in TIMES]
    dates = [dt.datetime.fromtimestamp(time, dt.UTC) for time in TIMES]
    table = with_column("timestamp", as_column(ticks, dates))
    raw = read_raw(settings_for({"interactions": table}, unit=unit))
    assert raw.interactions["timestamp"].to_pylist() == ticks


def test_ratings_may_have_decimal_commas_and_be_true_or_false(settings_for):
    for written, read in (
        (["3,5", " 4 ", "-,25"], [3.5, 4.0, -0.25]),
        (["1,234", "1,5,2", "4 stars"], [None, None, None]),  # thousands? two? no number
        (["True", "FALSE", "true"], [1.0, 0.0, 1.0]),
        ([True, None, False], [1.0, None, 0.0]),
        (pa.array(["3,5", "true", "2"]).dictionary_encode(), [3.5, 1.0, 2.0]),
    ):
        raw = read_raw(settings_for({"interactions": with_column("rating", written)}))
        assert raw.interactions["rating"].to_pylist() == read


def test_dates_are_read_as_such_where_a_number_stands_before_them(settings_for):
    table = with_column("timestamp", ["1600000000", "2020-09-13", "2020-09-14"])
    raw = read_raw(settings_for({"interactions": table}))
    assert raw.interactions["timestamp"].to_pylist() == [None, 1_599_955_200, 1_600_041_600]


def test_what_is_no_number_or_date_becomes_null(settings_for):
    table = with_column("rating", ["3", "three", " 4.5 "])
    raw = read_raw(settings_for({"interactions": table}))
    assert raw.interactions["rating"].to_pylist() == [3.0, None, 4.5]
    table = with_column("rating", [float("inf"), float("nan"), 2.0])
    raw = read_raw(settings_for({"interactions": table}))
    assert raw.interactions["rating"].to_pylist() == [None, None, 2.0]
    table = with_column("timestamp", ["1600000000", "yesterday", ""])
    raw = read_raw(settings_for({"interactions": table}))
    assert raw.interactions["timestamp"].to_pylist() == [1_600_000_000, None, None]
    table = with_column("timestamp", ["2020-09-13", "yesterday", "1600000000"])
    raw = read_raw(settings_for({"interactions": table}))
    assert raw.interactions["timestamp"].to_pylist() == [1_599_955_200, None, None]


@pytest.mark.parametrize(
    "broken", ["2020-06-31", "2023-02-29 10:00:00", "2020-13-01", "2020-01-01 24:00"]
)
@pytest.mark.parametrize("zone", ["", "Z", "+02:00"])
def test_a_day_that_no_calendar_has_becomes_null_and_hides_no_other(settings_for, broken, zone):
    dates = ["2020-02-29 12:00:00" + zone, broken + zone, "2020/09/13"]
    times = read_raw(settings_for({"interactions": with_column("timestamp", dates)})).interactions
    offset = 7200 if zone == "+02:00" else 0
    assert times["timestamp"].to_pylist() == [1_582_977_600 - offset, None, 1_599_955_200]


BROKEN = b"A \xed\xa0\x80 caf\xe9"  # a lone surrogate, and Latin-1


def items_csv(tmp_path, rows):
    path = tmp_path / "broken.csv"
    path.write_bytes(b"item_id,title\n" + b"".join(b"%s,%s\n" % row for row in rows))
    return path


def as_parquet(path):
    """The same table by a writer that does not look at its bytes."""
    lines = [line.split(b",") for line in path.read_bytes().splitlines()[1:]]
    columns = [pa.array(list(column), pa.binary()) for column in zip(*lines, strict=True)]
    texts = [pa.Array.from_buffers(pa.string(), len(one), one.buffers()) for one in columns]
    table = pa.table(texts, ["item_id", "title"])
    parquet = path.with_suffix(".parquet")
    pq.write_table(table, parquet)
    return parquet


@pytest.mark.parametrize("stored", [lambda path: path, as_parquet], ids=["csv", "parquet"])
def test_a_title_that_is_not_utf8_is_mended_with_a_warning(tmp_path, settings_for, stored, caplog):
    path = stored(items_csv(tmp_path, [(b"a", b"Good"), (b"b", BROKEN)]))
    raw = read_raw(settings_for({}, {"items": {"path": path}}))
    mended = "A \ufffd\ufffd\ufffd caf\ufffd"
    assert raw.items["title"].to_pylist() == ["Good", mended]
    assert "1 of 2 values are not UTF-8, the first in data row 2" in caplog.text


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(b"a\xe9", b"Good"), (b"b", b"Good")], id="an id"),
        pytest.param([(b"a", b"caf\xe9"), (b"b", b"\xe9t\xe9")], id="another encoding"),
    ],
)
def test_ids_and_files_in_another_encoding_are_refused(tmp_path, settings_for, rows):
    path = items_csv(tmp_path, rows)
    with pytest.raises(
        DataError,
        match=r"not UTF-8(, the first in data row 1; store|; it seems to be LATIN1: write it anew)",
    ):
        read_raw(settings_for({}, {"items": {"path": path}}))


def broken_texts(count):
    values = pa.array([b"caf\xe9"] * count, pa.binary())
    return pa.Array.from_buffers(pa.string(), count, values.buffers())


def test_all_columns_in_another_encoding_are_named_as_the_user_does(settings_for):
    items = pa.table({"isbn": broken_texts(3), "name": broken_texts(3), "title": broken_texts(3)})
    users = pa.table({"user_id": broken_texts(3)})
    spec = {"columns": {"item_id": "isbn", "title": "name"}, "attributes": ["title"]}
    with pytest.raises(DataError) as caught:
        read_raw(settings_for({"items": items, "users": users}, {"items": spec}))
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    names = ["user_id", r"isbn \(our item_id\)", r"name \(our title\)", "title"]
    for name, line in zip(names, lines, strict=True):
        assert re.search(rf"\.parquet, column {name}: 3 .*not UTF-8", line)
        assert "store its text as UTF-8 (of a text file it seems to be LATIN1" in line


def test_a_number_of_broken_bytes_is_no_number(settings_for):
    raw = pa.array([b"3", b"\xff"], pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    assert as_numbers(pa.chunked_array([broken]), "here").to_pylist() == [3.0, None]
    assert as_timestamps(pa.chunked_array([broken]), "s", "here").to_pylist() == [3, None]
