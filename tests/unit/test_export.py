"""What is exported is what the check reads, in the formats of FuxiCTR and Feast."""

import json
import logging
import re
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from features import export
from features.ctr.data import CTR_SPLITS, make_ctr_data
from features.export import ctr_columns
from jobs import export_features
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.schemas import (
    FEATURES,
    INTERACTIONS,
    ITEMS,
    KNOWLEDGE,
    PROVENANCE,
    USERS,
    with_vector_width,
)
from pipeline.store import Store

USER_IDS, ITEM_IDS, WIDTH, FIRST = ["7", "07", "ü", "u4"], [f"i{n}" for n in range(6)], 3, 1_000
LATEST = {"7": 1_050, "07": 1_060, "ü": 1_099, "u4": 0}
FUXICTR_FILES = {
    "feature_map.json",
    "feature_vocab.json",
    "pretrained_item_knowledge.npz",
    "pretrained_user_knowledge.npz",
    "test.npz",
    "train.npz",
    "valid.npz",
}


def config(root, history=3):
    return RunConfig.model_validate(
        {
            "run": "shop",
            "artifacts": root,
            "catalog": {"source": "movielens", "path": "nowhere"},
            "language_model": {"path": "nowhere"},
            "encoder": {"path": "nowhere"},
            "ctr": {"history_length": history},
        }
    )


def catalog(attribute="job.title"):
    """Interactions at 1000, 1001, ...; the first 100 are the past."""
    rng = np.random.default_rng(0)
    size = 400
    label = rng.integers(0, 2, size).astype(np.int8)
    interactions = pa.table(
        {
            "user_id": [USER_IDS[n] for n in rng.integers(0, 4, size)],
            "item_id": [ITEM_IDS[n] for n in rng.integers(0, 6, size)],
            "rating": pa.array(label * 4, pa.float32()),
            "label": label,
            "timestamp": np.arange(FIRST, FIRST + size),
            "split": np.repeat(["knowledge", "train", "valid", "test"], 100),
        },
        INTERACTIONS,
    )
    jobs = [{attribute: job} for job in ("nurse", "nurse", "clerk", "clerk")]
    users = pa.table([USER_IDS, [list(job.items()) for job in jobs]], schema=USERS)
    genres = [[("genre", "ab"[n % 2])] for n in range(6)]
    items = pa.table([ITEM_IDS, ITEM_IDS, genres], schema=ITEMS)
    return interactions, users, items


def texts(latest, asof=1_099):
    """KNOWLEDGE and FEATURES of all entities; u4 has the mean of its group, i5 has nothing."""
    keys = [("user", user) for user in USER_IDS] + [("item", item) for item in ITEM_IDS]
    empty = {f.name: [] if pa.types.is_list(f.type) else 0 for f in KNOWLEDGE}
    empty |= {f.name: "" for f in KNOWLEDGE if pa.types.is_string(f.type)}
    events = {entity: 3 if latest.get(entity) else 0 for _, entity in keys}
    seen = {entity: (asof, latest.get(entity, 0), events[entity], "asked") for _, entity in keys}
    rows = [
        empty
        | {"kind": kind, "entity_id": entity}
        | dict(zip(PROVENANCE, seen[entity], strict=True))
        for kind, entity in keys
    ]
    without = {"u4": ("group", (1_099, 1_060, 6, "")), "i5": ("none", (0, 0, 0, ""))}
    told = [without.get(entity, ("own", seen[entity])) for _, entity in keys]
    vectors = np.random.default_rng(1).normal(size=(len(keys), WIDTH)).astype(np.float32)
    vectors[-1] = 0
    features = pa.table(
        [
            *zip(*keys, strict=True),
            [source for source, _ in told],
            *zip(*(known for _, known in told), strict=True),
            list(vectors),
        ],
        schema=with_vector_width(FEATURES, WIDTH),
    )
    return pa.Table.from_pylist(rows, KNOWLEDGE), features


