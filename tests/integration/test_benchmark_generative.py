"""All arms of the benchmark on a tiny catalog; what it says of them, by hand."""

import json

import numpy as np
import pyarrow as pa
import pytest

from jobs import benchmark_generative
from jobs.generative_arms import ARMS, FREE
from jobs.generative_events import draw_events, popular_lists
from jobs.generative_summary import quality_of, ratios, speeds_of
from jobs.generative_table import lines
from jobs.train_recommender import known_events, read_inputs
from pipeline.config import RunConfig
from pipeline.generative.event_log import NO_ITEM
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.list_metrics import Interval
from pipeline.schemas import FEATURES, INTERACTIONS, ITEMS, SEMANTIC_IDS, USERS
from pipeline.store import Store

LEVELS, CODES, NUM_ITEMS, NUM_USERS, MOST = 3, 4, 40, 30, 4
NUM_COLD = 6  # the last items
ITEM_IDS = [f"i{n}" for n in range(NUM_ITEMS)]
RAW = "controls/raw_text/features"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    training = {"max_epochs": 1, "batch_size": 16}
    return RunConfig.model_validate(
        {
            "run": "test",
            "artifacts": tmp_path_factory.mktemp("benchmark"),
            "catalog": {"source": "movielens", "path": "nowhere"},
            "language_model": {"path": "nowhere"},
            "encoder": {"path": "nowhere"},
            "semantic_ids": {"content": "raw_text"},
            "recommender": {
                "hidden_dim": 16,
                "layers": 1,
                "heads": 2,
                "history_length": MOST,
                "training": training,
            },
            "aligned_drafter": {
                "hidden_dim": 8,
                "heads": 2,
                "teacher_contexts": 20,
                "teacher_beams": 4,
                "training": training,
            },
            "retriever": {"dim": 8, "training": training},
            "recommendation": {"device": "cpu", "draft_beams": 4},
            "generative_benchmark": {
                "events": 20,
                "widths": [5, 10, 12],
                "timed_users": 3,
                "batch_sizes": [4],
                "swept_events": 6,
            },
        }
    )


def write_catalog(store):
    rng = np.random.default_rng(0)
    names = [f"u{n}" for n in range(NUM_USERS)]
    store.plan("users", {}).write(pa.table([names, [{}] * NUM_USERS], schema=USERS))
    items = pa.table([ITEM_IDS, ITEM_IDS, [{}] * NUM_ITEMS], schema=ITEMS)
    store.plan("items", {}).write(items)
    every = np.stack(np.unravel_index(np.arange(CODES**LEVELS), [CODES] * LEVELS), 1)
    codes = rng.permutation(every)[:NUM_ITEMS].tolist()
    warm = [n < NUM_ITEMS - NUM_COLD for n in range(NUM_ITEMS)]
    table = pa.table([ITEM_IDS, codes, warm, [False] * NUM_ITEMS], schema=SEMANTIC_IDS)
    store.plan("semantic_ids", {}).write(table, {"codebook_size": CODES})
    rows = []
    for time in range(400):
        is_late = time >= 300
        item = int(rng.integers(NUM_ITEMS if is_late else NUM_ITEMS - NUM_COLD))
        split = "test" if is_late else "valid" if time >= 250 else "knowledge"
        rows.append((f"u{rng.integers(NUM_USERS)}", f"i{item}", 5.0, 1, time, split))
    columns = [list(column) for column in zip(*rows, strict=True)]
    store.plan("interactions", {}).write(pa.table(columns, schema=INTERACTIONS))
    vectors = rng.normal(size=(NUM_ITEMS, 6)).astype(np.float32).tolist()
    text = [["item"] * NUM_ITEMS, ITEM_IDS, ["own"] * NUM_ITEMS, *[[0] * NUM_ITEMS] * 3, ITEM_IDS]
    store.plan(RAW, {}).write(pa.table([*text, vectors], schema=FEATURES))


@pytest.fixture(scope="module")
def store(config):
    store = Store(config.artifacts / config.run)
    write_catalog(store)
    return store


@pytest.fixture(scope="module")
def benchmark(config, store):
    with pytest.MonkeyPatch.context() as patch:
        for stage in ("build_catalog", "train_embeddings", "assign_semantic_ids"):
            patch.setattr(getattr(benchmark_generative, stage), "run", lambda *_: None)
        benchmark_generative.run(config, store)
    return json.loads((store.path("generative_benchmark") / "benchmark.json").read_text())


def test_every_arm_is_measured_at_both_widths_and_strict_ones_are_beam_search(benchmark):
    arms = {(own["arm"], own["beams"]): own for own in benchmark["arms"]}
    wide = {("beam", 12), ("NEZHA", 12)}
    assert set(arms) == {(name, width) for name in ARMS | FREE for width in (5, 10)} | wide
    assert benchmark["relations"][0]["holds"], benchmark["relations"][0]
    for (name, width), own in arms.items():
        if name in ARMS and ARMS[name].same_as:
            base = arms[ARMS[name].same_as, width]
            assert own["unlike"] == 0
            assert own["quality"] == base["quality"]
            assert own["calls"] < LEVELS == base["calls"]
        if name not in FREE:
            assert own["valid_share"] == 1.0
    assert arms["NEZHA", 5]["calls"] == 1
    assert [own["name"] for own in benchmark["relations"]] == [f"R{n}" for n in range(1, 9)]


