"""Vectors of an earlier run: which still hold, where they lie, and how they join the new ones."""

import logging
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.build import feature_rows
from features.carry import (
    FRESH,
    StoredFeatures,
    blocks_of,
    interleave,
    unchanged_rows,
)
from features.frameworks import framework_named
from jobs import encode_features
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.mirror import Mirror
from pipeline.schemas import FEATURES, GROUPS, KNOWLEDGE, PROVENANCE, SCHEMAS
from pipeline.store import Store

WIDTH = 3
EVER = (90, 80, 7, "asked")  # what a text has seen, in the order of PROVENANCE


def texts(rows):
    names = ["kind", "entity_id", "text", "error"]
    return pa.table([list(column) for column in zip(*rows, strict=True)], names=names)


def entities(names, text="about {}"):
    """Rows of users with a text each."""
    return [("user", name, text.format(name), "") for name in names]


def features(rows, vectors):
    """Own vectors of rows of KNOWLEDGE; those of `entities` say nothing of what they have seen."""
    names = pa.table({"kind": [r[0] for r in rows], "entity_id": [r[1] for r in rows]})
    seen = {
        name: [row[4 + place] if len(row) > 4 else type(EVER[place])() for row in rows]
        for place, name in enumerate(PROVENANCE)
    }
    return feature_rows(names, np.repeat("own", len(rows)), seen, vectors)


def store_knowledge(store, rows, settings=None, seen=EVER):
    """KNOWLEDGE and GROUPS: everyone is in the group of their id's first letter."""
    table = []
    for kind, entity, text, error in rows:
        row = {f.name: [] if pa.types.is_list(f.type) else 0 for f in KNOWLEDGE}
        row |= {f.name: "" for f in KNOWLEDGE if pa.types.is_string(f.type)}
        row |= dict(zip(PROVENANCE, seen, strict=True))
        table.append(row | {"kind": kind, "entity_id": entity, "text": text, "error": error})
    settings = settings or {"rows": rows}
    store.plan("knowledge", settings).write(pa.Table.from_pylist(table, KNOWLEDGE))
    groups = [
        {"kind": kind, "entity_id": entity, "group_id": entity[0], "route": "attribute"}
        | {"distance": 0.0, "representative": False}
        for kind, entity, _, _ in rows
    ]
    store.plan("groups", settings).write(pa.Table.from_pylist(groups, GROUPS))


def random_vectors(rows, seed=0):
    """Any bits of finite floats, not only round numbers."""
    return np.random.default_rng(seed).normal(size=(rows, WIDTH)).astype(np.float32)


def bits_of(table):
    """Bytes of each row's vector, by entity."""
    vectors = table["vector"].combine_chunks().flatten().to_numpy().reshape(-1, WIDTH)
    keys = zip(table["kind"].to_pylist(), table["entity_id"].to_pylist(), strict=True)
    return {key: vector.tobytes() for key, vector in zip(keys, vectors, strict=True)}


def test_a_row_holds_if_the_same_entity_has_the_same_usable_text():
    earlier = texts(
        [
            ("user", "1", "likes war films", ""),
            ("item", "1", "a war film", ""),
            ("user", "2", "likes cake", ""),
            ("user", "3", "half a text", "prompt too long"),
            ("user", "4", "whole", ""),
        ]
    )
    now = texts(
        [
            ("user", "2", "likes cakes", ""),  # changed
            ("item", "1", "a war film", ""),
            ("user", "5", "likes war films", ""),  # another entity with a text of an earlier one
            ("user", "1", "likes war films", ""),
            ("item", "2", "a war film", ""),
            ("user", "3", " ", ""),  # no usable text then, none now: never carried over
            ("user", "4", "whole", "engine failed"),  # an error's text is not used
        ]
    )
    stored = earlier.take([4, 0, 1, 2, 3]).append_column(
        "source", pa.array(["own"] * 4 + ["group"])
    )
    rows = [FRESH, 2, FRESH, 1, FRESH, FRESH, FRESH]
    assert unchanged_rows(now, earlier, stored).tolist() == rows
    assert unchanged_rows(now, earlier.slice(0, 0), stored).tolist() == [FRESH] * 7
    assert (
        unchanged_rows(now, earlier, stored.slice(0, 2)).tolist() == [FRESH] * 3 + [1] + [FRESH] * 3
    )
    assert unchanged_rows(now.slice(0, 0), earlier, stored).tolist() == []