@pytest.fixture
def make_store(tmp_path):
    def make(asof=1_099, **varied):
        store = Store(tmp_path / "shop")
        for name, table in zip(("interactions", "users", "items"), catalog(**varied), strict=True):
            store.plan(name, {}).write(table)
        knowledge, features = texts(LATEST, asof)
        store.plan("knowledge", {}).write(knowledge)
        store.plan("features", {}, inputs=["knowledge"]).write(features)
        return store

    return make


@pytest.fixture
def exported(make_store):
    store = make_store()
    export_features.run(config(store.root), store)
    return store.path("export")


@pytest.fixture
def data():
    return make_ctr_data(*catalog(), history_length=3)


def test_the_arrays_are_those_of_the_check(exported, data):
    assert {file.name for file in (exported / "fuxictr").iterdir()} == FUXICTR_FILES
    for split in CTR_SPLITS:
        rows = data.splits[split]
        arrays = np.load(exported / "fuxictr" / f"{split}.npz", allow_pickle=False)
        users, items = data.users[rows], data.items[rows]
        wanted = {
            "user_id": data.user_fields.codes[users, 0],
            "user_job_title": data.user_fields.codes[users, 1],
            "item_id": data.item_fields.codes[items, 0],
            "item_genre": data.item_fields.codes[items, 1],
            "user_knowledge": users + 1,
            "item_knowledge": items + 1,
            "history_items": data.history_items[rows],
            "history_signals": data.history_signals[rows],
            "label": data.labels[rows],
        }
        assert set(arrays.files) == set(wanted)
        for name, values in wanted.items():
            assert arrays[name].dtype == values.dtype, name
            np.testing.assert_array_equal(arrays[name], values, name)


def test_the_feature_map_describes_the_columns_in_the_order_they_are_stacked(exported, data):
    """FuxiCTR stacks all features and then the labels, and cuts the result by this map."""
    described = json.loads((exported / "fuxictr/feature_map.json").read_text())
    specs = {name: spec for entry in described["features"] for name, spec in entry.items()}
    assert described["dataset_id"] == "shop"
    assert [*specs, *described["labels"]] == [name for name, _ in ctr_columns(data)]
    arrays = np.load(exported / "fuxictr/train.npz")
    stacked = np.column_stack([arrays[name] for name in [*specs, *described["labels"]]])
    assert stacked.shape == (100, described["input_length"] + 1)
    for name, spec in specs.items():
        assert arrays[name].max() < spec["vocab_size"], name
        assert (spec["type"] == "sequence") == (arrays[name].ndim == 2), name
    assert specs["history_items"]["share_embedding"] == "item_id"
    assert specs["history_items"]["vocab_size"] == specs["item_id"]["vocab_size"]


def test_a_code_of_knowledge_leads_to_the_id_and_to_its_vector(exported):
    _, features = texts(LATEST)
    vectors = {
        (row["kind"], row["entity_id"]): row["vector"]
        for row in features.to_pylist()
        if row["source"] != "none"
    }
    vocabularies = json.loads((exported / "fuxictr/feature_vocab.json").read_text())
    for kind, ids in (("user", USER_IDS), ("item", ITEM_IDS)):
        vocabulary = vocabularies[f"{kind}_knowledge"]
        assert list(vocabulary) == ["__PAD__", *ids, "__OOV__"]
        assert list(vocabulary.values()) == list(range(len(ids) + 2))
        stored = np.load(exported / f"fuxictr/pretrained_{kind}_knowledge.npz", allow_pickle=False)
        found = {
            (kind, str(key)): list(value)
            for key, value in zip(stored["key"], stored["value"], strict=True)
        }
        assert found == {key: value for key, value in vectors.items() if key[0] == kind}


