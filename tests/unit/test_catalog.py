"""The catalog as a whole: canonical tables, labels, the dense slice, the job, MovieLens."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from jobs import build_catalog
from pipeline.catalog import load_catalog
from pipeline.catalog_config import CatalogSettings
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.schemas import INTERACTIONS, ITEMS, USERS
from pipeline.store import Store

ML100K = Path(__file__).parents[2] / ".cache/assets/recbole/dataset_example/ml-100k"
START = 1_600_000_000  # a plausible second
SPLIT = {"protocol": "per_user_prefix", "train_share": 0.4, "valid_share": 0.3}


def make_tables(users=6, items=5):
    """Every user rated every item, one second apart, user by user."""
    rows = [(f"u{u}", f"i{i}") for u in range(users) for i in range(items)]
    return {
        "users": pa.table({"user_id": [f"u{u}" for u in range(users)]}),
        "items": pa.table(
            {
                "item_id": [f"i{i}" for i in range(items)],
                "title": [f"Title {i}" for i in range(items)],
            }
        ),
        "interactions": pa.table(
            {
                "user_id": [user for user, _ in rows],
                "item_id": [item for _, item in rows],
                "rating": [float(1 + n % 5) for n in range(len(rows))],
                "timestamp": [START + n for n in range(len(rows))],
            }
        ),
    }


@pytest.fixture
def write(tmp_path):
    """Write tables as Parquet; give settings that read them."""

    def write_tables(tables, **keywords):
        paths = {name: {"path": tmp_path / f"{name}.parquet"} for name in tables}
        for name, table in tables.items():
            pq.write_table(table, paths[name]["path"])
        return CatalogSettings(source="tables", tables=paths, split=SPLIT, **keywords)

    return write_tables


@pytest.fixture
def load(write):
    return lambda tables, **keywords: load_catalog(write(tables, **keywords))


def with_column(table, name, values):
    return table.set_column(table.column_names.index(name), name, values)


def attributes_of(table, key):
    return {row[key]: dict(row["attributes"]) for row in table.to_pylist()}


def test_tables_come_out_in_the_canonical_schemas_and_order(load):
    tables = make_tables()
    shuffled = np.random.default_rng(0).permutation(tables["interactions"].num_rows)
    tables["interactions"] = tables["interactions"].take(shuffled)
    catalog = load(tables)
    assert catalog.users.schema == USERS
    assert catalog.items.schema == ITEMS
    assert catalog.interactions.schema == INTERACTIONS
    rows = catalog.interactions.to_pylist()
    keys = [(row["timestamp"], row["user_id"], row["item_id"]) for row in rows]
    assert keys == sorted(keys)
    assert all(row["label"] == (row["rating"] >= 4) for row in rows)
    assert len(rows) == 30


def test_a_threshold_that_a_float32_cannot_hold_still_labels_its_own_rating(load):
    tables = make_tables()
    ratings = [3.7, 3.69] * 15
    tables["interactions"] = with_column(tables["interactions"], "rating", pa.array(ratings))
    catalog = load(tables, positive_rating=3.7)
    assert pc.sum(catalog.interactions["label"]).as_py() == 15


def test_titles_may_be_missing_and_are_counted(load, caplog):
    tables = make_tables()
    tables["items"] = with_column(tables["items"], "title", pa.array(["A", None, "", "D", "E"]))
    catalog = load(tables)
    assert catalog.items["title"].to_pylist() == ["A", "", "", "D", "E"]
    assert "2 of 5 have no title" in caplog.text


@pytest.mark.parametrize(("unit", "ticks"), [("s", 1), ("ms", 1_000), ("us", 1_000_000)])
def test_times_are_stored_in_seconds_whatever_their_unit(load, unit, ticks):
    tables = make_tables()
    expected = tables["interactions"]["timestamp"].to_pylist()
    times = pa.array([time * ticks + ticks // 2 for time in expected])
    tables["interactions"] = with_column(tables["interactions"], "timestamp", times)
    rows = load(tables, timestamp_unit=unit).interactions
    assert rows["timestamp"].to_pylist() == expected


def test_bad_rows_are_refused_before_anything_is_made(load):
    tables = make_tables()
    tables["users"] = tables["users"].slice(1)
    with pytest.raises(DataError, match="5 of 30 rows name a user that the users table lacks"):
        load(tables)


def sparse_tables():
    """User n rated n + 1 of the items i0..i5; u0 and u1 tie after a slice by items."""
    tables = make_tables(users=7, items=7)
    inside = [
        int(row["item_id"][1:]) <= int(row["user_id"][1:]) and row["item_id"] != "i6"
        for row in tables["interactions"].to_pylist()
    ]
    tables["interactions"] = tables["interactions"].filter(pa.array(inside))
    return tables


def test_the_slice_keeps_the_most_active_users_then_their_most_rated_items(load):
    catalog = load(sparse_tables(), max_users=4, max_items=3)
    assert catalog.users["user_id"].to_pylist() == ["u3", "u4", "u5", "u6"]
    assert catalog.items["item_id"].to_pylist() == ["i0", "i1", "i2"]
    assert catalog.interactions.num_rows == 12


def test_ties_of_the_slice_go_to_the_smaller_id_whatever_the_row_order(load):
    tables = make_tables()
    expected = load(tables, max_users=4, max_items=2)
    tables["interactions"] = tables["interactions"].take(np.arange(30)[::-1])
    again = load(tables, max_users=4, max_items=2)
    assert expected.users["user_id"].to_pylist() == ["u0", "u1", "u2", "u3"]
    assert expected.items["item_id"].to_pylist() == ["i0", "i1"]
    assert again.interactions.equals(expected.interactions)


def test_entities_without_interactions_stay_unless_slicing_was_asked_for(load):
    tables = sparse_tables()
    assert load(tables).items.num_rows == 7
    assert load(tables, max_users=7).items.num_rows == 6


def test_the_job_makes_three_datasets_once_and_anew_when_a_raw_file_changes(
    tmp_path, write, caplog, monkeypatch
):
    tables = make_tables()
    config = RunConfig.model_validate(
        {
            "run": "test",
            "catalog": write(tables),
            "language_model": {"path": "none"},
            "encoder": {"path": "none"},
        }
    )
    store = Store(tmp_path / "run")
    build_catalog.run(config, store)
    facts = store.require("interactions").facts
    assert facts["users"] == 6
    assert sum(facts["splits"].values()) == 30
    assert facts["test_rows_of_users_without_past_share"] == 0.0
    assert facts["left_out"] == []
    assert [store.read(name).num_rows for name in tables] == [6, 5, 30]

    before = {name: store.require(name) for name in tables}
    with caplog.at_level("INFO", logger="jobs"), monkeypatch.context() as patch:
        patch.setattr(build_catalog, "load_catalog", lambda settings: pytest.fail("read again"))
        build_catalog.run(config, store)
    assert "up to date, 6 users, 5 items, 30 interactions" in caplog.text
    assert {name: store.require(name) for name in tables} == before

    titles = pa.array([f"TITLE {i}" for i in range(5)])  # as many bytes as before
    write(tables | {"items": with_column(tables["items"], "title", titles)})
    build_catalog.run(config, store)
    assert store.read("items")["title"][0].as_py() == "TITLE 0"
    for name in tables:
        assert store.require(name).fingerprint != before[name].fingerprint


def test_the_job_writes_down_what_it_left_out(tmp_path, write):
    cut = write(make_tables()).model_copy(update={"max_users": 3})
    sections = {"run": "test", "language_model": {"path": "n"}, "encoder": {"path": "n"}}
    store = Store(tmp_path / "run")
    build_catalog.run(RunConfig.model_validate({**sections, "catalog": cut}), store)
    [users, interactions] = store.require("interactions").facts["left_out"]
    assert (users["table"], users["rows"], users["of_rows"]) == ("users", 3, 6)
    assert interactions["rows"] == 30 - store.require("interactions").num_rows
    assert users["is_asked"]
    assert "catalog.max_users" in users["reason"]


def test_a_catalog_without_likes_is_refused_before_anything_is_written(tmp_path, write):
    config = RunConfig.model_validate(
        {
            "run": "test",
            "catalog": write(make_tables()).model_copy(update={"positive_rating": 9.0}),
            "language_model": {"path": "none"},
            "encoder": {"path": "none"},
        }
    )
    store = Store(tmp_path / "run")
    with pytest.raises(DataError, match=r"reaches catalog.positive_rating 9: ratings run from \d"):
        build_catalog.run(config, store)
    assert store.manifest("users") is None


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_split_of_one_label_is_warned_of_before_any_text_is_written(
    tmp_path, write, caplog, split
):
    tables = make_tables()

    def splits_with(ratings, name):
        tables["interactions"] = with_column(tables["interactions"], "rating", pa.array(ratings))
        given = {"catalog": write(tables), "language_model": {"path": "none"}}
        config = RunConfig.model_validate(given | {"run": name, "encoder": {"path": "none"}})
        store = Store(tmp_path / name)
        build_catalog.run(config, store)
        return store.read("interactions")["split"].to_pylist()

    ratings = [5.0 if n % 2 else 1.0 for n in range(30)]
    splits = splits_with(ratings, "both")
    assert "CTR check" not in caplog.text
    splits_with(
        [5.0 if there == split else old for there, old in zip(splits, ratings, strict=True)], "one"
    )
    complaint = f"all {splits.count(split)} {split} rows have the label 1; change catalog.positive_"
    assert complaint in caplog.text
    assert caplog.text.count("the CTR check cannot be made of this catalog") == 1


def test_a_job_that_was_cut_short_makes_only_what_is_missing(tmp_path, write):
    config = RunConfig.model_validate(
        {
            "run": "test",
            "catalog": write(make_tables()),
            "language_model": {"path": "none"},
            "encoder": {"path": "none"},
        }
    )
    store = Store(tmp_path / "run")
    build_catalog.run(config, store)
    users = store.path("users") / "part-00000.parquet"
    made = users.stat().st_mtime_ns
    (store.path("items") / "manifest.json").unlink()
    build_catalog.run(config, store)
    assert store.read("items").num_rows == 5
    assert users.stat().st_mtime_ns == made


@pytest.fixture(scope="module")
def movielens():
    split = {"protocol": "per_user_prefix", "history_limit": 30}
    return load_catalog(CatalogSettings(source="movielens", path=ML100K, split=split))


@pytest.mark.assets
def test_movielens_has_its_published_counts(movielens):
    assert movielens.users.num_rows == 943
    assert movielens.items.num_rows == 1682
    assert movielens.interactions.num_rows == 100_000
    assert pc.sum(movielens.interactions["label"]).as_py() == 55_375
    titles = [
        (row["title"], dict(row["attributes"]).get("year")) for row in movielens.items.to_pylist()
    ]
    assert len(titles) - len(set(titles)) == 18


@pytest.mark.assets
def test_movielens_titles_read_as_people_write_them(movielens):
    titles = dict(
        zip(
            movielens.items["item_id"].to_pylist(),
            movielens.items["title"].to_pylist(),
            strict=True,
        )
    )
    assert titles["515"] == "Das Boot"
    assert titles["306"] == "Mrs. Brown (Her Majesty, Mrs. Brown)"
    every = set(titles.values())
    assert {
        "Il Postino",
        "The Horseman on the Roof (Le Hussard sur le toit)",
        "The Star Maker (L'Uomo delle stelle)",
        "L'Enfer",
        "Paris, Texas",
        "Les Misérables",
        "Die xue shuang xiong (The Killer)",
        "An American in Paris",
        "20,000 Leagues Under the Sea",
    } <= every
    assert not [title for title in every if title.endswith((", The", ", A", ", An"))]


@pytest.mark.assets
def test_movielens_attributes_are_clean(movielens):
    items = attributes_of(movielens.items, "item_id")
    assert items["1"] == {
        "year": "1995",
        "genres": "Animation, Children's, Comedy",
        "genre": "Animation",
    }
    assert items["267"] == {}
    assert items["1412"]["year"] == "1995"  # the file says "V" and keeps the year in the title
    assert all(item.get("year", "0").isdigit() for item in items.values())
    users = attributes_of(movielens.users, "user_id")
    assert users["1"] == {"age": "24", "gender": "M", "occupation": "technician"}


@pytest.mark.assets
def test_movielens_shares_are_by_user_and_every_test_user_has_a_past(movielens):
    rows = movielens.interactions
    users = {
        name: set(rows.filter(pc.equal(rows["split"], name))["user_id"].to_pylist())
        for name in ("knowledge", "train", "valid", "test")
    }
    assert len(users["knowledge"]) == 943
    assert [len(users[name]) for name in ("train", "valid", "test")] == [754, 95, 94]
    assert not users["train"] & (users["valid"] | users["test"])
    assert not users["valid"] & users["test"]
