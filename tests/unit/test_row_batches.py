"""Rows of a table by number: what is asked for, and of texts that no single array can hold."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from features.measures import examples
from pipeline.errors import DataError
from pipeline.parts import append_part, read_batches
from pipeline.row_batches import Rows, rows_among
from pipeline.schemas import ITEMS, KNOWLEDGE

NUMBERS = pa.table({"n": pa.chunked_array([[0, 1], [], [2], [3, 4, 5]], pa.int64())})


@pytest.mark.parametrize("rows", [[], [3], [5, 0, 2, 0, 4, 1], [1, 1, 1]])
def test_rows_come_in_the_order_that_was_asked_for(rows):
    taken = Rows(NUMBERS).take(np.array(rows, np.int64))
    assert taken["n"].to_pylist() == rows
    assert taken.schema == NUMBERS.schema


@pytest.mark.parametrize("rows", [[], [0, 5], [1, 2, 3], list(range(6))])
def test_rows_are_picked_from_batches_that_are_seen_once(rows):
    batches = (NUMBERS.slice(start, 2) for start in (0, 2, 4))
    assert rows_among(batches, np.array(rows, np.int64))["n"].to_pylist() == rows


@pytest.fixture(scope="module")
def endless():
    """One text of 64 MiB in forty rows, which are 64 MiB in memory and 2.5 GiB in one array."""
    text = pa.array(["a" * 2**26])
    return pa.table({"text": pa.chunked_array([text] * 40), "n": np.arange(40)})


def test_texts_that_fill_no_single_array_are_taken(endless):
    with pytest.raises(pa.ArrowInvalid, match="overflow"):  # what the classes are there for
        endless.take(pa.array([3, 39]))
    assert Rows(endless).take(np.array([39, 3]))["n"].to_pylist() == [39, 3]


def test_a_few_examples_are_taken_from_texts_that_fill_no_single_array(endless):
    known = pa.table({"kind": ["user"] * 40, "error": [""] * 39 + ["no"]})
    told = {"entity_id": [f"u{n}" for n in range(40)], "finish_reason": ["stop"] * 40}
    whole = pa.table({**told, "text": endless["text"]})
    found = examples(known, ITEMS.empty_table(), lambda _: [whole.slice(n, 1) for n in range(40)])
    assert [one["entity_id"] for one in found] == ["u0", "u19", "u38"]
    assert {len(one["text"]) for one in found} == {2**26}


@pytest.fixture
def parts(tmp_path):
    """Two parts of five rows."""
    rows = [
        {field.name: [] if pa.types.is_list(field.type) else 0 for field in KNOWLEDGE}
        | {field.name: "" for field in KNOWLEDGE if field.type == pa.string()}
        | {"entity_id": f"e{n}", "relaxed_cost": 0.0}
        for n in range(10)
    ]
    tables = (pa.Table.from_pylist(some, KNOWLEDGE) for some in (rows[:5], rows[5:]))
    return [append_part(tmp_path, table, KNOWLEDGE, "knowledge") for table in tables]


def test_parts_are_read_a_few_rows_at_a_time_and_by_the_columns_named(parts, monkeypatch):
    monkeypatch.setattr("pipeline.parts._BATCH", 3)
    batches = list(read_batches(parts, KNOWLEDGE, ["text", "entity_id"]))
    assert [batch.num_rows for batch in batches] == [0, 3, 2, 3, 2]
    assert {tuple(batch.column_names) for batch in batches} == {("text", "entity_id")}
    ids = itertools.chain.from_iterable(batch["entity_id"].to_pylist() for batch in batches)
    assert list(ids) == [f"e{n}" for n in range(10)]
    assert list(read_batches([], KNOWLEDGE, ["text"])) == [pa.table({"text": pa.array([], "str")})]


def test_a_part_that_is_damaged_or_of_another_schema_is_named(parts):
    pq.write_table(pq.read_table(parts[1]).drop_columns(["text"]), parts[1])
    with pytest.raises(DataError, match=r"part-00001.parquet is damaged .*columns are"):
        list(read_batches(parts, KNOWLEDGE, ["entity_id", "text"]))
    parts[0].write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"part-00000.parquet is damaged"):
        list(read_batches(parts, KNOWLEDGE, ["text"]))