@given(
    st.lists(st.booleans(), max_size=60),
    st.integers(1, 7),
    st.integers(1, 20),
)
def test_blocks_cover_every_row_once_within_both_bounds(is_fresh, most_fresh, most_rows):
    is_fresh = np.array(is_fresh, bool)
    blocks = list(blocks_of(is_fresh, most_fresh, most_rows))
    assert [row for block in blocks for row in range(len(is_fresh))[block]] == list(
        range(len(is_fresh))
    )
    for block in blocks:
        assert 1 <= len(is_fresh[block]) <= most_rows
        assert is_fresh[block].sum() <= most_fresh
    for block in blocks[:-1]:  # and none ends early
        assert len(is_fresh[block]) == most_rows or is_fresh[block].sum() == most_fresh


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_old_and_new_rows_stand_where_they_were_asked_for(is_fresh, random):
    names = [f"u{number}" for number in range(len(is_fresh))]
    random.shuffle(names)
    whole = features(entities(names), random_vectors(len(names)))
    is_fresh = np.array(is_fresh)
    parts = [whole.filter(pa.array(mask)) for mask in (is_fresh, ~is_fresh)]
    rows = np.where(is_fresh, FRESH, 7)
    joined = interleave(rows, *(part if part.num_rows else None for part in parts))
    assert joined.equals(whole)


def test_stored_rows_are_found_across_parts_in_any_order(tmp_path):
    store, rows = Store(tmp_path), entities(f"u{n}" for n in range(20))
    whole = features(rows, random_vectors(20))
    writer = store.plan("features", {}).open_writer()
    for start, stop in ((0, 7), (7, 7), (7, 8), (8, 20)):  # an empty part among them
        writer.append(whole.slice(start, stop - start))
    writer.finish()
    stored = StoredFeatures(store)
    for wanted in ([0], [19, 0, 7, 6, 8, 7], list(range(20))[::-1]):
        found = stored.take(np.array(wanted))
        assert found["entity_id"].to_pylist() == [f"u{n}" for n in wanted]
        assert bits_of(found).items() <= bits_of(whole).items()


def test_a_lost_part_is_named(tmp_path, bucket):
    store, rows = Store(tmp_path, Mirror(bucket, "run")), entities("abcd")
    writer = store.plan("features", {}).open_writer()
    for start in (0, 2):
        writer.append(features(rows[start : start + 2], random_vectors(2)))
    writer.finish()
    (store.path("features") / "part-00001.parquet").unlink()
    with pytest.raises(DataError, match=rf"{bucket}/run/features has lost or gained a part"):
        StoredFeatures(store)


@pytest.fixture
def encoder(tmp_path):
    """A folder that has what a fingerprint needs."""
    folder = tmp_path / "encoder"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def config_of(tmp_path, encoder, previous=None, max_tokens=16):
    return RunConfig.model_validate(
        {
            "run": "tuesday",
            "artifacts": tmp_path / "artifacts",
            "catalog": {"source": "movielens", "path": "nowhere"},
            "language_model": {"path": "nowhere"},
            "encoder": {"path": str(encoder), "max_tokens": max_tokens, "device": "cpu"},
            "refresh": {"previous": previous},
        }
    )


class Encoding:
    """Stands for the actors: gives each text a vector, in blocks of 3, and remembers the texts."""

    def __init__(self, until=None):
        self.texts, self._until = [], until

    def __call__(self, config, knowledge):
        for start in range(0, knowledge.num_rows, 3):
            if len(self.texts) == self._until:
                raise KeyboardInterrupt
            block = knowledge.slice(start, 3)
            rows = list(zip(*(block[name].to_pylist() for name in block.column_names), strict=True))
            self.texts += block["text"].to_pylist()
            vectors = random_vectors(len(rows), seed=len(self.texts))
            yield features(rows, vectors).append_column("truncated", pa.array([True] * len(rows)))


