"""Lists for a tiny catalog by a random model, held against plain beam search, user by user."""

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from jobs import recommend_items, train_recommender
from jobs.actor_pool import WorkerBroken
from jobs.recommending_actor import RecommendingActor
from pipeline.config import RunConfig
from pipeline.errors import ConfigError, DataError, PartialError
from pipeline.generative import methods
from pipeline.generative.codes_hash import CODES_HASH, codes_hash
from pipeline.generative.recommender import load_recommender, make_recommender
from pipeline.generative.retriever import ContentTower, EncoderTower, Retriever
from pipeline.generative_config import RecommendationSettings
from pipeline.schemas import INTERACTIONS, ITEMS, RECOMMENDATIONS, SEMANTIC_IDS, USERS
from pipeline.store import Store
from pipeline.withdrawn import read_withdrawn

LEVELS, CODES, NUM_ITEMS, NUM_USERS, MOST = 3, 4, 40, 21, 4
ITEM_IDS = [f"i{n}" for n in range(NUM_ITEMS)]
USER_IDS = [f"u{n}" for n in range(NUM_USERS)]
SPLITS = ["knowledge", "train", "valid", "test"]


def config_of(folder, **recommendation):
    return RunConfig.model_validate(
        {
            "run": "test",
            "artifacts": folder,
            "catalog": {"source": "movielens", "path": "nowhere"},
            "language_model": {"path": "nowhere"},
            "encoder": {"path": "nowhere"},
            "recommender": {"hidden_dim": 16, "layers": 2, "heads": 2, "history_length": MOST},
            "recommendation": {"top_k": 5, "beams": 8, "batch_users": 4, "device": "cpu"}
            | {"method": "beam", "history": "past"}
            | recommendation,
        }
    )


def the_codes():
    every = np.stack(np.unravel_index(np.arange(CODES**LEVELS), [CODES] * LEVELS), 1)
    return np.random.default_rng(0).permutation(every)[:NUM_ITEMS].astype(np.int32)


