"""Nights that go on from one another: a tiny catalog that changes, models trained once."""

import csv
import shutil
from importlib import import_module

import numpy as np
import pyarrow as pa
import pytest
import torch

from jobs import (
    align_drafter,
    assign_semantic_ids,
    recommend,
    recommend_items,
    train_recommender,
    train_retriever,
)
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DataError
from pipeline.generative.codes_hash import CODES_HASH
from pipeline.generative.recommender import load_recommender
from pipeline.generative.retriever import load_retriever
from pipeline.schemas import EMBEDDINGS, FEATURES, INTERACTIONS, ITEMS, USERS
from pipeline.store import Store

WIDTH, CIRCLE = 8, 28  # items that users like one after another; two more are never liked
USERS_OF = {f"u{n}": n * 5 % CIRCLE for n in range(20)}  # user -> first item liked
LIKED, TWIN, OTHER = "i10", "twin", "other"
SPLITS = ["knowledge"] * 5 + ["train", "valid", "test"]
TRAINING = {"max_epochs": 25, "patience": 25, "batch_size": 8, "learning_rate": 0.01, "warm_up": 0}


def first_items():
    rng = np.random.default_rng(0)
    return {f"i{n}": rng.normal(size=WIDTH) for n in range(CIRCLE + 2)}


def tonight(night, gone):
    """Items of a later night: one has gone, two are new, every third text has changed."""
    rng = np.random.default_rng(night)
    items = {name: vector for name, vector in first_items().items() if name not in gone}
    for name in list(items)[::3]:
        items[name] = items[name] if name == LIKED else rng.normal(size=WIDTH)
    new = {OTHER: rng.normal(size=WIDTH), TWIN: items[LIKED]}
    return new | items  # they come first


def likes_of(users, steps, items):
    """(user, item, time, split): so many items of the circle each."""
    last = SPLITS[-1]
    every = [
        (user, f"i{(begin + t) % CIRCLE}", 100 + t, SPLITS[t] if t < len(SPLITS) else last)
        for user, begin in users.items()
        for t in range(steps)
    ]
    return [row for row in every if row[1] in items]


def write_catalog(store, users, items, likes):
    ids, count = list(items), len(items)
    table = {"user_id": list(users), "attributes": [[]] * len(users)}
    store.plan("users", {"ids": list(users)}).write(pa.table(table, schema=USERS))
    table = {"item_id": ids, "title": ids, "attributes": [[]] * count}
    store.plan("items", {"ids": ids}).write(pa.table(table, schema=ITEMS))
    rows = [(user, item, 5.0, 1, time, split) for user, item, time, split in likes]
    columns = dict(zip(INTERACTIONS.names, map(list, zip(*rows, strict=True)), strict=True))
    plan = store.plan("interactions", {"rows": str(likes)})
    plan.write(pa.table(columns, schema=INTERACTIONS))
    write_contents(store, items)
    liked = {item for _, item, _, split in likes if split == "knowledge"}
    behaviour = np.random.default_rng(9).normal(size=(count, 4)) * [[i in liked] for i in ids]
    degrees = [3 * (name in liked) for name in ids]
    own = {"kind": ["item"] * count, "entity_id": ids}
    table = own | {"num_interactions": degrees, "vector": behaviour.tolist()}
    store.plan("embeddings", {}).write(pa.table(table, schema=EMBEDDINGS))


def write_contents(store, items, weights="w"):
    ids, count = list(items), len(items)
    own = {"kind": ["item"] * count, "entity_id": ids, "source": ["own"] * count}
    seen = dict.fromkeys(("asof", "latest_source", "source_events"), [0] * count)
    text = own | seen | {"prompt_hash": ids, "vector": [v.tolist() for v in items.values()]}
    vectors = str([vector.tolist() for vector in items.values()])
    plan = store.plan("features", {"weights": weights})
    plan.write(pa.table(text, schema=FEATURES), {"vectors": vectors})