MONDAY = entities(f"u{n}" for n in range(30))
# One has left, one is new, two have another text, and the order is another one.
TUESDAY = [
    ("user", "new", "about new", ""),
    *(
        (kind, name, "another text" if name in ("u4", "u20") else text, error)
        for kind, name, text, error in MONDAY[:0:-1]
    ),
]
CHANGED = ["about new", "another text", "another text"]


@pytest.fixture
def monday(tmp_path, encoder, monkeypatch):
    """An earlier run with features, in parts of 10 rows."""
    monkeypatch.setattr(encode_features, "_BLOCK_ROWS", 10)
    store = Store(tmp_path / "artifacts" / "monday")
    store_knowledge(store, MONDAY)
    monkeypatch.setattr(encode_features, "_encoded_blocks", Encoding())
    encode_features.run(config_of(tmp_path, encoder), store)
    return store


@pytest.fixture
def tuesday(tmp_path, monday):
    store = Store(tmp_path / "artifacts" / "tuesday")
    store_knowledge(store, TUESDAY)
    return store


def encode(tmp_path, encoder, store, monkeypatch, actors=None, **settings):
    """Run the job; the texts that the encoder was given."""
    actors = actors or Encoding()
    monkeypatch.setattr(encode_features, "_encoded_blocks", actors)
    encode_features.run(config_of(tmp_path, encoder, previous="monday", **settings), store)
    return actors.texts


def test_only_changed_texts_are_encoded_and_the_others_keep_their_bits(
    tmp_path, encoder, monday, tuesday, monkeypatch, caplog
):
    before = {path: path.read_bytes() for path in monday.root.rglob("*") if path.is_file()}
    with caplog.at_level(logging.INFO):
        assert sorted(encode(tmp_path, encoder, tuesday, monkeypatch)) == CHANGED
    assert "27 carried over from monday, 3 to encode" in caplog.text
    now, then = tuesday.read("features"), monday.read("features")
    assert now["entity_id"].to_pylist() == [row[1] for row in TUESDAY]
    same = {("user", row[1]) for row in TUESDAY if row in MONDAY}
    assert len(same) == 27
    old, new = bits_of(then), bits_of(now)
    assert all(new[key] == old[key] for key in same)
    assert all(new[key] != old.get(key) for key in set(new) - same)
    assert "3 of 3 texts encoded now are longer" in caplog.text
    after = {path: path.read_bytes() for path in monday.root.rglob("*") if path.is_file()}
    assert after == before


def test_where_no_text_has_changed_no_worker_is_started(
    tmp_path, encoder, monday, monkeypatch, caplog
):
    """The job's own stream is used here: it would start Ray for the first row."""
    monkeypatch.undo()

    def start(*_):
        raise AssertionError("Ray was started")

    monkeypatch.setattr(encode_features, "start_ray", start)
    store = Store(tmp_path / "artifacts" / "tuesday")
    store_knowledge(store, MONDAY[::-1])
    with caplog.at_level(logging.INFO):
        encode_features.run(config_of(tmp_path, encoder, previous="monday"), store)
    assert "30 carried over from monday, 0 to encode" in caplog.text
    assert bits_of(store.read("features")) == bits_of(monday.read("features"))
    store_knowledge(store, TUESDAY)
    with pytest.raises(AssertionError, match="Ray was started"):
        encode_features.run(config_of(tmp_path, encoder, previous="monday"), store)