def the_events():
    """(user, item, label, time, split); user 0 has none, user 1 dislikes only."""
    rng = np.random.default_rng(1)
    rows = [("u1", "i3", 0, 5, "knowledge")]
    for time in range(10, 210):
        user, item = rng.integers(2, NUM_USERS), rng.integers(0, NUM_ITEMS)
        label = int(rng.random() < 0.7)
        rows.append((f"u{user}", f"i{item}", label, time, SPLITS[(time - 10) // 50]))
    return rows


def write_interactions(store, rows):
    names = ("user_id", "item_id", "label", "timestamp", "split")
    table = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    table["rating"] = [1.0] * len(rows)
    table = pa.table({name: table[name] for name in INTERACTIONS.names}, INTERACTIONS)
    store.plan("interactions", {"rows": str(rows)}).write(table)


def write_items(store, ids=ITEM_IDS, codes=None, known=None):
    codes = the_codes() if codes is None else codes
    items = pa.table([ids, ids, [{}] * len(ids)], schema=ITEMS)
    store.plan("items", {"ids": ids}).write(items)
    known = ids if known is None else known
    columns = [known, codes.tolist(), [True] * len(known), [False] * len(known)]
    table = pa.table(columns, schema=SEMANTIC_IDS)
    plan = store.plan("semantic_ids", {"codes": codes.tolist(), "known": known})
    plan.write(table, {"codebook_size": CODES})


def write_model(config, store, codes=None, until="train", **facts):
    codes = the_codes() if codes is None else codes
    model = make_recommender(config.recommender, codes.shape[1], CODES, 0)
    generator = torch.Generator().manual_seed(0)
    for weights in (model.heads, model.tokens.weight):
        weights.data = torch.randn(weights.shape, generator=generator)
    known = store.read("semantic_ids")["item_id"].combine_chunks()
    facts = {CODES_HASH: codes_hash(known, codes)} | facts
    plan = store.plan("recommender", {"recommender": {"until": until}, "facts": facts})
    plan.write_files(lambda folder: model.save(folder / "recommender"), 1, facts)


@pytest.fixture
def config(tmp_path):
    return config_of(tmp_path)


@pytest.fixture
def store(config, monkeypatch):
    monkeypatch.setattr(recommend_items, "ActorPool", Pool)
    monkeypatch.setattr(recommend_items, "start_ray", lambda _: None)
    monkeypatch.setattr(recommend_items, "node_resources", lambda: [{"CPU": 1.0}])
    monkeypatch.setattr(recommend_items, "_BLOCK_ROWS", 6)
    store = Store(config.artifacts / config.run)
    users = pa.table([USER_IDS, [{}] * NUM_USERS], schema=USERS)
    store.plan("users", {}).write(users)
    write_items(store)
    write_interactions(store, the_events())
    write_model(config, store)
    return store


class Pool:
    """Actors in this process."""

    def __init__(self, kind, arguments, workers):
        self.actor = kind(*arguments)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def through(self, blocks, num_blocks, ordered):
        assert ordered
        blocks = list(blocks)
        assert len(blocks) == num_blocks
        yield from map(self.actor, blocks)


def past_of(user, splits, events=None):
    return [row for row in events or the_events() if row[0] == user and row[4] in splits]


@torch.inference_mode()
def plain_list(model, user, splits, config, gone=(), events=None):
    """Items and mean log-probabilities: every prefix of an allowed item, level by level, anew."""
    codes, settings = the_codes(), config.recommendation
    own = past_of(user, splits, events)
    seen = {row[1] for row in own} if settings.exclude_seen else set()
    history = [int(row[1][1:]) for row in own if row[2]][-MOST:]
    tokens = [LEVELS * CODES]
    tokens += [int(code) + CODES * level for i in history for level, code in enumerate(codes[i])]
    allowed = [tuple(codes[n]) for n in range(NUM_ITEMS) if f"i{n}" not in seen | set(gone)]
    beams = {(): 0.0}
    for level in range(LEVELS):
        found = {}
        for prefix, score in beams.items():
            sequence = [*tokens, *(int(c) + CODES * place for place, c in enumerate(prefix))]
            size = len(sequence)
            sees = torch.ones(1, size, size, dtype=torch.bool).tril()
            hidden = model(torch.tensor([sequence]), torch.arange(size)[None], sees)
            log_probs = model.log_probs(hidden[:, -1:], torch.tensor([level]))[0, 0]
            for code in {own[level] for own in allowed if own[:level] == prefix}:
                found[(*prefix, code)] = score + float(log_probs[code])
        beams = dict(sorted(found.items(), key=lambda pair: -pair[1])[: settings.beams])
    names = {tuple(own): f"i{n}" for n, own in enumerate(codes)}
    ranked = [(names[own], score / LEVELS) for own, score in beams.items()]
    return ranked[: settings.top_k]


def check_rows(store, config, splits, gone=()):
    rows = store.read("recommendations").to_pylist()
    assert [row["user_id"] for row in rows] == USER_IDS
    model = load_recommender(store.path("recommender") / "recommender")
    for row in rows:
        expected = plain_list(model, row["user_id"], splits, config, gone)
        assert row["item_ids"] == [item for item, _ in expected], row["user_id"]
        np.testing.assert_allclose(row["scores"], [score for _, score in expected], atol=1e-4)
        own = past_of(row["user_id"], splits)
        assert row["source_events"] == min(MOST, sum(event[2] for event in own))
        assert row["latest_source"] == max((event[3] for event in own), default=0)
        assert (row["error"], row["unknown_items"], row["valid_share"]) == ("", 0, 1.0)
        assert row["sources"] == ["beam"] * len(row["item_ids"])
        assert row["rounds"] == row["calls"] == LEVELS - row["accepted_levels"]
    return rows


@pytest.mark.parametrize("method", ["beam", "exhaustive"])  # which need a recommender only
def test_every_user_gets_the_list_of_plain_beam_search_in_the_order_of_the_catalog(
    config, store, method
):
    own = config_of(config.artifacts, method=method)
    recommend_items.run(own, store)
    rows = check_rows(store, own, SPLITS[:2])
    assert {row["asof"] for row in rows} == {109}
    assert {row["exit_reason"] for row in rows} == {"full"}
    assert Counter(len(row["item_ids"]) for row in rows) == {5: NUM_USERS}
    facts = store.require("recommendations").facts
    assert (facts["users"], facts["errors"], facts["method"]) == (NUM_USERS, 0, method)
    assert facts["without_history"] >= 2  # users 0 and 1
    assert store.read("recommendations").schema.equals(RECOMMENDATIONS)


def test_methods_are_those_the_config_names():
    annotation = RecommendationSettings.model_fields["method"].annotation
    assert list(annotation.__args__) == list(methods.METHODS)


def test_beams_must_fill_the_list(tmp_path):
    with pytest.raises(ValueError, match="beams is 4, below top_k 5"):
        config_of(tmp_path, beams=4)


def test_all_of_the_log_may_be_known_where_no_check_follows(config, store):
    own = config_of(config.artifacts, history="all", exclude_seen=False)
    recommend_items.run(own, store)
    rows = check_rows(store, own, SPLITS)
    assert {row["asof"] for row in rows} == {209}
    seen = [
        set(row["item_ids"]) & {event[1] for event in past_of(row["user_id"], SPLITS)}
        for row in rows
    ]
    assert any(seen)  # nothing is excluded


def test_what_was_seen_or_withdrawn_is_never_recommended(config, store, tmp_path, caplog):
    recommend_items.run(config, store)
    often = Counter(i for row in store.read("recommendations")["item_ids"].to_pylist() for i in row)
    gone = [item for item, _ in often.most_common(6)]
    path = tmp_path / "gone.csv"
    path.write_text("item_id,why\n" + "".join(f"{item},x\n" for item in [*gone, "nobody", ""]))
    own = config_of(config.artifacts, withdrawn=str(path))
    with caplog.at_level(logging.WARNING):
        recommend_items.run(own, store)
    assert "1 of 7 items of" in caplog.text
    assert "such as ['nobody']" in caplog.text
    rows = check_rows(store, own, SPLITS[:2], gone)
    for row in rows:
        own_items = {event[1] for event in past_of(row["user_id"], SPLITS[:2])}
        assert not set(row["item_ids"]) & (own_items | set(gone))
    made = store.require("recommendations")
    path.write_text("item_id\n" + "".join(f"{item}\n" for item in reversed(gone)))
    recommend_items.run(own, store)
    assert store.require("recommendations") == made  # the same items in another order
    path.write_text("item_id\n" + gone[0])
    recommend_items.run(own, store)
    assert store.require("recommendations").fingerprint != made.fingerprint


def test_a_killed_job_goes_on_after_its_stored_blocks_and_a_second_run_does_nothing(
    config, store, monkeypatch, caplog
):
    recommend_items.run(config, store)
    undisturbed = store.read("recommendations")
    store.set_aside("recommendations")
    asked = []

    class Killed(RecommendingActor):
        def __call__(self, block):
            asked.append(block["user_id"].to_pylist())
            if len(asked) == 3:
                raise KeyboardInterrupt
            return super().__call__(block)

    with monkeypatch.context() as patch:
        patch.setattr(recommend_items, "RecommendingActor", Killed)
        with pytest.raises(KeyboardInterrupt):
            recommend_items.run(config, store)
        assert store.manifest("recommendations") is None
        assert store.files.stored_rows("recommendations") == 12
        first = (store.path("recommendations") / "part-00000.parquet").stat().st_mtime_ns
        recommend_items.run(config, store)
    assert asked[3:] == [USER_IDS[12:18], USER_IDS[18:]]
    assert (store.path("recommendations") / "part-00000.parquet").stat().st_mtime_ns == first
    assert store.read("recommendations").equals(undisturbed)
    made = store.require("recommendations")
    monkeypatch.setattr(recommend_items, "ActorPool", None)
    with caplog.at_level(logging.INFO):
        recommend_items.run(config, store)
    assert f"recommendations: up to date, {NUM_USERS} rows" in caplog.text
    assert store.require("recommendations") == made
    recommend_items.run(config_of(config.artifacts, batch_users=7), store)  # nor does it matter
    assert store.require("recommendations") == made


def failing_for(monkeypatch, items):
    """A method that fails on a batch in which anybody has one of these items in the history."""
    beam = methods.METHODS["beam"]

    def begin(parts):
        search = beam.begin(parts)

        def fail(requests):
            if np.isin(requests.items.numpy(), items).any():
                raise ValueError("odd history")
            return search(requests)

        return fail

    monkeypatch.setitem(methods.METHODS, "beam", methods.Method(begin))


def test_a_user_who_cannot_be_served_is_one_error_row(config, store, monkeypatch):
    own = config_of(config.artifacts, max_error_share=0.5)
    recommend_items.run(own, store)
    good = store.read("recommendations").to_pylist()
    store.set_aside("recommendations")
    events = [[e for e in past_of(user, SPLITS[:2]) if e[2]][-MOST:] for user in USER_IDS]
    item = next(e[-1][1] for e in events if e)
    bad = [any(event[1] == item for event in e) for e in events]
    failing_for(monkeypatch, [int(item[1:])])
    recommend_items.run(own, store)
    rows = store.read("recommendations").to_pylist()
    assert 0 < sum(bad) < NUM_USERS / 2
    for row, before, is_bad in zip(rows, good, bad, strict=True):
        if is_bad:
            assert (row["error"], row["exit_reason"]) == ("ValueError: odd history", "error")
            assert row["item_ids"] == []
            assert row["source_events"] == before["source_events"]
        else:
            assert row["item_ids"] == before["item_ids"]
    made = store.require("recommendations")
    assert made.facts["errors"] == sum(bad)
    recommend_items.run(own, store)
    assert store.require("recommendations") == made
    complaint = r"users got no list.* run `laser recommend` again.*First error: ValueError: odd"
    with pytest.raises(PartialError, match=complaint):
        recommend_items.run(config, store)
    again = store.read("recommendations").to_pylist()
    assert again == rows  # stored all the same


def test_too_many_error_rows_do_not_outlive_their_cause(config, store, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        failing_for(patch, list(range(NUM_ITEMS)))
        with pytest.raises(PartialError):
            recommend_items.run(config, store)
    with caplog.at_level(logging.INFO):
        recommend_items.run(config, store)
    assert "recommendations has more error rows than recommendation.max_error_share" in caplog.text
    assert store.require("recommendations").facts["errors"] == 0
    assert list((store.root / "superseded").glob("recommendations*"))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        torch.AcceleratorError("an illegal memory access"),
        RuntimeError("CUDA error: device-side assert triggered"),
    ],
)
def test_a_worker_that_cannot_go_on_makes_no_error_rows(config, store, monkeypatch, error):
    def begin(parts):
        def fail(requests):
            raise error

        return fail

    monkeypatch.setitem(methods.METHODS, "beam", methods.Method(begin))
    with pytest.raises(WorkerBroken, match=r"lower recommendation\.batch_users"):
        recommend_items.run(config, store)
    assert store.files.stored_rows("recommendations") == 0


def test_items_that_have_left_the_catalog_are_recommended_to_nobody(config, store, caplog):
    recommend_items.run(config, store)
    often = Counter(i for row in store.read("recommendations")["item_ids"].to_pylist() for i in row)
    gone = [item for item, _ in often.most_common(6)]
    left = [item for item in ITEM_IDS if item not in gone]
    events = [event for event in the_events() if event[1] in left]
    write_interactions(store, events)
    write_items(store, left, known=ITEM_IDS)
    with caplog.at_level(logging.WARNING):
        recommend_items.run(config, store)
    assert "6 items with a semantic ID are not in the catalog" in caplog.text
    model = load_recommender(store.path("recommender") / "recommender")
    for row in store.read("recommendations").to_pylist():
        expected = plain_list(model, row["user_id"], SPLITS[:2], config, gone, events)
        assert row["item_ids"] == [item for item, _ in expected]
        assert not set(row["item_ids"]) & set(gone)


def test_a_drafter_of_another_recommender_is_refused(config, store):
    own = config_of(config.artifacts, method="atspeed_s")
    small = make_recommender(config.recommender, LEVELS, CODES, 1)
    made_from = ["users", "interactions", "semantic_ids", "recommender"]
    plan = store.plan("aligned_drafter", {}, made_from)
    plan.write_files(lambda folder: small.save(folder / "drafter"), 1)
    recommend_items.run(own, store)
    check_lists_of_beams(store, own)
    write_model(config, store, note="trained anew")
    with pytest.raises(
        DataError, match=r"aligned_drafter was made from .*; run `laser align-drafter` aga"
    ):
        recommend_items.run(own, store)
    recommend_items.run(config, store)  # who drafts nothing does not ask for it
    store.set_aside("aligned_drafter")
    with pytest.raises(DataError, match="aligned_drafter has not been made"):
        recommend_items.run(own, store)


def test_lists_drafted_by_a_retriever_are_those_of_beam_search(config, store):
    own = config_of(config.artifacts, method="retriever_draft")
    torch.manual_seed(0)
    encoder = EncoderTower(16, 4)
    vectors = torch.nn.functional.normalize(torch.randn(NUM_ITEMS, 4), dim=1)
    for tower in (encoder, ContentTower(16, 6, 4)):
        plan = store.plan("retriever", {"tower": type(tower).__name__}, ["recommender"])
        plan.write_files(Retriever(tower, vectors).save, NUM_ITEMS)
        if tower is encoder:  # whose recommender is another one
            with pytest.raises(ConfigError, match=r"retriever_draft needs a .*tower content"):
                recommend_items.run(own, store)
    recommend_items.run(own, store)
    check_lists_of_beams(store, own)
    assert max(row["accepted_levels"] for row in store.read("recommendations").to_pylist()) > 0


def check_lists_of_beams(store, config):
    model = load_recommender(store.path("recommender") / "recommender")
    for row in store.read("recommendations").to_pylist():
        expected = plain_list(model, row["user_id"], SPLITS[:2], config)
        assert row["item_ids"] == [item for item, _ in expected], row["user_id"]


def test_lists_are_as_long_as_the_items_that_are_left(config, store, tmp_path):
    every = [("u2", item, 1, 300 + n, "train") for n, item in enumerate(ITEM_IDS)]
    most = [("u3", item, 0, 300 + n, "train") for n, item in enumerate(ITEM_IDS[:-3])]
    write_interactions(store, [*the_events(), *every, *most])
    recommend_items.run(config_of(config.artifacts, top_k=8), store)
    rows = {row["user_id"]: row for row in store.read("recommendations").to_pylist()}
    assert rows["u2"]["item_ids"] == []
    left = {*ITEM_IDS[-3:]} - {event[1] for event in past_of("u3", SPLITS[:2])}
    assert set(rows["u3"]["item_ids"]) == left
    assert rows["u2"]["exit_reason"] == rows["u3"]["exit_reason"] == "exhausted"
    assert rows["u0"]["exit_reason"] == "full"
    path = tmp_path / "gone.parquet"
    pq.write_table(pa.table({"item_id": ITEM_IDS[2:]}), path)
    recommend_items.run(config_of(config.artifacts, withdrawn=str(path)), store)
    rows = store.read("recommendations").to_pylist()
    assert sorted(rows[0]["item_ids"]) == ["i0", "i1"]  # a catalog smaller than K
    pq.write_table(pa.table({"item_id": ITEM_IDS}), path)
    with pytest.raises(DataError, match=r"names every item .* nothing to recommend"):
        recommend_items.run(config_of(config.artifacts, withdrawn=str(path)), store)


def test_items_that_share_an_id_are_told_apart_when_seen_or_withdrawn(config, store, tmp_path):
    codes = the_codes()
    codes[1:4] = codes[0]  # one id of four items
    write_items(store, codes=codes)
    write_model(config, store, codes)
    rows = [("u2", "i1", 0, 1, "knowledge"), *(("u3", f"i{n}", 1, n, "train") for n in range(4))]
    write_interactions(store, rows)
    path = tmp_path / "gone.tsv"
    path.write_text("item_id\ni2\n")
    own = config_of(config.artifacts, beams=40, top_k=40, withdrawn=str(path))
    recommend_items.run(own, store)
    lists = {row["user_id"]: row for row in store.read("recommendations").to_pylist()}
    every = set(ITEM_IDS) - {"i2"}
    assert set(lists["u0"]["item_ids"]) == every
    assert set(lists["u2"]["item_ids"]) == every - {"i1"}
    assert set(lists["u3"]["item_ids"]) == every - {"i0", "i1", "i3"}
    shared = [lists["u0"]["scores"][lists["u0"]["item_ids"].index(i)] for i in ("i0", "i1", "i3")]
    assert len(set(shared)) == 1
    for row in lists.values():
        assert row["scores"] == sorted(row["scores"], reverse=True)
        assert len(set(row["item_ids"])) == len(row["item_ids"])


def test_without_a_constraint_ids_of_no_item_are_counted_and_left_out(config, store):
    own = config_of(config.artifacts, constrained=False, beams=30, top_k=30)
    recommend_items.run(own, store)
    for row in store.read("recommendations").to_pylist():
        seen = {event[1] for event in past_of(row["user_id"], SPLITS[:2])}
        assert 0 < row["valid_share"] < 1
        assert len(row["item_ids"]) <= round(30 * row["valid_share"])
        assert row["exit_reason"] == "unfilled"
        assert not set(row["item_ids"]) & seen


def test_items_without_a_semantic_id_are_dropped_and_counted(config, store, caplog):
    events = [("u2", "new", 1, 1, "knowledge"), ("u2", "new", 0, 2, "train")]
    events += [("u0", "new", 1, 3, "knowledge"), ("u0", "i1", 1, 4, "knowledge")]
    write_interactions(store, [*the_events(), *events])
    write_items(store, [*ITEM_IDS[:5], "new", *ITEM_IDS[5:]], known=ITEM_IDS)
    write_model(config, store)
    with caplog.at_level(logging.WARNING):
        recommend_items.run(config, store)
    assert "1 items have no semantic ID, so nobody gets them, such as ['new']" in caplog.text
    assert "2 events of 2 users are of items without a semantic ID" in caplog.text
    rows = store.read("recommendations").to_pylist()
    assert [row["unknown_items"] for row in rows[:3]] == [1, 0, 1]
    assert rows[0]["source_events"] == 1
    assert rows[0]["latest_source"] == 4
    assert not any("new" in row["item_ids"] for row in rows)


def test_a_model_of_other_ids_or_other_splits_is_refused(config, store):
    write_model(config, store, until="knowledge")
    with pytest.raises(
        DataError, match=r"up to the split 'knowledge', but recommender\.until is 't"
    ):
        recommend_items.run(config, store)
    write_model(config, store, **{CODES_HASH: "other"})
    with pytest.raises(DataError, match="trained on other semantic IDs"):
        recommend_items.run(config, store)
    write_model(config, store)
    write_items(store, codes=the_codes()[::-1])
    with pytest.raises(DataError, match="trained on other semantic IDs"):
        recommend_items.run(config, store)
    shorter = the_codes()[:, :2]
    write_items(store, codes=shorter)
    write_model(config, store, **{CODES_HASH: codes_hash(pa.array(ITEM_IDS), shorter)})
    with pytest.raises(DataError, match="writes ids of 3 codes below 4, but semantic_ids has 2"):
        recommend_items.run(config, store)


def test_what_was_not_made_and_users_who_stand_twice_are_named(config, store, tmp_path):
    store.set_aside("recommender")
    with pytest.raises(DataError, match="recommender has not been made"):
        recommend_items.run(config, store)
    twice = pa.table([[*USER_IDS, "u4"], [{}] * (NUM_USERS + 1)], schema=USERS)
    store.plan("users", {"twice": True}).write(twice)
    with pytest.raises(DataError, match=r"users: 1 ids stand twice, such as \['u4'\]"):
        recommend_items.run(config, store)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("none.csv", None, "recommendation.withdrawn: .*none.csv does not exist"),
        ("a.csv", "item\ni1\n", "'item_id' is missing; the nearest is 'item'; rename"),
        (
            "a.parquet",
            "item_id\ni1\n",
            "is text, not Parquet; call it .csv or .tsv, or correct recommendation.with",
        ),
    ],
)
def test_a_table_of_withdrawn_items_that_cannot_be_read_is_named(tmp_path, name, text, complaint):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=complaint):
        read_withdrawn(tmp_path / name, pa.array(ITEM_IDS))


