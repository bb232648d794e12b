"""A step that raises costs the row at fault, and no other."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.fatal_errors import is_fatal
from jobs.isolation import EngineBroken, Isolation
from pipeline.config import EngineSettings
from pipeline.engine.budget import FREE
from pipeline.engine.engine import Engine
from pipeline.engine.processors import Processors
from pipeline.engine.rules import Strict
from pipeline.engine.stops import Stops
from pipeline.engine.types import Generation, NoDraft, Request, RowStatistics

STOPS = Stops([2])


class FakeEngine:
    """Rows take two steps each; a step with a bad row raises, a clumsy one every so often."""

    def __init__(self, slots, bad=(), clumsy_every=0):
        self.slots, self.bad, self.clumsy_every = slots, set(bad), clumsy_every
        self.waiting, self.active = [], {}
        self.steps = self.renewed = 0
        self.batches = []  # the rows of each step

    def submit(self, requests):
        self.waiting += requests

    def step(self):
        while self.waiting and len(self.active) < self.slots:
            self.active[self.waiting.pop(0).key] = 2
        self.steps += 1
        self.batches.append(set(self.active))
        if self.bad & set(self.active):
            raise RuntimeError("a bad row")
        if self.clumsy_every and self.steps % self.clumsy_every == 0:
            raise RuntimeError("a bad day")
        self.active = {key: left - 1 for key, left in self.active.items()}
        done = [key for key, left in self.active.items() if not left]
        for key in done:
            del self.active[key]
        return [Generation(key, np.array([7]), "length", RowStatistics()) for key in done]

    def drop(self):
        keys = list(self.active)
        self.waiting, self.active = [], {}
        return keys

    def renew(self):
        assert not self.active
        assert not self.waiting
        self.renewed += 1


def requests(count):
    return [Request(str(key), np.array([5], np.int32), 4) for key in range(count)]


def step_on(rows, ended):
    while rows.has_work:
        ended += rows.step()


def finish(rows):
    """All that ends, by key; each row ends once."""
    ended = []
    step_on(rows, ended)
    assert len({generation.key for generation in ended}) == len(ended)
    return {generation.key: generation for generation in ended}


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 8), st.sets(st.integers(0, 39), max_size=5))
def test_bad_rows_are_error_rows_and_all_others_are_written(count, slots, bad):
    bad = {str(key) for key in bad if key < count}
    engine = FakeEngine(slots, bad)
    rows = Isolation(engine, engine.renew)
    rows.submit(requests(count))
    ended = finish(rows)
    assert set(ended) == {str(key) for key in range(count)}
    assert {key for key, generation in ended.items() if generation.error} == bad
    assert all("RuntimeError: a bad row" in ended[key].error for key in bad)


def test_a_step_that_fails_by_chance_costs_no_row():
    engine = FakeEngine(4, clumsy_every=5)
    rows = Isolation(engine, engine.renew)
    rows.submit(requests(30))
    assert not any(generation.error for generation in finish(rows).values())
    assert engine.renewed


def test_the_row_at_fault_is_found_by_halves():
    engine = FakeEngine(16, bad=["3"])
    rows = Isolation(engine, engine.renew)
    rows.submit(requests(16))
    finish(rows)
    assert engine.renewed == 5  # 16, 8, 4, 2 rows, and the row itself
    assert engine.steps == 5 + 4 * 2


def test_rows_that_come_while_suspects_are_tried_wait():
    engine = FakeEngine(4, bad=["1"])
    rows = Isolation(engine, engine.renew)
    rows.submit(requests(4))
    assert rows.step() == []
    rows.submit([Request("late", np.array([5], np.int32), 4)])
    assert set(finish(rows)) == {"0", "1", "2", "3", "late"}
    assert [batch for batch in engine.batches if "late" in batch] == [{"late"}] * 2


def test_an_engine_that_fails_on_every_row_is_broken_and_no_row_is_blamed():
    engine = FakeEngine(4, bad=map(str, range(40)))
    rows = Isolation(engine, engine.renew)
    rows.submit(requests(40))
    ended = []
    with pytest.raises(EngineBroken, match=r"8 rows failed.*RuntimeError: a bad row"):
        step_on(rows, ended)
    assert ended == []


def test_a_few_bad_rows_and_no_others_are_error_rows_in_the_end():
    engine = FakeEngine(4, bad=["0", "1"])
    rows = Isolation(engine, engine.renew)
    rows.submit(requests(2))
    assert all(generation.error for generation in finish(rows).values())


def test_a_step_that_fails_without_rows_is_nobodys_fault():
    engine = FakeEngine(4)
    engine.step = lambda: 1 // 0
    rows = Isolation(engine, engine.renew)
    rows.submit(requests(2))
    with pytest.raises(ZeroDivisionError):
        rows.step()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"
        ),
    ],
)
def test_what_does_not_get_better_ends_the_process(error):
    def fail():
        raise error

    engine = FakeEngine(4)
    rows = Isolation(engine, engine.renew)
    rows.submit(requests(2))
    engine.step = fail
    with pytest.raises(type(error)):
        rows.step()
    assert engine.renewed == 0


def test_other_errors_are_not_fatal():
    assert not is_fatal(RuntimeError("shapes differ"))
    assert not is_fatal(ValueError("CUDA error"))


def test_a_model_that_raises_on_one_row_writes_the_others_as_ever(tiny_model):
    """Rows after the failure do not see what half a step left in the cache."""
    sizes = EngineSettings(batch_rows=4, max_length=128, prefill_tokens=24, draft_nodes=4)
    random = np.random.default_rng(3)
    prompts = [random.integers(3, 50, int(random.integers(5, 40))) for _ in range(11)]
    asked = [Request(str(n), prompt.astype(np.int32), 12) for n, prompt in enumerate(prompts)]

    def engine_of(model):
        engine = Engine(model, sizes, STOPS, Processors(STOPS.ids, 1.2), costs=FREE)
        return engine, lambda: engine.use(NoDraft(), Strict(), FREE)

    wanted = {
        g.key: g.token_ids.tolist() for g in engine_of(tiny_model("llama"))[0].generate(asked)
    }
    used = {token for ids in wanted.values() for token in ids}
    poison = next(token for token in range(50, 61) if token not in used)
    asked[5] = Request("5", np.append(prompts[5], [poison, 4]).astype(np.int32), 12)
    model = tiny_model("llama")
    engine, renew = engine_of(model)

    def refuse(module, inputs, output):  # late in the step: keys and values are written by then
        if (inputs[0] == poison).any():
            output.fill_(torch.nan)
            raise_at_the_end.append(True)

    raise_at_the_end = []
    model.model.embed_tokens.register_forward_hook(refuse)

    def fail(module, inputs, output):
        if raise_at_the_end:
            raise_at_the_end.clear()
            raise RuntimeError("this row is poison")

    model.model.norm.register_forward_hook(fail)
    rows = Isolation(engine, renew)
    rows.submit(asked)
    ended = finish(rows)
    assert "this row is poison" in ended.pop("5").error
    assert {key: g.token_ids.tolist() for key, g in ended.items()} == {
        key: ids for key, ids in wanted.items() if key != "5"
    }