def test_the_table_tells_all_of_it(benchmark):
    told = "\n".join(lines(benchmark))
    for name in [*ARMS, *FREE, "popularity", "R8", "fewer_target_calls"]:
        assert name in told
    assert "nan" not in told


def test_events_know_what_was_before_them_and_popular_lists_leave_it_out(store, config):
    inputs = read_inputs(store)
    trie = ItemTrie(np.arange(NUM_ITEMS), inputs.codes, inputs.is_warm)
    events = draw_events(inputs, trie, 249, 1000, MOST, 0)
    rows = store.read("interactions").to_pylist()
    assert len(events) == sum(row["split"] == "test" for row in rows)
    assert (events.is_warm == (events.targets < NUM_ITEMS - NUM_COLD)).all()
    popular = popular_lists(trie, known_events(inputs.log, config).items, events, NUM_ITEMS)
    known = [row for row in rows if row["split"] == "knowledge"]
    times = {(r["user_id"], r["item_id"], r["timestamp"]) for r in rows if r["split"] == "test"}
    for n in range(len(events)):
        user, item = f"u{events.users[n]}", f"i{events.targets[n]}"
        candidates = [time for u, i, time in times if (u, i) == (user, item)]
        before = {
            time: [r["item_id"] for r in rows if r["user_id"] == user and r["timestamp"] < time]
            for time in candidates
        }
        history = [f"i{i}" for i in events.histories[n] if i != NO_ITEM]
        assert history in [own[-MOST:] for own in before.values()]
        leaves = trie.leaves_of(np.arange(NUM_ITEMS)) - trie.first_leaf
        out = {f"i{i}" for i in range(NUM_ITEMS) if events.excluded[n, leaves[i]]}
        assert out in [set(own) for own in before.values()]
        counts = [sum(r["item_id"] == f"i{i}" for r in known) for i in popular[n]]
        fresh = NUM_ITEMS - len(out)
        assert counts[:fresh] == sorted(counts[:fresh], reverse=True)
        assert not out & {f"i{i}" for i in popular[n, :fresh]}


def test_events_that_are_not_later_than_what_was_trained_on_are_left_out(store):
    inputs = read_inputs(store)
    trie = ItemTrie(np.arange(NUM_ITEMS), inputs.codes, inputs.is_warm)
    rows = store.read("interactions").to_pylist()
    wanted = sum(row["split"] == "test" and row["timestamp"] > 350 for row in rows)
    assert len(draw_events(inputs, trie, 350, 1000, MOST, 0)) == wanted < 100
    assert len(draw_events(inputs, trie, 350, 7, MOST, 0)) == 7


def test_quality_is_told_of_warm_cold_and_all_events(store):
    inputs = read_inputs(store)
    trie = ItemTrie(np.arange(NUM_ITEMS), inputs.codes, inputs.is_warm)
    events = draw_events(inputs, trie, 249, 1000, MOST, 0)
    lists = np.where(events.is_warm[:, None], events.targets[:, None], -1)
    lists = np.pad(lists, ((0, 0), (1, 8)), constant_values=-1)
    quality = quality_of(lists, events, 0)
    assert quality["warm"]["recall@10"] == (1.0, 1.0, 1.0)
    assert quality["cold"]["recall@10"] == (0.0, 0.0, 0.0)
    assert quality["overall"]["recall@10"].mean == pytest.approx(events.is_warm.mean())
    assert quality["warm"]["ndcg@10"].mean == pytest.approx(1 / np.log2(3))
    assert "recall@50" not in quality["warm"]  # lists end before


def test_ratios_are_medians_on_the_same_users():
    spent = {
        ("beam", 5, 1): np.array([8.0, 80.0, 8.0]),
        ("NEZHA", 5, 1): np.array([2.0, 10.0, 4.0]),
    }
    spent |= {("beam", 5, 4): np.array([6.0]), ("NEZHA", 5, 4): np.array([1.0])}
    spent |= {("exhaustive", 5, batch): spent["beam", 5, batch] / 2 for batch in (1, 4)}
    speeds = {own["arm"]: own for own in speeds_of(spent)}
    assert (speeds["NEZHA"]["speedup"], speeds["NEZHA"]["speedup_at_best"]) == (4.0, 6.0)
    assert (speeds["NEZHA"]["best_batch"], speeds["NEZHA"]["users_per_second"]) == (4, 1000.0)
    calls = {"beam": 4.0, "exhaustive": 2.0}
    benchmark = {
        "arms": [{"arm": name, "beams": 5, "calls": own} for name, own in calls.items()],
        "speeds": list(speeds.values()),
    }
    found = ratios(benchmark, [5], ["exhaustive"], Interval(0.0, -0.05, 0.05))
    assert (found["fewer_target_calls"], found["strict_speedup"]) == (2.0, 2.0)
    assert found["missed"] == ["nezha_speedup_at_widest", "nezha_recall_gain_at_widest"]
