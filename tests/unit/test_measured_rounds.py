"""A comparison that is killed goes on with the rounds that are missing, and says that it did."""

import json
import logging

import numpy as np
import pytest
import torch

from jobs.compare_decoding import JSON, UNFINISHED, _write
from jobs.decoding_arms import PLAIN, RELAXED, STRICT, TRANSFORMERS, Outcome
from jobs.measured_rounds import MeasuredRounds, _as_row, _Turns, measure, place_of
from pipeline.cost_cache import engine_code, processor
from pipeline.engine.statistics import EngineStatistics
from pipeline.engine.types import Generation, Request, RowStatistics
from pipeline.parts import content_hash
from pipeline.store import Plan, Store

ARMS = (TRANSFORMERS, PLAIN, STRICT, RELAXED)
PLACE = place_of(torch.device("cpu"))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run")


@pytest.fixture
def requests():
    prompt = np.arange(3, dtype=np.int32)
    return {kind: [Request(str(row), prompt, 20) for row in range(2)] for kind in ("user", "item")}


def plan_of(store, **settings):
    return store.plan(UNFINISHED, settings)


def arms_of(taken, dies_at=None):
    """Four arms; whoever takes turn `dies_at` (of whole turns, from 0) is stopped in it."""

    def arm(name):
        def run(rows):
            if rows[0].max_new_tokens == 4:  # it warms up
                return None
            if len(taken) == dies_at:
                raise KeyboardInterrupt
            taken.append((name, len(rows)))
            texts = {row.key: np.arange(len(taken) + 3, dtype=np.int32) for row in rows}
            passes = dict.fromkeys(texts, len(taken))
            generations = {
                key: Generation(key, text, "length", RowStatistics(len(taken), 2, 0.25))
                for key, text in texts.items()
            }
            is_engine = name != TRANSFORMERS
            statistics = EngineStatistics(3, 9, 27, 0.5, 0.25, tokens=7)
            return Outcome(
                1.5 + len(taken),
                texts,
                passes,
                generations if is_engine else {},
                statistics if is_engine else EngineStatistics(),
            )

        return run

    return lambda: {name: arm(name) for name in ARMS}


def plain(outcomes):
    """Outcomes as values that can be compared."""
    return {
        key: [
            (
                one.seconds,
                {name: text.tolist() for name, text in one.texts.items()},
                one.passes,
                {
                    name: (g.token_ids.tolist(), g.finish_reason, g.statistics.relaxed_cost)
                    for name, g in one.generations.items()
                },
                one.statistics,
            )
            for one in of_repeats
        ]
        for key, of_repeats in outcomes.items()
    }


def test_a_killed_comparison_measures_only_the_rounds_that_are_missing(store, requests, caplog):
    taken, again = [], []
    with pytest.raises(KeyboardInterrupt):
        measure(arms_of(taken, 10), requests, 2, MeasuredRounds(plan_of(store), PLACE))
    assert len(taken) == 10  # two rounds, and two turns of the third
    rounds = MeasuredRounds(plan_of(store), PLACE)
    assert [one in rounds for one in ((0, "user"), (0, "item"), (1, "user"), (1, "item"))] == [
        *(True, True, False, False)
    ]
    with caplog.at_level(logging.INFO):
        outcomes = measure(arms_of(again), requests, 2, rounds)
    assert "2 rounds to measure, each of 2 users or 2 items; 2 stored already" in caplog.text
    # A whole round again, in the order of its repeat: arms are compared within one.
    assert [name for name, _ in again] == [RELAXED, *ARMS[:3]] * 2
    assert {key: len(found) for key, found in outcomes.items()} == {
        (arm, kind): 2 for arm in ARMS for kind in requests
    }
    assert rounds.tries == 2
    assert rounds.share_of_this_try == 0.5


def test_what_is_stored_is_what_was_measured(store, requests):
    rounds = MeasuredRounds(plan_of(store), PLACE)
    measured = measure(arms_of([]), requests, 1, rounds)
    stored = MeasuredRounds(plan_of(store), PLACE).outcomes()
    assert plain(stored) == plain(measured)
    (relaxed,) = stored[RELAXED, "item"]
    assert isinstance(relaxed.statistics.steps, int)
    assert relaxed.statistics == EngineStatistics(3, 9, 27, 0.5, 0.25, tokens=7)
    assert relaxed.generations["1"].statistics.relaxed_tokens == 2
    assert relaxed.texts["1"].dtype == np.int32
    assert stored[TRANSFORMERS, "user"][0].generations == {}


def test_one_killed_at_its_very_end_loads_no_engine_again(store, requests):
    measure(arms_of([]), requests, 1, MeasuredRounds(plan_of(store), PLACE))

    def none():
        raise AssertionError("no arm is needed")

    rounds = MeasuredRounds(plan_of(store), PLACE)
    assert measure(none, requests, 1, rounds)[PLAIN, "user"]
    assert rounds.tries == 1


OTHERS = {
    "machine": ("jobs.measured_rounds.processor", lambda device: "another"),
    "program": ("jobs.measured_rounds.engine_code", lambda: "0123"),
    "torch": ("torch.__version__", "1.0"),
    "transformers": ("transformers.__version__", "1.0"),
    "threads": ("torch.get_num_threads", lambda: 64),
}