def config_of(folder, run="first", method="specgr", **sections):
    tower = "encoder" if method == "specgr_plus" else "content"
    tree = {
        "run": run,
        "artifacts": folder,
        "catalog": {"source": "movielens", "path": "nowhere"},
        "language_model": {"path": "nowhere"},
        "encoder": {"path": "nowhere"},
        "semantic_ids": {"levels": 2, "codebook_size": 8, "collaborative_weight": 0.0},
        "recommender": {"hidden_dim": 32, "layers": 1, "heads": 2, "history_length": 6}
        | {"placeholder_weight": 0.0, "training": TRAINING},
        "aligned_drafter": {"hidden_dim": 16, "teacher_contexts": 30, "teacher_beams": 5}
        | {"training": TRAINING | {"max_epochs": 3}},
        "retriever": {"dim": 16, "tower": tower, "training": TRAINING | {"max_epochs": 12}},
        "recommendation": {"method": method, "top_k": 5, "beams": 8, "device": "cpu"}
        | {"specgr": {"drafted": 6, "beams": 8}},
    }
    for name, section in sections.items():
        tree[name] = tree[name] | section
    return RunConfig.model_validate(tree)


def night_of(folder, run, of, **sections):
    sections["semantic_ids"] = {"from_run": of} | sections.get("semantic_ids", {})
    sections["recommender"] = {"from_run": of} | sections.get("recommender", {})
    return config_of(folder, run, **sections)


class Pool:
    """Actors in this process."""

    def __init__(self, kind, arguments, workers):
        self.actor = kind(*arguments)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def through(self, blocks, num_blocks, ordered):
        yield from map(self.actor, list(blocks))


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(recommend_items, "ActorPool", Pool)
    monkeypatch.setattr(recommend_items, "start_ray", lambda _: None)
    monkeypatch.setattr(recommend_items, "node_resources", lambda: [{"CPU": 1.0}])


