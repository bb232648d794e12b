"""Several callers, one engine: it does not drain while anyone has rows, and forgets nobody."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from jobs import shared_engine
from jobs.actor_pool import WorkerBroken
from jobs.shared_engine import SharedEngine
from pipeline.engine.types import Generation, Request, RowStatistics


class Rows:
    """Stands for `Isolation`: a row takes as many steps as its prompt has tokens."""

    def __init__(self, slots, fails_at=None, error=None):
        self.slots, self.fails_at, self.error = slots, fails_at, error
        self.waiting, self.active = [], {}
        self.steps = []  # rows of each

    @property
    def has_work(self):
        return bool(self.waiting or self.active)

    def submit(self, requests):
        self.waiting += requests

    def step(self):
        while self.waiting and len(self.active) < self.slots:
            request = self.waiting.pop(0)
            self.active[request.key] = len(request.prompt_ids)
        self.steps.append(len(self.active))
        if len(self.steps) == self.fails_at:
            raise self.error
        self.active = {key: left - 1 for key, left in self.active.items()}
        done = [key for key, left in self.active.items() if not left]
        for key in done:
            del self.active[key]
        return [Generation(key, np.array([7]), "stop", RowStatistics()) for key in done]


def block(*lengths):
    """Requests with the keys 0, 1, ... as every block has them."""
    return [Request(str(key), np.ones(length, np.int32), 4) for key, length in enumerate(lengths)]


def keys(generations):
    return [generation.key for generation in generations]


def run(rows, work, end=lambda: None, pulse=lambda: None):
    with ThreadPoolExecutor(1) as thread:

        async def main():
            return await work(SharedEngine(rows, thread, end, pulse))

        return asyncio.run(asyncio.wait_for(main(), 20))


def test_every_caller_gets_its_own_rows_in_its_own_order():
    async def work(engine):
        return await asyncio.gather(engine.finish(block(3, 1, 2)), engine.finish(block(1, 4)))

    first, second = run(Rows(2), work)
    assert keys(first) == ["0", "1", "2"]
    assert keys(second) == ["0", "1"]


def test_a_short_block_does_not_wait_for_a_long_one():
    ended = []

    async def work(engine):
        async def finish(name, lengths):
            await engine.finish(block(*lengths))
            ended.append(name)

        await asyncio.gather(finish("long", (400,)), finish("short", (2,)))

    run(Rows(2), work)
    assert ended == ["short", "long"]


def test_slots_that_a_block_leaves_are_taken_by_the_next():
    """A row of 40 steps in each block: one block after another idles in 38 of 40 steps."""
    blocks = [(40, 1, 1, 1)] * 4

    async def together(engine):
        await asyncio.gather(*(engine.finish(block(*lengths)) for lengths in blocks))

    async def one_by_one(engine):
        for lengths in blocks:
            await engine.finish(block(*lengths))

    idle = {}
    for work in (together, one_by_one):
        rows = Rows(4)
        run(rows, work)
        idle[work] = sum(4 - active for active in rows.steps)
    assert idle[one_by_one] == 4 * 39 * 3
    assert idle[together] < idle[one_by_one] / 10


def test_an_engine_that_rests_is_woken_by_the_next_block():
    async def work(engine):
        first = await engine.finish(block(2))
        await asyncio.sleep(0.01)
        return first + await engine.finish(block(1, 1))

    assert keys(run(Rows(2), work)) == ["0", "0", "1"]


def test_a_block_without_rows_is_answered():
    async def work(engine):
        return await engine.finish([])

    assert run(Rows(2), work) == []


def test_an_engine_that_cannot_go_on_ends_all_calls_and_the_process():
    ends = []

    async def work(engine):
        calls = [engine.finish(block(9, 9)) for _ in range(3)]
        return await asyncio.gather(*calls, return_exceptions=True), await asyncio.gather(
            engine.finish(block(1)), return_exceptions=True
        )

    rows = Rows(2, fails_at=3, error=MemoryError("no more"))
    in_work, late = run(rows, work, lambda: ends.append(True))
    assert [type(error) for error in in_work + late] == [WorkerBroken] * 4
    assert str(late[0]) == "MemoryError: no more"
    assert ends == [True]
    assert len(rows.steps) == 3


def test_the_process_ends_even_where_no_thread_can_be_had(monkeypatch):
    import os
    import threading

    from jobs.shared_engine import end_process_soon

    codes = []

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    monkeypatch.setattr(os, "_exit", codes.append)
    end_process_soon()
    assert codes == [1]


def test_a_pulse_is_felt_while_no_row_has_ended(monkeypatch):
    """Of rows that take minutes a person wants to know that they are at work."""
    monkeypatch.setattr(shared_engine, "_PULSE", 0.02)
    rows, felt = SlowRows(2), []

    def pulse():
        felt.append(len(rows.steps))

    async def work(engine):
        return await engine.finish(block(100, 1))

    assert keys(run(rows, work, pulse=pulse)) == ["0", "1"]
    before_the_long_one_ended = [steps for steps in felt if steps < len(rows.steps)]
    assert 2 <= len(before_the_long_one_ended) <= 100 * 0.001 * 5 / 0.02
    assert len(rows.steps) == 100  # a pulse costs no step


class SlowRows(Rows):
    def step(self):
        time.sleep(0.001)
        return super().step()


@pytest.mark.parametrize("slots", [1, 3])
def test_no_step_is_made_without_rows(slots):
    async def work(engine):
        await asyncio.gather(*(engine.finish(block(1, 2)) for _ in range(5)))

    rows = Rows(slots)
    run(rows, work)
    assert min(rows.steps) > 0
