"""The profile of drafts: nodes of an engine, their curve, and the file that a forecast reads."""

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest

from jobs import measure_drafts
from jobs.cli import ROOT
from jobs.decoding_arms import engine_arm
from jobs.measure_drafts import Watched
from pipeline.config_file import load_config
from pipeline.cost_cache import write_costs
from pipeline.engine.budget import FREE, CostTable
from pipeline.engine.engine import Engine
from pipeline.engine.processors import Processors
from pipeline.engine.rules import Strict
from pipeline.engine.stops import Stops
from pipeline.engine.types import NoDraft, Request
from pipeline.errors import DataError
from pipeline.forecast.draft_nodes import DraftNodes, stored
from pipeline.forecast.profiles import curves_of, measured, named_curves
from pipeline.forecast.step_time import MeasuredSteps
from pipeline.store import Store

STOPS = Stops([])
NEW = 12
RULES = ("strict", "relaxed", "budget")


class Half:
    """Drafts what the model will say and wrong tokens beside it, and is as sure of both."""

    def __init__(self, oracle):
        self.oracle, self.observed = oracle, 0

    def propose(self, rows, max_nodes):
        return self.oracle.propose(rows, max_nodes)

    def observe(self, trees, outcomes):
        self.observed += 1


@pytest.fixture
def config(tmp_path):
    return load_config(
        ROOT / "conf/bench.yaml",
        [f"artifacts={tmp_path}", "benchmark.profile_rows=3", "engine.draft_nodes=8"],
    )


@pytest.fixture
def engine(tiny_model, config):
    sizes = config.engine.model_copy(update={"batch_rows": 2, "max_length": 64})
    return Engine(tiny_model("llama"), sizes, STOPS, Processors(STOPS.ids), costs=FREE)


def requests_of(kind, count=4):
    random = np.random.default_rng(len(kind))
    return [
        Request(f"{kind} {n}", random.integers(3, 60, 6 + n).astype(np.int32), NEW)
        for n in range(count)
    ]


@pytest.fixture
def drafter(engine, oracle_drafter):
    """Who knows what the model will say."""
    rows = [*requests_of("user"), *requests_of("item")]
    plain = engine_arm(engine, NoDraft(), Strict())(rows)
    return lambda: Half(oracle_drafter({key: text.tolist() for key, text in plain.texts.items()}))


def test_nodes_that_are_kept_are_what_the_engine_accepted(engine, drafter):
    inner = drafter()
    watched = Watched(inner)
    arm = engine_arm(engine, watched, Strict(), FREE)
    for kind in ("user", "item"):
        outcome, nodes = arm(requests_of(kind)), watched.take()
        rows = [done.statistics for done in outcome.generations.values()]
        assert nodes.row_steps == outcome.num_passes
        assert len(nodes.survival) == sum(row.drafted_by_source.sum() for row in rows)
        assert nodes.is_kept.sum() == sum(row.accepted_by_source.sum() for row in rows)
        assert outcome.num_tokens == 4 * NEW
        assert 0 < nodes.is_kept.sum() < len(nodes.survival)
    assert inner.observed


def test_a_curve_takes_the_surest_nodes_of_all_steps_first():
    random = np.random.default_rng(0)
    survival = random.random(400)
    nodes = DraftNodes(survival, random.random(400) < survival**2, 80)
    curve = nodes.curve("here")
    kept = [good for _, good in sorted(zip(-survival, nodes.is_kept, strict=True))]
    for count in (10, 40, 150, 400):
        wanted = sum(kept[:count]) / 80
        found = float(curve.extra_at(np.array([count / 80]))[0])
        assert found == pytest.approx(wanted, abs=0.05)
    assert curve.extra[-1] == pytest.approx(nodes.is_kept.sum() / 80)
    assert (np.diff(np.diff(curve.extra) / np.diff(curve.drafts)) <= 1e-9).all()
    both = DraftNodes.together([nodes, nodes])
    assert both.row_steps == 160
    assert np.allclose(both.curve("twice").extra[-1], curve.extra[-1])


def test_few_nodes_are_no_reason_to_fail_and_none_is_one():
    one = DraftNodes(np.array([0.5]), np.array([True]), 100)
    assert stored(one, "here") == {"drafts": [0.0, 0.01], "extra": [0.0, 0.01], "row_steps": 100}
    with pytest.raises(DataError, match="nothing was drafted"):
        DraftNodes(np.empty(0), np.empty(0, bool), 3).curve("here")


# The job.


def put(store, name, files=None, **settings):
    def fill(folder):
        for file, value in (files or {}).items():
            (folder / file).write_text(json.dumps(value))

    inputs = ["groups", "waves/2/pools"] if name == "benchmark" else []
    store.plan(name, settings, inputs).write_files(fill, 1)


def a_benchmark():
    """Plain steps at batch 16 hold 60 tokens of prompts for each row; each row has ten passes."""
    return {
        "arms": [
            {"arm": arm, "batch": batch, "kind": kind, "rows": 4, "new_tokens": 40,
             "tokens_per_forward": 1.0, "tokens_per_second": 50.004,
             "step": {"steps": 10, "packed_tokens": 4.0 + 24.0 * (batch == 16)}}
            for arm in ("plain", *RULES, "transformers.generate")
            for batch in (1, 16)
            for kind in ("user", "item", "all")
        ]
    }  # fmt: skip


