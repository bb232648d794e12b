"""What is stored is what its schema says, or the part is named."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.schemas import FEATURES
from pipeline.store import Store


def features(vectors, kind, **columns):
    row = {f.name: 0 if f.type == pa.int64() else "x" for f in FEATURES} | {"vector": []}
    table = pa.Table.from_pylist([row] * len(vectors), schema=FEATURES)
    for name, values in ({"vector": pa.array(vectors, kind)} | columns).items():
        table = table.set_column(FEATURES.get_field_index(name), name, values)
    return table


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run")


FLOATS = pa.list_(pa.float32(), 1)
GOOD = [[0.0], [1.0]]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (features([[0.0], None], FLOATS), "vector has 1 null values"),
        (features([[0.0], [None]], FLOATS), "vector has 1 null values in its lists"),
        (features([[0.0], [float("nan")]], FLOATS), "vector holds numbers that are not finite"),
        (features([[0.0], [1.0, 2.0]], pa.list_(pa.float32())), "vector is list<"),
        (features(GOOD, pa.list_(pa.float64(), 1)), "vector is fixed_size_list<"),
        (features([0.0, 1.0], pa.float32()), "vector is float, not float of one width"),
        (features(GOOD, FLOATS, asof=pa.array(["1", "2"])), "asof is string, not int64"),
        (features(GOOD, FLOATS, asof=pa.array([1, 2], pa.int32())), "asof is int32, not int64"),
        (features(GOOD, FLOATS, entity_id=pa.array(["1", None])), "entity_id has 1 null values"),
        (features(GOOD, FLOATS).drop_columns(["asof"]), "FieldRef.Name(asof)"),
    ],
)
def test_a_part_that_is_not_what_its_schema_says_is_named(store, table, problem):
    store.plan("features", {}).write(features(GOOD, FLOATS))
    pq.write_table(table, store.path("features") / "part-00000.parquet")
    with pytest.raises(DataError, match=r"part-00000\.parquet is damaged") as caught:
        store.read("features")
    assert problem in str(caught.value)
    assert re.search(r"move \S+features away and run again$", str(caught.value))
    assert store.read("features", ["kind"]).num_rows == 2  # columns nobody asks for are not read


def test_numbers_that_are_not_finite_are_not_stored(store):
    with pytest.raises(DataError, match="features: column vector holds numbers that are not fin"):
        store.plan("features", {}).write(features([[0.0], [float("inf")]], FLOATS))
    assert store.manifest("features") is None
