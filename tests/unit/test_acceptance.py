"""What the report says of drafts, against sums over rows one by one."""

import json
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from features import acceptance
from features.report import summarise
from features.step_times import step_times
from pipeline.engine.statistics import EngineStatistics
from pipeline.schemas import KNOWLEDGE, SCHEMAS
from pipeline.store import MANIFEST, Store


def blank_rows(rows):
    """KNOWLEDGE with what the rows leave out empty."""
    empty = {
        field.name: [] if pa.types.is_list(field.type) else "" if field.type == pa.string() else 0
        for field in KNOWLEDGE
    }
    return pa.Table.from_pylist([empty | row for row in rows], schema=KNOWLEDGE)


@pytest.fixture
def rows():
    """Forty rows of three groups and three rules; what is drafted is drawn at random."""
    random = np.random.default_rng(11)
    found = []
    for number in range(40):
        rule = ("plain", "strict", "relaxed")[number % 3]
        drafted = random.integers(0, 9, 10) * (rule != "plain")
        accepted = random.integers(0, drafted + 1)
        chances = drafted * (np.arange(10) + random.random(10)) / 10
        lists = {"drafted_by_chance": drafted, "accepted_by_chance": accepted}
        found.append(
            {
                "kind": "user" if number < 25 else "item",
                "entity_id": str(number),
                "group_id": "a" if number < 10 else "b",
                "rule": rule,
                "token_ids": list(range(number)),
                "forward_passes": int(random.integers(0, 9)),
                "drafted_by_source": [int(drafted.sum()), 0, 0, 0, 0] if number % 4 else [],
                "accepted_by_source": [int(accepted.sum()), 0, 0, 0, 0] if number % 4 else [],
                "chance_by_decile": chances.tolist(),
                **{name: value.tolist() for name, value in lists.items()},
            }
        )
    return found


def test_groups_are_those_of_a_sum_by_hand(rows):
    by_hand = defaultdict(lambda: np.zeros(5, np.int64))
    for row in rows:
        by_hand[row["kind"], row["group_id"]] += [
            *(1, sum(row["drafted_by_source"]), sum(row["accepted_by_source"])),
            *(len(row["token_ids"]), row["forward_passes"]),
        ]
    found = acceptance.by_group(blank_rows(rows))
    assert {(row["kind"], row["group_id"]) for row in found} == set(by_hand)
    for row in found:
        size, drafted, accepted, tokens, passes = by_hand[row["kind"], row["group_id"]]
        assert (row["rows"], row["drafted"], row["accepted"]) == (size, drafted, accepted)
        assert row["rate"] == accepted / drafted
        assert row["tokens_per_forward"] == tokens / passes
    assert [(row["kind"], row["group_id"]) for row in found] == [
        ("user", "b"), ("item", "b"), ("user", "a"),
    ]  # fmt: skip
    json.dumps(found)


def test_a_group_without_drafts_or_passes_has_no_rates():
    [group] = acceptance.by_group(blank_rows([{"kind": "user", "group_id": "a"}]))
    assert group == {
        "kind": "user", "group_id": "a", "rows": 1, "drafted": 0, "accepted": 0,
        "rate": None, "tokens_per_forward": None,
    }  # fmt: skip
    assert acceptance.by_group(KNOWLEDGE.empty_table()) == []


def test_calibration_is_that_of_a_sum_by_hand(rows):
    found = acceptance.calibration(blank_rows(rows))["by_rule"]
    assert [one["rule"] for one in found] == ["relaxed", "strict"]  # plain rows drafted nothing
    for one in found:
        assert [(b["low"], b["high"]) for b in one["bins"]] == [
            (tenth / 10, (tenth + 1) / 10) for tenth in range(10)
        ]
        for tenth, bin_ in enumerate(one["bins"]):
            own = [row for row in rows if row["rule"] == one["rule"]]
            drafted = sum(row["drafted_by_chance"][tenth] for row in own)
            accepted = sum(row["accepted_by_chance"][tenth] for row in own)
            chances = sum(row["chance_by_decile"][tenth] for row in own)
            assert (bin_["drafted"], bin_["accepted"]) == (drafted, accepted)
            assert bin_["rate"] == accepted / drafted
            assert bin_["expected"] == pytest.approx(chances / drafted, rel=1e-5)
            assert bin_["low"] <= bin_["expected"] <= bin_["high"]


