"""Waves become one table, whatever the order in which their rows were finished."""

import pyarrow as pa
import pytest

from jobs.merge_waves import merged, sum_of, totals_in, totals_of
from pipeline.errors import DataError
from pipeline.schemas import GROUPS, KNOWLEDGE
from pipeline.store import Store

# The catalog's order; group by group it is u3 u0 u1 u2 i1 i0.
ENTITIES = [
    ("user", "0", "user/b"),
    ("user", "1", "user/b"),
    ("user", "2", "user/c"),
    ("user", "3", "user/a"),
    ("item", "0", "item/b"),
    ("item", "1", "item/a"),
]
WHOLE = ["u3", "u0", "u1", "u2", "i1", "i0"]


def filled(schema, rows):
    """Rows of a schema, empty where nothing is given."""
    empty = {"string": "", "bool": False}
    blank = {
        field.name: [] if pa.types.is_list(field.type) else empty.get(str(field.type), 0)
        for field in schema
    }
    return pa.Table.from_pylist([blank | row for row in rows], schema=schema)


def groups():
    names = ("kind", "entity_id", "group_id")
    return filled(GROUPS, [dict(zip(names, one, strict=True)) for one in ENTITIES])


def rows_of(names, **more):
    """KNOWLEDGE of entities such as u1; its group is none of today's, as in a refresh."""
    kinds = {"u": "user", "i": "item"}
    return filled(
        KNOWLEDGE,
        [
            {"kind": kinds[name[0]], "entity_id": name[1:], "group_id": "earlier", "text": name}
            | more
            for name in names
        ],
    )


@pytest.fixture
def store_of(tmp_path):
    """A run whose waves hold parts of the entities given."""

    def make(*waves):
        store = Store(tmp_path)
        for number, parts in enumerate(waves):
            writer = store.plan(f"waves/{number}/knowledge", {}).open_writer()
            for part in parts:
                writer.append(rows_of(part))
            writer.finish()
        return store, [f"waves/{number}/knowledge" for number in range(len(waves))]

    return make


@pytest.mark.parametrize("stretch", [1, 2, 4, 6, 99])
def test_rows_come_group_by_group_and_inside_in_the_order_of_the_catalog(store_of, stretch):
    store, waves = store_of([["i0", "u1"], ["u3"]], [[]], [["u0", "i1", "u2"]])
    tables = list(merged(store, waves, groups(), stretch))
    assert [row["text"] for table in tables for row in table.to_pylist()] == WHOLE
    assert max(len(table) for table in tables) <= stretch
    assert all(table.schema == KNOWLEDGE for table in tables)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(WHOLE[1:], id="lost"),
        pytest.param([*WHOLE, "u1"], id="twice"),
        pytest.param([*WHOLE[1:], "u1"], id="twice and lost"),
        pytest.param([*WHOLE, "u9"], id="foreign"),
    ],
)
def test_a_row_that_is_lost_doubled_or_foreign_is_refused(store_of, rows):
    store, waves = store_of([rows])
    with pytest.raises(DataError, match="for 6 entities of `groups`"):
        list(merged(store, waves, groups()))


def test_a_part_is_read_for_its_own_stretches_only(store_of, monkeypatch):
    store, waves = store_of([["u3", "u0"], ["u1", "u2"], ["i1", "i0"]])
    read = []

    def count(parts, schema, columns=None):
        if columns is None:
            read.extend(parts)
        return counted(parts, schema, columns)

    from jobs import merge_waves

    counted = merge_waves.read_parts
    monkeypatch.setattr(merge_waves, "read_parts", count)
    assert sum(len(table) for table in merged(store, waves, groups(), 2)) == len(WHOLE)
    assert len(read) == 3


def test_totals_of_parts_are_those_of_their_rows(tmp_path):
    store = Store(tmp_path)
    writer = store.plan("knowledge", {}).open_writer()
    assert totals_of(writer.parts())["rows"] == 0
    tables = [
        rows_of(["u1", "u2"], token_ids=[1, 2, 3], forward_passes=2, relaxed_tokens=1),
        rows_of(["u3"], error="broken"),
        rows_of(["u0"], error="also broken"),
    ]
    for table in tables:
        writer.append(table)
    wanted = {
        "rows": 4,
        "errors": 2,
        "first_error": "broken",
        "tokens": 6,
        "forward_passes": 4,
        "relaxed_tokens": 2,
    }
    assert totals_of(writer.parts()) == wanted
    assert sum_of([totals_in(table) for table in tables]) == wanted
    assert totals_in(pa.concat_tables(tables)) == wanted