def test_pandas_opens_the_features_with_ids_times_and_vectors(exported):
    _, features = texts(LATEST)
    users = pd.read_parquet(exported / "feast/user_knowledge.parquet")
    assert list(users) == ["user_id", "event_timestamp", "created", "source", *PROVENANCE, "vector"]
    assert users["user_id"].tolist() == USER_IDS
    for name in ("event_timestamp", "created"):
        assert str(users[name].dt.tz) == "UTC"
    seconds = users["event_timestamp"].map(pd.Timestamp.timestamp).tolist()
    assert seconds == [1_050, 1_060, 1_099, 1_060]
    assert users["source"].tolist() == ["own", "own", "own", "group"]
    for name in PROVENANCE:
        assert users[name].tolist() == features[name].to_pylist()[:4]
    np.testing.assert_array_equal(np.stack(users["vector"]), features["vector"].to_pylist()[:4])
    items = pd.read_parquet(exported / "feast/item_knowledge.parquet")
    assert items["item_id"].tolist() == ITEM_IDS
    assert set(items["event_timestamp"].map(pd.Timestamp.timestamp)) == {FIRST}
    assert items["source"].tolist() == ["own"] * 5 + ["none"]
    assert items["asof"].tolist() == [1_099] * 5 + [0]


def test_feast_reads_the_types_from_the_schema(exported):
    """It knows a vector by the name of its type, lists of fixed width not always."""
    for kind in ("user", "item"):
        schema = pq.ParquetFile(exported / f"feast/{kind}_knowledge.parquet").schema_arrow
        assert str(schema.field("vector").type) in ("list<element: float>", "list<item: float>")
        assert str(schema.field(f"{kind}_id").type) == "string"


def test_a_join_in_time_finds_the_text_of_every_ctr_row_and_none_before_it_was_known(
    exported, data
):
    """As Feast joins: the latest features that are no later than the row."""
    rows = pd.read_parquet(exported / "feast/ctr_rows.parquet")
    assert rows["split"].value_counts().to_dict() == {"train": 100, "valid": 100, "test": 100}
    assert rows["label"].tolist() == data.labels.tolist()
    assert rows["event_timestamp"].map(pd.Timestamp.timestamp).tolist() == data.timestamps.tolist()
    users = pd.read_parquet(exported / "feast/user_knowledge.parquet")

    def joined(asked):
        tables = (table.sort_values("event_timestamp") for table in (asked, users))
        return pd.merge_asof(*tables, on="event_timestamp", by="user_id")

    found = joined(rows[["user_id", "event_timestamp"]])
    wanted = users.set_index("user_id")["source"].loc[found["user_id"]]
    assert found["source"].tolist() == wanted.tolist()
    before = users["event_timestamp"] - pd.Timedelta(seconds=1)
    too_early = joined(users[["user_id"]].assign(event_timestamp=before))
    assert too_early["source"].isna().all()


def test_an_export_is_made_once_and_anew_for_other_settings(exported, make_store, caplog):
    store = Store(exported.parent)
    with caplog.at_level(logging.INFO):
        export_features.run(config(store.root), store)
    assert "export: up to date, 300 CTR rows" in caplog.text
    assert store.require("export").facts == {"train": 100, "valid": 100, "test": 100}
    before = store.require("export").version
    export_features.run(config(store.root, history=5), store)
    assert store.require("export").version != before
    assert np.load(exported / "fuxictr/test.npz")["history_items"].shape == (100, 5)


def test_knowledge_of_the_future_is_not_exported(make_store):
    store = make_store(asof=1_100)
    with pytest.raises(
        DataError, match="are as of 1100 = 1970-01-01 00:18:20 UTC or later, when CTR rows beg"
    ):
        export_features.run(config(store.root), store)
    assert store.manifest("export") is None


