"""The job `measure_quality`: what it depends on, and which plain run it takes."""

import json

import numpy as np
import pyarrow as pa
import pytest

from features.quality.summary import COLUMNS
from jobs import measure_quality
from jobs.plain_run import require_plain_run
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.runs import open_run
from pipeline.schemas import FEATURES, ITEMS, KINDS, KNOWLEDGE, USERS, with_vector_width
from pipeline.templates import Domain, Templates

NAMES = [("user", "u1"), ("user", "u2"), ("item", "i1"), ("item", "i2")]
WRITING = {"model": "m", "tokenizer": "t", "generation": {"max_new_tokens": 8, "rule": "relaxed"}}


def blank(schema):
    values = {f.name: [] if pa.types.is_list(f.type) else 0 for f in schema}
    return values | {f.name: "" for f in schema if pa.types.is_string(f.type)}


def write_run(artifacts, name, texts, rule="strict", names=NAMES, framework="kar", **writing):
    """A run with a text, its vector and nothing else of each entity."""
    store = open_run(artifacts, name)
    rows = [
        blank(KNOWLEDGE)
        | {"kind": kind, "entity_id": entity, "rule": rule, "text": text}
        | {"token_ids": [len(word) for word in text.split()]}
        for (kind, entity), text in zip(names, texts, strict=True)
    ]
    whole = pa.Table.from_pylist(rows, schema=KNOWLEDGE)
    store.plan("waves/0/knowledge", WRITING | writing).write(whole.slice(0, 0))
    facts = {"framework": framework}
    store.plan("knowledge", {"texts": texts}, ["waves/0/knowledge"]).write(whole, facts)
    schema = with_vector_width(FEATURES, 2)
    rows = [
        blank(schema)
        | {"kind": row["kind"], "entity_id": row["entity_id"], "source": "own"}
        | {"vector": [float(len(row["text"])), 1.0]}
        for row in rows
    ]
    vectors = pa.Table.from_pylist(rows[::-1], schema=schema)  # they have an order of their own
    store.plan("features", {"weights": "w"}, ["knowledge"]).write(vectors, {"dim": 2})
    films = [{"item_id": "i1", "title": "t", "attributes": [("year", "1995")]}]
    store.plan("items", {}).write(pa.Table.from_pylist(films, schema=ITEMS))
    people = [{"user_id": "u1", "attributes": [("job", "nurse")]}]
    store.plan("users", {}).write(pa.Table.from_pylist(people, schema=USERS))
    return store


PLAIN = ["a user text", "another user text", "a film of 1995", "a film"]
OURS = ["a user text", "another user story here", "a film of 1996", "a film"]


@pytest.fixture
def store(tmp_path):
    return write_run(tmp_path, "ours", OURS, "relaxed")


def config(store, **changes):
    tree = {
        "run": "ours",
        "artifacts": str(store.root.parent),
        "catalog": {"source": "movielens", "path": "nowhere"},
        "language_model": {"path": "nowhere"},
        "encoder": {"path": "nowhere"},
    }
    return RunConfig.model_validate(tree | changes)


def test_without_a_plain_run_the_texts_stand_alone(store, caplog):
    with caplog.at_level("INFO"):
        measure_quality.run(config(store), store)
        measure_quality.run(config(store), store)
    manifest = store.require("quality")
    assert json.loads((store.path("quality") / "quality.json").read_text()) == manifest.facts
    assert manifest.inputs.keys() == {"knowledge", "features", "users", "items"}
    kinds = manifest.facts["kinds"]
    assert kinds["item"]["texts"]["catalog"]["year"]["right"] == 0.0
    assert kinds["user"]["texts"]["catalog"]["job"]["naming"] == 0
    assert kinds["user"]["plain"] is kinds["user"]["similarity"] is None
    assert "quality: up to date, 4 rows" in caplog.text


