"""From plain decoding to ours: which steps there are, and what they are made of."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from features import draft_figures
from jobs.compare_decoding import ARMS
from jobs.comparison_summary import lines
from jobs.waterfall import Step, steps_of, waterfall
from pipeline.config import EngineSettings
from pipeline.config_file import load_config
from pipeline.decoding_config import RelaxedSettings
from pipeline.engine.budget import FREE
from pipeline.engine.engine import Engine
from pipeline.engine.processors import Processors
from pipeline.engine.rules import Strict
from pipeline.engine.stops import Stops
from pipeline.engine.types import ROOT, DraftTree, NoDraft, Request
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.fixed_draft import FixedDraft, most_probable_path

DEMO = Path(__file__).parents[2] / "conf" / "demo.yaml"
CHAIN, OWN, GLOBAL = "group pool", "+ own text", "+ global pool"
RELAXED = "+ relaxed (k 2, p 0.1)"


def tree_of(parents, survival):
    size = len(parents)
    return DraftTree(
        np.arange(10, 10 + size, dtype=np.int32),
        np.array(parents, np.int32),
        np.array(survival, np.float32),
        np.ones(size, np.int8),
        np.arange(size, dtype=np.int32),
    )


@pytest.fixture
def config_with():
    demo_config = load_config(DEMO)

    def make(relaxed=None, rule="relaxed", **drafts):
        return demo_config.model_copy(
            update={
                "drafts": demo_config.drafts.model_copy(update=drafts),
                "generation": demo_config.generation.model_copy(
                    update={"relaxed": relaxed or RelaxedSettings(), "rule": rule}
                ),
            }
        )

    return make


def names_of(steps):
    return [step.step for step in steps]


def test_each_step_changes_one_thing(config_with):
    steps = steps_of(config_with(), has_earlier=False)
    assert names_of(steps) == [
        "plain", CHAIN, OWN, GLOBAL, "+ tree", "+ draft budget", RELAXED,
    ]  # fmt: skip
    chains = [step for step in steps if step.is_chain]
    assert [set(step.sources) for step in chains] == [
        {"group"}, {"group", "own"}, {"group", "own", "global"},
    ]  # fmt: skip
    assert set(steps[4].sources) == set(chains[-1].sources)
    assert [step.arm for step in steps if not step.is_extra] == ["plain", "strict", "relaxed"]
    assert len({step.arm for step in steps}) == len(steps)
    assert all(step.adds.endswith(".") for step in steps)


def test_a_refresh_has_a_step_for_earlier_texts(config_with):
    steps = steps_of(config_with(), has_earlier=True)
    assert names_of(steps)[1:5] == [CHAIN, OWN, GLOBAL, "+ earlier text"]
    assert set(steps[4].sources) == {"group", "own", "global", "previous"}


def test_sources_that_are_not_drafted_from_have_no_step(config_with):
    steps = steps_of(config_with(sources=["own", "global"]), has_earlier=True)
    assert names_of(steps)[1:4] == ["own text", GLOBAL, "+ tree"]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"top_k": 5, "floor": 0.01}, ["+ relaxed (k 5, p 0.01)"]),
        ({"criterion": "top_k_delta"}, ["+ relaxed (k 2, delta 0.3)"]),
        ({"criterion": "typical"}, ["+ relaxed (typical, 0.09)"]),
        (
            {"criterion": "budget", "nats_per_token": 0.1},
            [RELAXED, "+ quality budget (0.1 nats)"],
        ),
    ],
)
def test_the_rule_at_the_end_is_the_one_that_is_set(settings, names, config_with):
    steps = steps_of(config_with(RelaxedSettings(**settings)), has_earlier=False)
    last = steps[-len(names) :]
    assert names_of(last) == names
    assert last[-1].arm == "relaxed"
    assert not last[-1].is_extra
    assert all(step.is_extra and step.is_budgeted for step in last[:-1])


@pytest.mark.parametrize("rule", ["strict", "sampled"])
def test_a_run_that_does_not_relax_has_no_relaxed_step(rule, config_with):
    budget = RelaxedSettings(criterion="budget")
    for relaxed in (None, budget):
        steps = steps_of(config_with(relaxed, rule), has_earlier=False)
        assert names_of(steps)[-2:] == ["+ tree", "+ draft budget"]
        assert steps[-1].arm == "strict"
    assert names_of(steps_of(config_with(rule=rule, source="model"), False)) == [
        "plain", "draft model",
    ]  # fmt: skip


def test_what_a_step_replaces_is_named(config_with):
    steps = steps_of(config_with(RelaxedSettings(criterion="budget")), has_earlier=False)
    assert steps[-3].adds.endswith("pay for the time that they take, instead of 8 always.")
    assert steps[-1].adds.startswith("Instead of that rule: a drafted token stays also if")


def test_where_a_model_drafts_only_arms_of_the_comparison_are_steps(config_with):
    steps = steps_of(config_with(source="model"), has_earlier=False)
    assert names_of(steps) == ["plain", "draft model", RELAXED]
    assert {step.arm for step in steps} <= set(ARMS)


def test_ratios_are_to_the_plain_step():
    steps = [Step("plain", "Plain.", "plain"), Step("+ more", "More.", "x", ("own",))]
    speeds = {"plain": 20.0, "x": 30.0}
    measured = {
        arm: {"tokens_per_second": speed, "tokens_per_forward": 1.5}
        for arm, speed in speeds.items()
    }
    assert waterfall(steps, measured) == [
        {
            "step": "plain", "adds": "Plain.", "tokens_per_second": 20.0, "ratio_to_plain": 1.0,
            "tokens_per_forward": 1.5,
        },
        {
            "step": "+ more", "adds": "More.", "tokens_per_second": 30.0, "ratio_to_plain": 1.5,
            "tokens_per_forward": 1.5,
        },
    ]  # fmt: skip


def test_without_any_plain_token_there_is_no_ratio():
    steps = [Step("plain", "Plain.", "plain"), Step("+ more", "More.", "x", ("own",))]
    measured = {
        arm: {"tokens_per_second": 0.0, "tokens_per_forward": 0.0} for arm in ("x", "plain")
    }
    found = waterfall(steps, measured)
    assert [one["ratio_to_plain"] for one in found] == [None, None]
    told = list(lines({"arms": [], "waterfall": found, "divergences": []}))
    assert told[0].endswith("0.0 tokens/s, unknown of plain")
    assert draft_figures.waterfall(found).count("n/a") >= 2


def test_the_path_takes_the_likeliest_child_each_time():
    tree = tree_of([ROOT, 0, ROOT, 0, 1, 3, 4], [0.9, 0.6, 0.55, 0.5, 0.4, 0.4, 0.3])
    path = most_probable_path(tree, 8)
    assert path.token_ids.tolist() == [10, 11, 14, 16]
    assert path.parents.tolist() == [ROOT, 0, 1, 2]
    assert path.survival.tolist() == pytest.approx([0.9, 0.6, 0.4, 0.3])
    assert path.buckets.tolist() == [0, 1, 4, 6]
    assert most_probable_path(tree, 1).token_ids.tolist() == [10]
    assert len(most_probable_path(tree, 0)) == len(most_probable_path(tree_of([], []), 3)) == 0


@dataclass
class Row:
    request: Request
    tokens: np.ndarray


def seconds_of(drafter, rows):
    """Of the quickest of many drafts."""
    times = []
    for _ in range(300):
        began = time.perf_counter()
        drafter.propose(rows, 32)
        times.append(time.perf_counter() - began)
    return min(times)


def test_a_chain_takes_about_as_long_to_draft_as_a_tree():
    random = np.random.default_rng(0)
    texts = random.integers(3, 9, (8, 400)).astype(np.int32)
    rows = [Row(Request(str(n), text[:300], 200), text) for n, text in enumerate(texts)]
    pools = PoolDrafter(None, 16, ["own"])
    chain, tree = (FixedDraft(pools, 8, is_chain) for is_chain in (True, False))
    assert seconds_of(chain, rows) < 3 * seconds_of(tree, rows)


@pytest.mark.parametrize("is_chain", [True, False])
def test_a_fixed_draft_has_its_size_and_never_changes_the_text(is_chain, tiny_model):
    random = np.random.default_rng(2)
    prompts = [np.tile(random.integers(3, 61, 12), 4).astype(np.int32) for _ in range(3)]
    rows = [Request(str(n), prompt, 24) for n, prompt in enumerate(prompts)]
    settings = EngineSettings(batch_rows=2, max_length=128, prefill_tokens=64, draft_nodes=12)
    stops = Stops([2])
    engine = Engine(tiny_model("llama"), settings, stops, Processors(stops.ids), costs=FREE)
    texts = {}
    drafter = FixedDraft(PoolDrafter(None, 16, ["own"]), 5, is_chain)
    for name, own in (("plain", NoDraft()), ("fixed", drafter)):
        engine.use(own, Strict(), FREE)
        texts[name] = {done.key: done for done in engine.generate(rows)}
    drafted = 0
    for key, done in texts["fixed"].items():
        assert done.token_ids.tolist() == texts["plain"][key].token_ids.tolist()
        by_depth = done.statistics.drafted_by_depth
        assert not by_depth[5:].any()
        assert by_depth.sum() <= 5 * done.statistics.forward_passes
        if is_chain:  # no more nodes at a depth than above it
            assert (np.diff(by_depth) <= 0).all()
            assert by_depth.max() <= done.statistics.forward_passes
        drafted += by_depth.sum()
    assert drafted > 0