def test_an_id_that_would_make_all_others_as_long_is_refused(make_store, monkeypatch):
    monkeypatch.setattr(export, "_MOST_ID_CHARS", 1)
    store = make_store()
    with pytest.raises(DataError, match=r"the user id that begins with '07' has more than 1 char"):
        export_features.run(config(store.root), store)
    assert store.manifest("export") is None


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("7\0", "holds a NUL character; remove it"),
        ("__PAD__", "is FuxiCTR's own word; give another"),
        ("__OOV__", "is FuxiCTR's own word; give another"),
    ],
)
def test_an_id_that_would_be_taken_for_another_is_refused(make_store, monkeypatch, bad, why):
    monkeypatch.setattr(sys.modules[__name__], "USER_IDS", [bad, *USER_IDS[1:]])
    store = make_store()
    with pytest.raises(DataError, match=re.escape(f"{bad!r} {why} in the catalog")):
        export_features.run(config(store.root), store)
    assert store.manifest("export") is None


def test_fields_of_one_name_are_refused(make_store):
    store = make_store(attribute="knowledge")
    with pytest.raises(DataError, match=r"would be named \['user_knowledge'\]; rename"):
        export_features.run(config(store.root), store)


@pytest.mark.filterwarnings("default")  # third parties warn as they please
def test_fuxictr_itself_reads_the_rows_and_finds_the_vector_of_each(exported, data):
    """Where it is installed (`make test-peers`)."""
    fuxictr = pytest.importorskip("fuxictr.features", exc_type=ImportError)
    from fuxictr.pytorch.dataloaders import RankDataLoader
    from fuxictr.pytorch.layers import FeatureEmbeddingDict

    folder, rows = exported / "fuxictr", data.splits["test"]
    described = fuxictr.FeatureMap("shop", str(folder))
    described.load(str(folder / "feature_map.json"), {})
    path = str(folder / "test.npz")
    loader = RankDataLoader(described, "test", test_data=path, batch_size=100, num_workers=0)
    batch = next(iter(loader))
    np.testing.assert_array_equal(batch.pop("label"), data.labels[rows])
    np.testing.assert_array_equal(batch["history_items"], data.history_items[rows])
    embedded = FeatureEmbeddingDict(described, WIDTH)(batch)
    vectors = np.array(texts(LATEST)[1]["vector"].to_pylist(), np.float32)  # zeros: no text
    for kind, places in (("user", data.users), ("item", len(USER_IDS) + data.items)):
        found = embedded[f"{kind}_knowledge"]
        assert not found.requires_grad
        np.testing.assert_array_equal(found.numpy(), vectors[places[rows]])
    assert embedded["history_items"].shape == (100, WIDTH)


@pytest.mark.filterwarnings("default")  # third parties warn as they please
def test_feast_itself_joins_the_vectors_to_the_ctr_rows_in_time(exported, tmp_path):
    """Where it is installed (`make test-peers`); its file store drops a row that is too early."""
    feast = pytest.importorskip("feast", exc_type=ImportError)
    user = feast.Entity(name="user", join_keys=["user_id"], value_type=feast.ValueType.STRING)
    source = feast.FileSource(
        path=str(exported / "feast/user_knowledge.parquet"),
        timestamp_field="event_timestamp",
        created_timestamp_column="created",
    )
    view = feast.FeatureView(name="user_knowledge", entities=[user], source=source)
    paths = {
        "registry": f"{tmp_path}/registry.db",
        "online_store": {"path": f"{tmp_path}/online.db"},
    }
    store = feast.FeatureStore(config=feast.RepoConfig(project="shop", provider="local", **paths))
    store.apply([user, view])
    rows = pd.read_parquet(exported / "feast/ctr_rows.parquet")
    too_early = pd.Timestamp(LATEST["7"] - 1, unit="s", tz="UTC")
    asked = pd.concat([rows, rows[:1].assign(user_id="7", event_timestamp=too_early)])
    joined = store.get_historical_features(asked, ["user_knowledge:vector"]).to_df()
    is_early = joined["event_timestamp"] == too_early
    assert joined[is_early]["vector"].isna().all()
    assert (~is_early).sum() == len(rows)
    vectors = dict(zip(USER_IDS, texts(LATEST)[1]["vector"].to_pylist(), strict=False))
    for row in joined[~is_early].to_dict("records"):
        np.testing.assert_array_equal(row["vector"], vectors[row["user_id"]])