def test_what_own_wording_does_not_show_is_not_looked_for(store, tmp_path):
    own = Templates("{{ history }}", "{# attributes #}{{ title }}", {}, Domain("reader"))
    assert not any(own.uses(kind, "attributes") for kind in KINDS)
    assert own.uses("user", "history")
    (tmp_path / "own").mkdir()
    for name, text in (
        ("user.jinja", "{{ history | length }} films"),
        ("item.jinja", "About {{ title }}"),
        ("domains.yaml", "general: {person: reader}"),
    ):
        (tmp_path / "own" / name).write_text(text)
    shown = measure_quality.settings_of(config(store), None)["shows_attributes"]
    assert shown == {"user": True, "item": True}
    measure_quality.run(config(store, prompts={"templates": str(tmp_path / "own")}), store)
    facts = store.require("quality").facts["kinds"]["item"]["texts"]["catalog"]
    assert facts == {"year": {"skipped": "the prompt does not show it"}}


def test_with_one_they_are_compared_row_by_row_in_whatever_order_it_has_them(store, tmp_path):
    mixed = [3, 1, 0, 2]
    names, texts = [NAMES[n] for n in mixed], [PLAIN[n] for n in mixed]
    write_run(tmp_path, "plain", texts, names=names)
    measure_quality.run(config(store, plain_run="plain"), store)
    kinds = store.require("quality").facts["kinds"]
    assert kinds["item"]["plain"]["catalog"]["year"]["right"] == 1.0
    near = kinds["user"]["similarity"]
    assert (near["rows"], near["vectors"], near["identical"]) == (2, 2, 0.5)
    # [7, 4, 5, 4] of [7, 4, 4]: one put in.
    assert near["edit_similarity"] == pytest.approx((1 + 0.75) / 2)
    assert kinds["item"]["similarity"]["cosine"] == pytest.approx(1.0)


def test_a_changed_plain_run_makes_the_measures_anew(store, tmp_path):
    settings = config(store, plain_run="plain")
    write_run(tmp_path, "plain", PLAIN)
    measure_quality.run(settings, store)
    first = store.require("quality")
    write_run(tmp_path, "plain", OURS)
    measure_quality.run(settings, store)
    assert store.require("quality").fingerprint != first.fingerprint
    assert store.require("quality").facts["kinds"]["user"]["similarity"]["identical"] == 1.0


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"framework": "once"}, "is of the framework once, this one of kar"),
        ({"names": [*NAMES[:3], ("item", "i9")]}, r"1 of these are not there, such as \['i2'\]"),
        ({"rule": "relaxed"}, "has texts under the rule relaxed"),
        ({"model": "other"}, "was written with other settings than this one: model"),
        (
            {"generation": {"max_new_tokens": 9, "rule": "strict"}},
            r"other settings than this one: generation\.max_new_tokens;",
        ),
    ],
)
def test_a_run_that_cannot_be_compared_is_refused(store, tmp_path, changes, complaint):
    write_run(tmp_path, "plain", PLAIN, **changes)
    with pytest.raises(DataError, match=complaint):
        measure_quality.run(config(store, plain_run="plain"), store)
    assert store.manifest("quality") is None


def test_vectors_of_another_encoder_are_refused(store, tmp_path):
    plain = write_run(tmp_path, "plain", PLAIN)
    vectors = plain.read("features")
    plain.plan("features", {"weights": "others"}, ["knowledge"]).write(vectors)
    with pytest.raises(DataError, match=r"made with other settings \(weights\)"):
        measure_quality.run(config(store, plain_run="plain"), store)


def test_vectors_of_other_knowledge_are_refused(store):
    texts = store.read("knowledge")
    store.plan("knowledge", {"new": 1}).write(texts)
    with pytest.raises(DataError, match="made from other knowledge"):
        measure_quality.run(config(store), store)


def test_a_plain_run_that_is_not_finished_is_found_before_anything_is_made(store, tmp_path):
    require_plain_run(config(store))
    with pytest.raises(DataError, match="gone has no finished knowledge and no finished features"):
        require_plain_run(config(store, plain_run="gone"))


def test_only_what_is_measured_is_read(store):
    tables = list(measure_quality._tables(store))
    assert [table.column_names for table in tables] == [COLUMNS]
    assert np.sum([table.num_rows for table in tables]) == 4
