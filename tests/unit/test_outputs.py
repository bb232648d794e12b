"""What a run has made opens in pandas, polars, DuckDB and pyarrow, by the lines of the docs."""

import re
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from pipeline.schemas import (
    FEATURES,
    INTERACTIONS,
    KNOWLEDGE,
    RECOMMENDATIONS,
    SCHEMAS,
    with_vector_width,
)
from pipeline.store import Store

PAGE = Path(__file__).resolve().parents[2] / "pipeline/docs/outputs.md"
BLOCKS = re.findall(r"^## (\w+)\n\n```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
WIDTH = 3
TIMES = ("asof", "latest_source")
EVENTS = [("v", "i"), ("u", "j"), ("v", "j"), ("ü", "i")]
ENTITIES = [("user", "u"), ("item", "i"), ("user", "ü"), ("item", "j"), ("user", "v")]
VECTORS = np.arange(len(ENTITIES) * WIDTH, dtype=np.float32).reshape(-1, WIDTH)
VECTOR_OF = {entity: VECTORS[row].tolist() for row, entity in enumerate(ENTITIES)}


def rows(schema, *known):
    """A table with what is known of each row, and nothing else."""
    empty = {"string": "", "float": 0.0}
    blank = {
        field.name: [] if pa.types.is_list(field.type) else empty.get(str(field.type), 0)
        for field in schema
    }
    return pa.Table.from_pylist([blank | row for row in known], schema)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A tiny run, `artifacts/demo`; its features lie in two parts."""
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "artifacts/demo")
    named = [{"kind": kind, "entity_id": entity} for kind, entity in ENTITIES]
    features = rows(
        with_vector_width(FEATURES, WIDTH),
        *(row | {"vector": vector} for row, vector in zip(named, VECTORS.tolist(), strict=True)),
    )
    writer = store.plan("features", {}).open_writer()
    writer.append(features.slice(0, 3))
    writer.append(features.slice(3))
    writer.finish()
    texts = [row | {"text": f"About {row['entity_id']}", "token_ids": [1, 2]} for row in named]
    store.plan("knowledge", {}).write(rows(KNOWLEDGE, *texts))
    events = [{"user_id": user, "item_id": item} for user, item in EVENTS]
    store.plan("interactions", {}).write(rows(INTERACTIONS, *events))
    lists = [{"user_id": user, "item_ids": ["i", "j"], "scores": [0.5, 0.25]} for user in "uv"]
    store.plan("recommendations", {}).write(rows(RECOMMENDATIONS, *lists))
    return store


@pytest.mark.parametrize("name", ["features", "knowledge", "interactions", "recommendations"])
def test_every_reader_sees_every_row_and_column(run, name):
    table = run.read(name)
    files = run.parts(name)
    pattern = f"artifacts/demo/{name}/part-*.parquet"
    shapes = {
        "pandas": pd.read_parquet(files).shape,
        "polars": pl.read_parquet(pattern).shape,
        "duckdb": duckdb.sql(f"select * from read_parquet('{pattern}')").shape,
        "pyarrow": ds.dataset(files).to_table().shape,
    }
    assert set(shapes.values()) == {table.shape}
    assert ds.dataset(files).to_table().equals(table)


def test_lists_stay_lists(run):
    pattern = "artifacts/demo/recommendations/part-*.parquet"
    assert pl.read_parquet(pattern)["item_ids"].to_list() == [["i", "j"]] * 2
    best = duckdb.sql(f"select user_id, item_ids[1] from read_parquet('{pattern}')").fetchall()
    assert best == [("u", "i"), ("v", "i")]
    scores = pd.read_parquet(run.parts("recommendations"))["scores"]
    assert np.stack(scores).tolist() == [[0.5, 0.25]] * 2


@pytest.mark.parametrize(("library", "code"), BLOCKS)
def test_the_lines_of_the_docs_give_a_matrix_and_the_right_join(run, library, code):
    names = {}
    exec(compile(code, library, "exec"), names)
    expected = VECTORS if library != "pyarrow" else VECTORS[[0, 2, 4]]
    assert names["vectors"].dtype == np.float32
    assert names["vectors"].tolist() == expected.tolist()
    if library == "pyarrow":
        return
    joined = names["joined"]
    found = {
        "pandas": lambda: joined[["user_id", "item_id", "vector"]].values.tolist(),
        "polars": lambda: joined.select("user_id", "item_id", "vector").rows(),
        "DuckDB": lambda: joined.select("user_id, item_id, vector").fetchall(),
    }[library]()
    told = sorted((user, item, list(vector)) for user, item, vector in found)
    assert told == sorted((*event, VECTOR_OF["user", event[0]]) for event in EVENTS)


@pytest.mark.parametrize("name", ["features", "knowledge", "recommendations"])
def test_the_docs_have_every_column(name):
    table = (
        PAGE.read_text().partition(f"**{name}**\n")[2].partition("\n**")[0].partition("\n## ")[0]
    )
    told = re.findall(r"^\| `(\w+)` \| (\S+) \| (.+) \|$", table, re.M)
    types = [(column, kind) for column, kind, _ in told]
    assert types == [(field.name, type_of(field.type)) for field in SCHEMAS[name][0]]
    assert all(meaning.startswith("seconds; ") is (column in TIMES) for column, _, meaning in told)


def type_of(kind):
    """A type as the page names it."""
    if pa.types.is_list(kind):
        return f"list<{type_of(kind.value_type)}>"
    return {"float": "float32"}.get(str(kind), str(kind))


def test_the_docs_show_every_library():
    assert [library for library, _ in BLOCKS] == ["pandas", "polars", "DuckDB", "pyarrow"]