def test_ids_of_withdrawn_items_may_be_numbers(tmp_path):
    pq.write_table(pa.table({"item_id": [7, 5, None, 7]}), tmp_path / "a.parquet")
    ids = pa.array(["5", "6", "7"])
    assert read_withdrawn(Path(tmp_path / "a.parquet"), ids).tolist() == [0, 2]
    assert read_withdrawn(None, ids).tolist() == []


def test_a_model_that_the_job_before_has_trained_is_taken(config, store):
    tree = config.model_dump(mode="json")
    tree["recommender"]["training"] |= {"max_epochs": 1}
    trained = RunConfig.model_validate(tree)
    train_recommender.run(trained, store)
    recommend_items.run(trained, store)
    check_rows(store, trained, SPLITS[:2])


@pytest.mark.ray
def test_through_ray_lists_are_the_same(config, store, monkeypatch):
    recommend_items.run(config, store)
    alone = store.read("recommendations")
    store.set_aside("recommendations")
    monkeypatch.undo()
    recommend_items.run(config, store)
    assert store.read("recommendations").equals(alone)


def test_a_gpu_that_is_not_there_is_a_config_error(config, store):
    with pytest.raises(ConfigError, match="device is cuda, but Ray has no GPU"):
        recommend_items.run(config_of(config.artifacts, device="cuda"), store)
