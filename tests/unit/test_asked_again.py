"""Prompts made again for a few entities are those that the whole catalog gives."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from jobs.waves import open_prompts, open_prompts_of
from pipeline.asked_again import GONE, UNFILLED, Again, asked_again
from pipeline.config_file import load_config
from pipeline.errors import DataError
from pipeline.schemas import INTERACTIONS, ITEMS, USERS
from pipeline.store import Store

CONFIG = load_config(Path(__file__).resolve().parents[2] / "conf/demo.yaml")


@pytest.fixture
def store(tmp_path):
    """Six users who rated six items; only the last user gives more than five stars."""
    made = Store(tmp_path)
    numbers = range(6)
    users = [[f"u{n}" for n in numbers], [{"job": f"job {n}"} for n in numbers]]
    items = [[f"i{n}" for n in numbers], [f"Film {n}" for n in numbers], [{}] * 6]
    rows = [
        (f"u{n}", f"i{(n + k) % 6}", 9.0 if n == 5 else float(k + 1), 1, k, "knowledge")
        for n in numbers
        for k in range(3)
    ]
    tables = {
        "users": pa.table(users, schema=USERS),
        "items": pa.table(items, schema=ITEMS),
        "interactions": pa.table([*map(list, zip(*rows, strict=True))], schema=INTERACTIONS),
    }
    for name, table in tables.items():
        made.plan(name, {}).write(table)
    return made


def test_a_few_entities_are_asked_as_in_the_whole_catalog_from_little_of_it(store):
    whole = open_prompts(CONFIG, store)
    few = open_prompts_of(CONFIG, store, pa.array(["u3", "u1", "ghost"]), pa.array(["i0"]))
    for kind, ids in (("user", ["u3", "u1"]), ("item", ["i0"])):
        found = asked_again(few, kind, pa.array(ids))
        expected = [one.text for one in whole.take(kind, whole.rows(kind, pa.array(ids)))]
        assert [one.text for one in found] == expected
    assert "of 10 star" in (asked_again(few, "user", pa.array(["u3"]))[0].text or "")
    assert (few.count("user"), few.count("item")) == (2, 6)
    alone = open_prompts_of(CONFIG, store, pa.array([], pa.string()), pa.array(["i2"]))
    assert (alone.count("user"), alone.count("item")) == (0, 1)


def test_one_that_has_left_and_one_that_cannot_be_filled_in_are_told_apart(store, monkeypatch):
    prompts = open_prompts(CONFIG, store)
    take = prompts.take

    def fails(kind, rows):
        if 2 in rows:
            raise DataError("line 3: it cannot be filled in for user 'u2'")
        return take(kind, rows)

    monkeypatch.setattr(prompts, "take", fails)
    found = asked_again(prompts, "user", pa.array(["u1", "u2", "gone", "u4"]))
    assert found[1:3] == [
        Again(None, UNFILLED, "line 3: it cannot be filled in for user 'u2'"),
        Again(None, GONE),
    ]
    assert [found[0].text, found[3].text] == [one.text for one in take("user", np.array([1, 4]))]