def test_a_tenth_without_drafts_has_no_rate():
    row = {"rule": "strict", "drafted_by_chance": [0] * 9 + [4], "accepted_by_chance": [0] * 10}
    rows = blank_rows([row | {"chance_by_decile": [0.0] * 9 + [3.8]}])
    [found] = acceptance.calibration(rows)["by_rule"]
    assert found["bins"][0] | {"rate": None, "expected": None} == found["bins"][0]
    assert found["bins"][9]["rate"] == 0.0
    assert found["bins"][9]["expected"] == pytest.approx(0.95)


def test_without_drafts_there_is_nothing_to_calibrate():
    assert acceptance.calibration(blank_rows([{"rule": "plain"}])) == {"by_rule": []}
    assert acceptance.calibration(KNOWLEDGE.empty_table()) == {"by_rule": []}


def steps_fact(steps, written):
    return {
        "steps": {
            "steps": steps, "rows": 3 * steps, "packed_tokens": 9, "draft": 1.0, "forward": 5.0,
            "verify": 0.5, "bookkeeping": 0.25, "decoding": 6.0, "decoding_overhead": 1.0,
            "rows_written": written,
        }
    }  # fmt: skip


def run_of_waves(folder, facts):
    """A run whose waves, of two rows each, have such facts."""
    store = Store(folder)
    names = [f"waves/{wave}/knowledge" for wave in range(len(facts))]
    for wave, (name, own) in enumerate(zip(names, facts, strict=True)):
        ids = {"wave": wave, "rule": "strict", "kind": "user"}
        table = blank_rows([ids | {"entity_id": f"{wave}{n}"} for n in range(2)])
        store.plan(name, {}).write(table)
        path = store.path(name) / MANIFEST
        path.write_text(json.dumps(json.loads(path.read_text()) | {"facts": own}))
    for name in ("users", "items", "interactions", "embeddings", "groups", "features"):
        store.plan(name, {}).write(SCHEMAS[name][0].empty_table())
    whole = pa.concat_tables([store.read(name) for name in names])
    store.plan("knowledge", {}, inputs=names).write(whole)
    return store


def test_steps_are_told_wave_by_wave_and_how_many_rows_they_are_of(tmp_path):
    facts = [{}, steps_fact(10, 2), steps_fact(0, 0), steps_fact(4, 1)]
    found = step_times(run_of_waves(tmp_path / "r", facts))
    parts = {"draft": 1.0, "forward": 5.0, "verify": 0.5, "bookkeeping": 0.25}
    assert found == {
        "by_wave": [
            {
                "wave": wave, "steps": steps, "rows_per_step": 3.0, "seconds_by_part": parts,
                "rows": 2, "rows_timed": written,
            }
            for wave, steps, written in ((1, 10, 2), (3, 4, 1))
        ]
    }  # fmt: skip


def test_an_older_run_has_no_steps_and_no_waterfall(tmp_path):
    store = run_of_waves(tmp_path / "r", [{}, {}])
    report = summarise(store)
    assert report["steps"] is None
    assert report["waterfall"] is None
    assert report["calibration"] == {"by_rule": []}
    assert [group["rows"] for group in report["acceptance"]["by_group"]] == [4]
    step = {"step": "plain", "tokens_per_second": 9.0, "ratio_to_plain": 1.0}
    step["tokens_per_forward"] = 1.0
    comparison = {"rows": 0, "arms": [], "texts": [], "waterfall": [step]}
    for given, expected in (
        (comparison, [step]),
        ({"rows": 0, "arms": [], "texts": []}, None),
    ):
        plan = store.plan("comparison", {"comparison": {"repeats": 1}}, inputs=["knowledge"])
        plan.write_json("comparison.json", given, 1)
        report = summarise(store)
        assert report["waterfall"] == expected
        assert "waterfall" not in report["speed"]


def test_statistics_of_engines_add_up_and_part():
    one = EngineStatistics(3, 30, 99, 0.5, 2.0, 0.25, 0.125, 2.5, 0.5)
    two = one.plus(one)
    assert two == EngineStatistics(6, 60, 198, 1.0, 4.0, 0.5, 0.25, 5.0, 1.0)
    assert two.plus(one, -1) == one
    assert two.seconds == 5.75