def test_a_killed_refresh_goes_on_after_the_stored_blocks(
    tmp_path, encoder, monday, monkeypatch, caplog
):
    monkeypatch.setattr(encode_features, "_STORED_ROWS", 10)
    store = Store(tmp_path / "artifacts" / "tuesday")
    changed = [(*row[:2], "another text", "") if n % 2 else row for n, row in enumerate(MONDAY)]
    store_knowledge(store, changed)
    with pytest.raises(KeyboardInterrupt):
        encode(tmp_path, encoder, store, monkeypatch, Encoding(until=12))
    assert store.manifest("features") is None
    parts = {p: p.stat().st_mtime_ns for p in store.path("features").glob("part-*")}
    assert len(parts) == 2
    with caplog.at_level(logging.INFO):
        assert len(encode(tmp_path, encoder, store, monkeypatch)) == 5
    assert "30 texts, 20 are stored already" in caplog.text
    assert "5 carried over from monday, 5 to encode" in caplog.text
    assert store.require("features").facts["rows_written"] == 10  # in the seconds that it tells
    assert {p: p.stat().st_mtime_ns for p in parts} == parts
    now, then = bits_of(store.read("features")), bits_of(monday.read("features"))
    assert [now[key] == then[key] for key in then] == [True, False] * 15


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("weights", "its features were made with other settings (weights)"),
        ("max_tokens", "its features were made with other settings (max_tokens)"),
        ("reading", "its features were made with other settings (reading)"),
        ("none", "it has no finished features"),
        ("knowledge", "its features were made from other knowledge"),
        ("schema", "its datasets have another schema version"),
    ],
)
def test_features_that_do_not_fit_are_all_made_anew_and_the_log_says_why(
    tmp_path, encoder, monday, tuesday, monkeypatch, caplog, change, reason
):
    settings = {}
    if change == "weights":
        (encoder / "model.safetensors").write_bytes(b"other weights")
    elif change == "max_tokens":
        settings = {"max_tokens": 17}
    elif change == "reading":
        framework = replace(framework_named("kar"), reading="another")
        monkeypatch.setattr("features.frameworks.kar.FRAMEWORK", framework)
    elif change == "none":
        (monday.path("features") / "manifest.json").unlink()
    elif change == "knowledge":
        store_knowledge(monday, MONDAY, settings={"again": 1})
    else:
        monkeypatch.setitem(SCHEMAS, "features", (FEATURES, 9))
    with caplog.at_level(logging.INFO):
        assert len(encode(tmp_path, encoder, tuesday, monkeypatch, **settings)) == 30
    assert f"nothing is carried over from monday, since {reason}" in caplog.text


def test_a_text_that_stands_keeps_its_vector_and_has_what_its_prompt_shows_today(
    tmp_path, encoder, monday, monkeypatch
):
    """Another prompt may have given the same words."""
    store, today = Store(tmp_path / "artifacts" / "tuesday"), (190, 180, 8, "asked anew")
    store_knowledge(store, MONDAY, seen=today)
    assert encode(tmp_path, encoder, store, monkeypatch) == []
    assert bits_of(store.read("features")) == bits_of(monday.read("features"))
    for table, seen in ((store, today), (monday, EVER)):
        rows = table.read("features").select(PROVENANCE).to_pylist()
        assert {tuple(row.values()) for row in rows} == {seen}


def test_means_of_groups_are_made_anew_in_a_refresh(tmp_path, encoder, monday, monkeypatch):
    """u0 had no text on Monday and has none today, u1 has lost its own, u4 has another."""

    def changed(**texts):
        return [(*row[:2], texts.get(row[1], row[2]), "") for row in MONDAY]

    store_knowledge(monday, changed(u0=""))
    monkeypatch.setattr(encode_features, "_encoded_blocks", Encoding())
    encode_features.run(config_of(tmp_path, encoder), monday)
    store = Store(tmp_path / "artifacts" / "tuesday")
    store_knowledge(store, changed(u0="", u1="", u4="another text"))
    assert encode(tmp_path, encoder, store, monkeypatch) == ["another text"]
    for table, without in ((monday.read("features"), 1), (store.read("features"), 2)):
        assert table["source"].to_pylist() == ["own"] * (30 - without) + ["group"] * without
        vectors = np.stack(table["vector"].to_pylist())
        mean = np.float32(vectors[:-without].astype(np.float64).mean(axis=0))
        assert all(np.array_equal(vector, mean) for vector in vectors[-without:])
        assert table["source_events"][-1].as_py() == 7 * (30 - without)


def test_workers_that_give_too_much_end_the_job(tmp_path, encoder, tuesday, monkeypatch):
    def generous(config, knowledge):
        yield from Encoding()(config, pa.concat_tables([knowledge, knowledge.slice(0, 1)]))

    monkeypatch.setattr(encode_features, "_encoded_blocks", generous)
    with pytest.raises(DataError, match="1 rows were encoded that are not of knowledge"):
        encode_features.run(config_of(tmp_path, encoder, previous="monday"), tuesday)
    assert tuesday.manifest("features") is None