@pytest.mark.parametrize("other", [*OTHERS, "settings"])
def test_rounds_of_another_place_or_other_settings_do_not_count(
    store, requests, other, caplog, monkeypatch
):
    measure(arms_of([]), requests, 1, MeasuredRounds(plan_of(store), PLACE))
    with caplog.at_level(logging.INFO):
        if other in OTHERS:
            monkeypatch.setattr(*OTHERS[other])
            rounds = MeasuredRounds(plan_of(store), place_of(torch.device("cpu")))
            assert "another machine, or by another version of this program" in caplog.text
        else:
            rounds = MeasuredRounds(plan_of(store, rows=3), PLACE)
    taken = []
    measure(arms_of(taken), requests, 1, rounds)
    assert len(taken) == 8
    assert rounds.tries == 1


def test_a_place_names_processor_and_program():
    place = place_of(torch.device("cpu"))
    assert place == place_of(torch.device("cpu"))
    assert processor(torch.device("cpu")) in place
    assert engine_code() in place


def test_rounds_of_an_engine_with_other_statistics_are_dropped_before_they_are_read(
    store, requests, monkeypatch
):
    """They are stored by their places: a field more or less is another meaning of all."""
    with monkeypatch.context() as older:
        older.setattr("jobs.measured_rounds.engine_code", lambda: "0123")
        shorter = {"statistics": [1.0, 2.0]}
        older.setattr("jobs.measured_rounds._as_row", lambda one: _as_row(one) | shorter)
        place = place_of(torch.device("cpu"))
        with pytest.raises(ValueError, match="zip"):
            measure(arms_of([]), requests, 1, MeasuredRounds(plan_of(store), place))
    rounds = MeasuredRounds(plan_of(store), PLACE)
    assert rounds.outcomes() == {}
    taken = []
    measure(arms_of(taken), requests, 1, rounds)
    assert len(taken) == 8


def older_comparison(store):
    plan = store.plan("comparison", {"rows": 1})
    plan.write_files(lambda folder: (folder / JSON).write_text('{"old": 1}'), 1)
    return store.require("comparison")


def test_an_older_comparison_can_be_read_until_there_is_a_new_one(store, requests):
    old = older_comparison(store)
    rounds = MeasuredRounds(plan_of(store), PLACE)
    measure(arms_of([]), requests, 1, rounds)
    assert store.manifest("comparison") == old
    assert (store.path("comparison") / JSON).read_text() == '{"old": 1}'
    _write(store.plan("comparison", {"rows": 2}), {"new": 1}, 4, rounds)
    assert json.loads((store.path("comparison") / JSON).read_text()) == {"new": 1}
    assert store.require("comparison").num_rows == 4
    assert store.require("comparison").facts == {"rows_written": 4}
    assert not list(store.root.rglob("part-*"))
    assert not store.path(UNFINISHED).exists()
    assert len(list((store.root / "superseded").iterdir())) == 1  # the older one, and no rounds


@pytest.mark.parametrize("step", ["write_files", "discard"])
def test_a_kill_where_rounds_become_a_comparison_loses_none(store, requests, step, monkeypatch):
    def kill(*_):
        raise KeyboardInterrupt

    plan = store.plan("comparison", {"rows": 2})
    rounds = MeasuredRounds(plan_of(store), PLACE)
    measure(arms_of([]), requests, 1, rounds)
    with monkeypatch.context() as killed:
        killed.setattr(Plan if step == "write_files" else MeasuredRounds, step, kill)
        with pytest.raises(KeyboardInterrupt):
            _write(plan, {"new": 1}, 4, rounds)
    assert plan.is_done == (step == "discard")
    again = MeasuredRounds(plan_of(store), PLACE)
    assert again.share_of_this_try == 0.0
    assert len(again.outcomes()) == 8
    whole = content_hash(store.path("comparison"), ["manifest.json"]) if plan.is_done else ""
    assert whole == (store.require("comparison").content if plan.is_done else "")
    # What is left of rounds whose comparison is there hurts none with other settings.
    other = MeasuredRounds(plan_of(store, rows=3), PLACE)
    assert other.outcomes() == {}
    _write(store.plan("comparison", {"rows": 3}), {"newer": 1}, 4, other)
    assert not store.path(UNFINISHED).exists()


def test_turns_are_counted_as_all_other_pieces_are(requests, store, monkeypatch, caplog):
    clock = [0.0]
    monkeypatch.setattr("jobs.progress.time.monotonic", lambda: clock[0])
    turns = _Turns(8)
    arms = arms_of([])()
    with caplog.at_level(logging.INFO):
        turns.tell()
        for name in (PLAIN, STRICT, RELAXED):
            clock[0] += 40.0
            turns.take(name, arms[name], "user", requests)
        turns.tell()
    assert [record.getMessage() for record in caplog.records] == [
        "comparison: 0 of 8 turns, now loading",
        "comparison: 3 of 8 turns, now relaxed on users, about 3 min 20 s left",
    ]
