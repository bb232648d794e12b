"""A refresh over a changed catalog: what is the same stays, what is gone goes, the rest is new."""

import csv
import re

import numpy as np
import pytest
import yaml

from jobs import generate_knowledge, run_all, show_status
from pipeline.config_file import load_config
from pipeline.prompts import prompt_hash
from pipeline.store import Store

pytestmark = [
    pytest.mark.ray,
    pytest.mark.assets,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # third parties warn as they please inside workers
]

GONE, RENAMED, ADDED = "r007", "b005", "b900"


def rewrite(source, target, change):
    """Copy a CSV file, row by row; a row changed to None is left out."""
    with source.open(encoding="utf-8") as old, target.open("w", encoding="utf-8") as new:
        header, *rows = csv.reader(old)
        kept = [row for row in map(change, rows) if row is not None]
        csv.writer(new).writerows([header, *kept])


@pytest.fixture(scope="module")
def next_night(config_file, finished, bookshop, tmp_path_factory):
    """The config of a refresh: a reader has left, a book has another title, another is new."""
    # Other tests write a wave of that run again: what is made of it must follow.
    assert run_all.main(["--config", str(config_file)]) == 0
    folder = tmp_path_factory.mktemp("next")
    rewrite(bookshop / "readers.csv", folder / "readers.csv", lambda r: r if r[0] != GONE else None)
    rewrite(bookshop / "ratings.csv", folder / "ratings.csv", lambda r: r if r[0] != GONE else None)
    rewrite(
        bookshop / "books.csv",
        folder / "books.csv",
        lambda row: [row[0], "A new title", row[2]] if row[0] == RENAMED else row,
    )
    with (folder / "books.csv").open("a", encoding="utf-8") as file:
        csv.writer(file).writerow([ADDED, "The river of no return", "Poetry"])
    tree = yaml.safe_load(config_file.read_text()) | {
        "run": "next",
        "refresh": {"previous": finished.root.name},
    }
    for table, name in (("users", "readers"), ("items", "books"), ("interactions", "ratings")):
        tree["catalog"]["tables"][table]["path"] = str(folder / f"{name}.csv")
    path = folder / "next.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture(scope="module")
def refreshed(next_night):
    assert run_all.main(["--config", str(next_night)]) == 0
    config = load_config(next_night)
    return Store(config.artifacts / config.run)


def rows_by_entity(store):
    return {(row["kind"], row["entity_id"]): row for row in store.read("knowledge").to_pylist()}


def test_rows_whose_prompt_is_the_same_are_the_same_rows(
    refreshed, finished, next_night, prompts_of
):
    before, after = rows_by_entity(finished), rows_by_entity(refreshed)
    prompts = prompts_of(load_config(next_night), refreshed)
    assert set(after) == set(prompts)
    same = {
        entity
        for entity, prompt in prompts.items()
        if entity in before and before[entity]["prompt_hash"] == prompt_hash(prompt.text)
    }
    carried = {entity for entity, row in after.items() if row["wave"] == 0}
    assert carried == same
    assert all(after[entity] == before[entity] | {"wave": 0} for entity in carried)
    changed = set(after) - same
    assert ("item", RENAMED) in changed
    assert 10 < len(same) < len(after)
    assert len([entity for entity in changed if entity in before]) > 3
    assert {(after[entity]["wave"], after[entity]["error"]) for entity in changed} == {(1, "")}
    assert refreshed.require("waves/0/knowledge").num_rows == len(same)


def test_who_has_left_is_gone_and_who_is_new_is_there(refreshed):
    after = rows_by_entity(refreshed)
    assert ("user", GONE) not in after
    new = after["item", ADDED]
    assert new["text"]
    assert new["drafted_by_source"][0] == 0
    features = refreshed.read("features").to_pylist()
    assert ("item", ADDED) in {(row["kind"], row["entity_id"]) for row in features}


def test_vectors_of_texts_that_stand_are_those_of_the_earlier_run_to_the_bit(refreshed, finished):
    before, after = (
        {
            (row["kind"], row["entity_id"]): row["vector"]
            for row in store.read("features").to_pylist()
        }
        for store in (finished, refreshed)
    )
    texts_before, texts_after = rows_by_entity(finished), rows_by_entity(refreshed)
    same = {
        entity
        for entity, row in texts_after.items()
        if entity in texts_before and row["text"] == texts_before[entity]["text"]
    }
    assert all(after[entity] == before[entity] for entity in same)
    assert all(after[entity] != before.get(entity) for entity in set(after) - same)
    log = (refreshed.root / "run.log").read_text()
    assert f"{len(same)} carried over from" in log
    assert 0 < len(same) < len(after)


def test_the_report_of_a_refresh_counts_what_was_written_now(refreshed):
    headline = refreshed.require("report").facts
    written = [row for row in refreshed.read("knowledge").to_pylist() if row["wave"] == 1]
    kept = refreshed.require("waves/0/knowledge").num_rows
    assert headline["refresh"] == {"previous": "bookshop", "kept": kept, "written": len(written)}
    assert headline["tokens"] == sum(len(row["token_ids"]) for row in written)


def test_changed_entities_draft_from_what_was_said_of_them_before(refreshed, finished):
    before = rows_by_entity(finished)
    rows = [
        row
        for entity, row in rows_by_entity(refreshed).items()
        if row["wave"] == 1 and entity in before
    ]
    drafted = np.array([row["drafted_by_source"] for row in rows]).sum(0)
    accepted = np.array([row["accepted_by_source"] for row in rows]).sum(0)
    assert drafted[0] > 0
    assert accepted[0] > 0


def test_a_second_refresh_does_nothing(refreshed, next_night):
    parts = {p: p.stat().st_mtime_ns for p in refreshed.root.rglob("part-*.parquet")}
    assert run_all.main(["--config", str(next_night)]) == 0
    assert {p: p.stat().st_mtime_ns for p in refreshed.root.rglob("part-*.parquet")} == parts


@pytest.mark.parametrize(
    ("overrides", "code", "complaint"),
    [
        (["refresh.previous=next"], 2, "the run itself"),
        (["refresh.previous=nowhere"], 2, "next is a refresh of bookshop"),
        (["run=bookshop", "refresh.previous=next"], 2, "bookshop is a first run"),
        (["run=other", "refresh.previous=nowhere"], 3, r"there are: ([\w.-]+, )*next\b"),
    ],
)
def test_a_refresh_of_itself_of_another_run_or_of_nothing_is_refused(
    refreshed, next_night, overrides, code, complaint, capsys
):
    settings = [part for one in overrides for part in ("--set", one)]
    assert generate_knowledge.main(["--config", str(next_night), *settings]) == code
    assert re.search(complaint, capsys.readouterr().err)


def test_a_refresh_goes_on_as_one_where_it_is_not_said_again(refreshed, next_night, capsys):
    before = {p: p.stat().st_mtime_ns for p in refreshed.root.rglob("manifest.json")}
    forgotten = ["--config", str(next_night), "--set", "refresh.previous="]
    assert generate_knowledge.main(forgotten) == 0
    assert "is a refresh of bookshop, as its run.json says" in capsys.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in refreshed.root.rglob("manifest.json")} == before
    assert show_status.main(forgotten) == 0


def test_a_refresh_of_the_same_catalog_is_finished_without_a_comparison(
    finished, config_file, capsys
):
    settings = ["--set", "run=same", "--set", "refresh.previous=bookshop"]
    assert run_all.main(["--config", str(config_file), *settings]) == 0
    assert show_status.main(["--config", str(config_file), "--set", "run=same"]) == 0
    assert "left out: the last wave had no text to write" in capsys.readouterr().out