def serve(config):
    """All stages from semantic IDs to lists."""
    store = Store(config.artifacts / config.run)
    for name in recommend.list_stages(config):
        import_module(f"jobs.{name}").run(config, store)
    return store


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A first night of every method, up to lists."""
    folder = tmp_path_factory.mktemp("trained")
    store = Store(folder / "first")
    items = first_items()
    write_catalog(store, USERS_OF, items, likes_of(USERS_OF, 8, items))
    config = config_of(folder)
    for job in (assign_semantic_ids, train_recommender, align_drafter, train_retriever):
        job.run(config, store)
    encoder = Store(folder / "encoder")
    shutil.copytree(store.root, encoder.root)
    train_retriever.run(config_of(folder, "encoder", "specgr_plus"), encoder)
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


def lists_of(store):
    return {row["user_id"]: row for row in store.read("recommendations").to_pylist()}


def ids_of(store):
    table = store.read("semantic_ids")
    return dict(zip(table["item_id"].to_pylist(), table["codes"].to_pylist(), strict=True))


def everything(lists):
    return {item for row in lists.values() for item in row["item_ids"]}


def weights_of(store, dataset):
    return (store.path(dataset) / "recommender" / "model.safetensors").read_bytes()


def withdraw(folder, *items):
    path = folder / "withdrawn.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["item_id"], *([item] for item in items)])
    return str(path)


# Histories end with the item before the one that has a twin, the day after too.
NEW_USERS = {"v0": 4, "v1": 20, "v2": 3}


def write_night(store, gone=(), night=1):
    users = USERS_OF | NEW_USERS
    items = tonight(night, gone)
    likes = likes_of(users, 6, items)
    write_catalog(store, users, items, likes)
    return items, likes


@pytest.mark.parametrize(
    ("first", "method"), [("first", "specgr"), ("encoder", "specgr_plus"), ("first", "atspeed_s")]
)
def test_a_night_serves_a_changed_catalog_without_training(folder, first, method, monkeypatch):
    before = serve(config_of(folder, first, method))
    listed = everything(lists_of(before))
    gone, withdrawn = sorted(listed - {f"i{n}" for n in range(4, 12)})[:2]
    own = {"withdrawn": withdraw(folder, withdrawn), "method": method}
    config = night_of(folder, "second", first, method=method, recommendation=own)
    store = Store(folder / "second")
    items, likes = write_night(store, [gone])
    serve(config)
    old, new = ids_of(before), ids_of(store)
    assert {name: new[name] for name in items if name in old} == {
        name: codes for name, codes in old.items() if name != gone
    }
    lists = lists_of(store)
    assert list(lists) == [*USERS_OF, *NEW_USERS]
    assert all(len(row["item_ids"]) == 5 and not row["error"] for row in lists.values())
    assert not everything(lists) & {gone, withdrawn}
    for user, row in lists.items():
        assert not set(row["item_ids"]) & {item for who, item, _, _ in likes if who == user}
    if method != "atspeed_s":
        ends = [user for user, begin in (USERS_OF | NEW_USERS).items() if begin == 4]
        places = [lists[user]["item_ids"].index(TWIN) for user in ends]
        assert [lists[user]["sources"][n] for user, n in zip(ends, places, strict=True)] == [
            "accepted"
        ] * len(ends)
    assert weights_of(store, "recommender") == weights_of(before, "recommender")
    names = ["semantic_ids", *recommend_items.METHODS[method].datasets, "recommendations"]
    made = [store.require(name) for name in names]
    shutil.rmtree(before.root / "checkpoints", ignore_errors=True)
    monkeypatch.setattr(recommend_items, "ActorPool", None)
    serve(config)
    assert [store.require(name) for name in names] == made


def test_a_night_may_go_on_from_a_night_when_the_first_run_is_no_more(folder):
    before = serve(config_of(folder))
    gone, withdrawn = sorted(everything(lists_of(before)) - {f"i{n}" for n in range(4, 12)})[:2]
    own = {"withdrawn": withdraw(folder, withdrawn)}
    second = Store(folder / "second")
    write_night(second, [gone])
    serve(night_of(folder, "second", "first", recommendation=own))
    trained_on = before.require("recommender").facts[CODES_HASH]
    known = ids_of(before)
    shutil.rmtree(before.root)
    third = Store(folder / "third")
    write_night(third, night=2)  # who had gone is back
    serve(night_of(folder, "third", "second", recommendation=own))
    assert {name: ids_of(third)[name] for name in known} == known
    assert ids_of(third)[TWIN] == ids_of(second)[TWIN]
    lists = lists_of(third)
    assert not everything(lists) & {withdrawn}
    assert gone in everything(lists)
    assert TWIN in lists["v0"]["item_ids"]
    facts = third.require("recommender").facts
    assert (facts["trained_on"], facts["from_run"]) == (trained_on, "second")
    assert facts[CODES_HASH] != trained_on


def unit(vector):
    return vector / vector.norm()


@torch.no_grad()
def test_all_items_are_encoded_by_what_they_say_tonight(folder):
    store = Store(folder / "second")
    items, _ = write_night(store)
    config = night_of(folder, "second", "first")
    assign_semantic_ids.run(config, store)
    train_recommender.run(config, store)
    train_retriever.run(config, store)
    tower = load_retriever(folder / "first" / "retriever").tower
    found = load_retriever(store.path("retriever")).vectors
    for row, vector in zip(found, items.values(), strict=True):
        direction = unit(torch.tensor(vector, dtype=torch.float32)) - tower.centre
        torch.testing.assert_close(row, unit(tower.item(direction)), atol=1e-5, rtol=1e-5)
    at = list(items).index
    assert torch.equal(found[at(TWIN)], found[at(LIKED)])
    assert "from_run" in store.require("retriever").facts


@torch.no_grad()
def test_new_items_are_encoded_by_the_weights_that_old_ones_were(folder):
    store = Store(folder / "second")
    write_night(store)
    config = night_of(folder, "second", "encoder", method="specgr_plus")
    assign_semantic_ids.run(config, store)
    train_recommender.run(config, store)
    train_retriever.run(config, store)
    first = load_retriever(folder / "encoder" / "retriever").vectors
    old = dict(zip(first_items(), first, strict=True))
    ids = ids_of(store)
    found = dict(zip(ids, load_retriever(store.path("retriever")).vectors, strict=True))
    for name, vector in old.items():
        torch.testing.assert_close(found[name], vector, atol=1e-5, rtol=1e-5)
    folder = store.path("retriever")
    for place, is_own in (("item_encoder", True), ("recommender", False)):  # stages 1 and 2
        model = load_recommender(folder / place)
        tower = load_retriever(folder / "item_encoder" if is_own else folder).tower
        for name in (TWIN, OTHER):
            codes = np.array(ids[name]) + model.num_codes * np.arange(model.levels)
            tokens = torch.tensor([[model.bos, *codes]])
            sees = torch.ones(1, tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
            hidden = model(tokens, torch.arange(tokens.shape[1])[None], sees)
            expected = unit(tower.projection(hidden[0].mean(0)))
            assert torch.allclose(found[name], expected, atol=1e-4) == is_own


def tonight_of(folder, of="first", **sections):
    store = Store(folder / "second")
    write_night(store)
    config = night_of(folder, "second", of, **sections)
    assign_semantic_ids.run(config, store)
    return config, store


def test_other_ids_than_the_recommender_knows_are_refused(folder):
    config, store = tonight_of(folder, semantic_ids={"from_run": None})
    with pytest.raises(
        DataError, match=r"such as \['i\d+', .* set semantic_ids\.from_run to first"
    ):
        train_recommender.run(config, store)
    assert store.manifest("recommender") is None
    items = {f"x{name}": vector for name, vector in first_items().items()}
    likes = [
        (user, f"x{item}", *rest) for user, item, *rest in likes_of(USERS_OF, 8, first_items())
    ]
    write_catalog(store, USERS_OF, items, likes)
    assign_semantic_ids.run(config, store)
    with pytest.raises(DataError, match=r"28 items, such as \['xi0', .* have not the semantic ID"):
        train_recommender.run(config, store)  # no item is in both, but all are called known


def test_an_item_that_is_new_to_the_recommender_is_not_called_known(folder):
    config, store = tonight_of(folder)
    table = store.read("semantic_ids")
    warm = pa.array([name == OTHER or is_warm for name, is_warm in warm_of(table).items()])
    place = table.schema.get_field_index("is_warm")
    plan = store.plan("semantic_ids", {"other": True})
    plan.write(table.set_column(place, "is_warm", warm), {"codebook_size": 8})
    with pytest.raises(DataError, match=r"1 items, such as \['other'\], have not the semantic ID"):
        train_recommender.run(config, store)


def warm_of(table):
    columns = (table[name].to_pylist() for name in ("item_id", "is_warm"))
    return dict(zip(*columns, strict=True))


@pytest.mark.parametrize(
    ("job", "changes", "complaint"),
    [
        (train_recommender, {"recommender": {"hidden_dim": 16}}, r"recommender\.hidden_dim 32"),
        (
            train_recommender,
            {"recommender": {"history_length": 9, "layers": 3}},
            r"recommender\.layers 1, recommender\.history_length 6",
        ),
        (align_drafter, {"aligned_drafter": {"loss": "sft"}}, r"aligned_drafter\.loss 'atspeed_s'"),
        (train_retriever, {"retriever": {"dim": 8}}, r"retriever\.dim 16"),
    ],
)
def test_a_model_of_another_kind_than_asked_for_is_refused(folder, job, changes, complaint):
    config, store = tonight_of(folder)
    train_recommender.run(config, store)
    other = night_of(folder, "second", "first", **changes)
    with pytest.raises(ConfigError, match=complaint):
        job.run(other, store)


def test_settings_of_a_training_alone_do_not_matter_to_what_is_trained(folder):
    config, store = tonight_of(folder)
    jobs = (train_recommender, align_drafter, train_retriever)
    for job in jobs:
        job.run(config, store)
    names = ("recommender", "aligned_drafter", "retriever")
    made = [store.require(name) for name in names]
    training = {"training": {"max_epochs": 1}}
    sections = dict.fromkeys(names, training)
    other = night_of(folder, "second", "first", **sections)
    for job in jobs:
        job.run(other, store)
    assert [store.require(name) for name in names] == made


def test_a_run_without_the_model_is_named_before_anything_is_done(folder, monkeypatch):
    Store(folder / "first").set_aside("retriever")
    config, store = tonight_of(folder)
    train_recommender.run(config, store)
    with pytest.raises(DataError, match=r"from_run is first, but .* has no finished retriever"):
        train_retriever.run(config, store)
    with monkeypatch.context() as patch:
        patch.setattr("jobs.preflight.check_inputs", lambda *_, **__: None)
        patch.setattr(recommend, "import_module", None)
        with pytest.raises(DataError, match="has no finished retriever"):
            recommend.run(config, store)
    nobody = night_of(folder, "second", "first", recommender={"from_run": "nobody"})
    with pytest.raises(DataError, match=r"from_run is nobody, but .*nobody has no finished recom"):
        train_recommender.run(nobody, store)


def test_models_that_were_not_trained_beside_one_another_are_refused(folder):
    config, store = tonight_of(folder)
    train_recommender.run(config, store)
    first, again = Store(folder / "first"), config_of(folder, recommender={"dropout": 0.3})
    train_recommender.run(again, first)
    with pytest.raises(DataError, match="retriever was trained beside another recommender than"):
        train_retriever.run(config, store)
    for job in (align_drafter, train_retriever):
        job.run(again, first)
        with pytest.raises(DataError, match=r"second/recommender is not what first has now"):
            job.run(config, store)
    train_recommender.run(config, store)
    train_retriever.run(config, store)
    assign_semantic_ids.run(config_of(folder, semantic_ids={"codebook_size": 7}), first)
    other = night_of(folder, "second", "first", semantic_ids={"codebook_size": 7})
    assign_semantic_ids.run(other, store)
    with pytest.raises(DataError, match="run `laser recommender` of first again"):
        train_recommender.run(other, store)


def test_contents_of_another_encoder_say_nothing_to_a_tower(folder):
    config, store = tonight_of(folder)
    train_recommender.run(config, store)
    write_contents(store, tonight(1, ()), weights="other")
    with pytest.raises(ConfigError, match="content vectors that were made otherwise than these"):
        train_retriever.run(config, store)


def test_lists_are_as_of_what_the_recommender_was_trained_on(folder):
    config, store = tonight_of(folder, recommendation={"method": "beam", "history": "past"})
    train_recommender.run(config, store)
    recommend_items.run(config, store)
    assert {row["asof"] for row in lists_of(store).values()} == {105}
    table = store.read("interactions")
    earlier = table.set_column(4, "timestamp", pa.array([n - 50 for n in times_of(table)]))
    store.plan("interactions", {"earlier": True}).write(earlier)
    recommend_items.run(config, store)
    assert {row["asof"] for row in lists_of(store).values()} == {105}
    assert {row["latest_source"] for row in lists_of(store).values()} == {55}


def times_of(table):
    return table["timestamp"].to_pylist()


def test_a_run_cannot_go_on_from_itself(folder):
    with pytest.raises(ValueError, match=r"recommender\.from_run is 'first', the run itself"):
        config_of(folder, recommender={"from_run": "first"})


@pytest.mark.parametrize("until", ["knowledge", "train"])
def test_nothing_that_is_trained_looks_beyond_the_split_after_its_last(tmp_path, until):
    """What a check of these splits judges by must not have chosen an epoch either."""
    short = {"training": TRAINING | {"max_epochs": 3}}
    sections = {"recommender": short | {"until": until}, "aligned_drafter": short}
    config = config_of(tmp_path, retriever=short, **sections)
    store, items = Store(tmp_path / "first"), first_items()
    likes = likes_of(USERS_OF, 8, items)
    later = SPLITS[SPLITS.index("train" if until == "knowledge" else "valid") + 1 :]
    rng, found = np.random.default_rng(3), []
    for others in ([], later):
        rows = [
            (user, f"i{rng.integers(len(items))}" if split in others else item, time, split)
            for user, item, time, split in likes
        ]
        write_catalog(store, USERS_OF, items, rows)
        for job in (assign_semantic_ids, train_recommender, align_drafter, train_retriever):
            job.run(config, store)
        names = ("recommender/recommender/model", "aligned_drafter/drafter/model")
        files = [f"{name}.safetensors" for name in (*names, "retriever/tower")]
        found.append([(store.root / file).read_bytes() for file in files])
    assert found[0] == found[1]
    inputs = train_recommender.read_inputs(store)
    split = {"knowledge": "train", "train": "valid"}[until]
    targets = train_recommender.stopping_events(inputs, config).targets
    assert targets.tolist() == [n for n in inputs.log.events(split).items if inputs.is_warm[n]]