@pytest.fixture
def job(monkeypatch, tmp_path, config, engine, drafter):
    """Runs the job without its model, its pools and what `make bench` builds of them."""
    store = Store(tmp_path / "bench")
    for name in ("groups", "waves/2/pools"):
        put(store, name)
    pools = SimpleNamespace(name="waves/2/pools")
    identity = SimpleNamespace(model="m", tokenizer=SimpleNamespace(fingerprint="t"))
    table = CostTable(
        np.array([8.0]), np.array([1.0, 16.0]), np.array([1.0, 9.0]), np.ones((1, 2, 2)) * 1e-3
    )
    write_costs(tmp_path / "costs.json", table)
    stand_ins = {
        "identify": lambda *_: identity,
        "prepare": lambda *_: pools,
        "requests_by_kind": lambda *_: {kind: requests_of(kind) for kind in ("user", "item")},
        "make_engine": lambda *_: engine,
        "make_drafter": lambda *_: drafter(),
        "open_pools": lambda *_: SimpleNamespace(num_documents=7),
        "load_model": lambda *_: None,
        "cost_file": lambda *_: tmp_path / "costs.json",
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(measure_drafts, name, stand_in)

    def run(capsys):
        measure_drafts.run(config, store)
        last = json.loads(capsys.readouterr().out.splitlines()[-1])
        file = tmp_path / "bench/draft_profile/profile.json"
        return last, json.loads(file.read_text()), file

    run.bench = lambda: put(
        store, "benchmark", {"benchmark.json": a_benchmark()}, benchmark=config.benchmark,
        engine=config.engine, generation=config.generation, drafts=config.drafts, model="m",
    )  # fmt: skip
    run.store = store
    return run


def form(value):
    """A JSON value's form: names, and kinds of what lists hold, but not how much."""
    if isinstance(value, dict):
        return {name: form(part) for name, part in value.items()}
    if isinstance(value, list):
        return [form(value[0])] if value else []
    return "number" if isinstance(value, int | float) else type(value).__name__


def test_a_profile_has_the_form_of_the_one_that_is_shipped(job, capsys):
    job.bench()
    last, profile, file = job(capsys)
    assert form(profile) == form(measured())
    assert set(last) == set(RULES)
    assert "pools of 7 texts" in profile["about"]
    assert profile["rows"]["user"]["prompt_tokens"] == 7.5
    assert profile["rows"]["user"]["lengths"] == [NEW] * 3
    # By hand: 28 packed tokens in each of 10 steps, less 40 passes, for 4 rows.
    assert profile["rows"]["user"]["shared_tokens"] == 7.5 - 60.0
    assert {(one["arm"], one["batch"]) for one in profile["speeds"]} == {
        (arm, batch) for arm in ("plain", *RULES) for batch in (1, 16)
    }
    assert MeasuredSteps.from_json(profile["costs"]).seconds(4, np.array([8.0]), 10.0) == 1e-3
    for rule, curve in curves_of(str(file)).items():
        own = profile["curves"][rule]["all"]
        assert np.allclose(curve.extra_at(np.array(own["drafts"])), own["extra"])
        passes = sum(profile["curves"][rule][kind]["row_steps"] for kind in ("user", "item"))
        assert own["row_steps"] == passes
        # Every token but a pass's own was drafted; the last pass of a row may be cut short.
        assert 0 <= passes * (1 + curve.extra[-1]) - 6 * NEW <= 6


def test_shipped_and_own_profile_are_read_alike(tmp_path):
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(measured()))
    own, named = curves_of(str(file)), named_curves()
    assert list(own) == list(named) == list(RULES)
    for rule in RULES:
        assert np.array_equal(own[rule].extra, named[rule].extra)
        assert np.array_equal(named[rule].drafts, measured()["curves"][rule]["all"]["drafts"])


@pytest.mark.parametrize("change", ["absent", "pools", "engine"])
def test_a_benchmark_of_something_else_is_left_out(job, capsys, caplog, change):
    if change != "absent":
        job.bench()
    if change == "pools":
        put(job.store, "waves/2/pools", other=1)
    if change == "engine":
        file = job.store.path("benchmark") / "manifest.json"
        manifest = json.loads(file.read_text())
        manifest["settings"]["engine"]["batch_rows"] = 3
        file.write_text(json.dumps(manifest))
    with caplog.at_level(logging.WARNING):
        _, profile, file = job(capsys)
    assert "run `laser bench` first" in caplog.text
    assert (profile["speeds"], profile["costs"]) == ([], None)
    assert profile["rows"]["item"]["shared_tokens"] is None
    assert list(curves_of(str(file))) == list(RULES)


@pytest.mark.parametrize(
    "curves",
    [
        {"strict": {"all": {"drafts": [0.0, 1.0], "extra": [0.0]}}},
        {"strict": {"all": {"drafts": [0.0, 1.0], "extra": [0.0, 2.0]}}},
        {"strict": {"user": {"drafts": [0.0, 1.0], "extra": [0.0, 0.5]}}},
        {"strict": {"all": {"drafts": "many", "extra": [0.0, 0.5]}}},
        {},
        [],
    ],
)
def test_damaged_profiles_are_refused(tmp_path, curves):
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"curves": curves}))
    with pytest.raises(DataError, match=r"profile\.json"):
        curves_of(str(file))
