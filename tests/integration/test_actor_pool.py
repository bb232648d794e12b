"""Blocks through actors: order, bounds, deaths and their causes, and no word from Ray."""

import subprocess
import sys

import pytest

from jobs.cli import ROOT

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(300)]

SCRIPT = """
import asyncio, logging, os, sys, time
import pyarrow as pa
from jobs.actor_pool import ActorPool, WorkerBroken
from jobs.cluster import Workers, start_ray
from jobs.progress import board_of, heartbeat
from pipeline.config import ClusterSettings
from pipeline.errors import WorkerError

def through_actors(kind, arguments, blocks, workers, ordered, held=1, refuse=None):
    with ActorPool(kind, arguments, workers, held) as pool:
        yield from pool.through(blocks, 99, ordered, refuse=refuse)

class Worker:
    def __init__(self, board, dies):
        import ray
        self.board = board_of(board)
        ray.get(self.board.add.remote(1, 0, 0))  # a start
        if dies == "loading":
            os._exit(1)
        self.dies = dies

    def __call__(self, block):
        numbers = block["n"].to_pylist()
        if self.dies == "working":
            os._exit(1)
        if self.dies == "raises":
            raise KeyError("odd block")
        time.sleep(0.2 if numbers[0] == 0 else 0.0)
        return block

class Adder(Worker):
    added = 0

    def begin(self, added, dies):
        self.added += added
        if dies:
            os._exit(1)

    def __call__(self, block):
        return pa.table({"n": [number + self.added for number in block["n"].to_pylist()]})

class Holder(Worker):
    # Adds up, as tokens, how many blocks it holds at most.
    held = 0

    async def __call__(self, block):
        import ray
        self.held += block.num_rows
        await self.board.add.remote(0, self.held, 0)
        numbers = block["n"].to_pylist()
        if self.dies in numbers:
            await asyncio.sleep(0.05)
            os._exit(1)
        if -1 in numbers:
            raise WorkerBroken("out of memory, says the engine")
        await asyncio.sleep(0.02)
        self.held -= block.num_rows
        return block

def blocks_of(*numbers, size=1):
    return [pa.table({"n": numbers[at : at + size]}) for at in range(0, len(numbers), size)]

def numbers_of(answers):
    return [number for block in answers for number in block["n"].to_pylist()]

def refuse(rows, cause):
    assert rows.num_rows == 1
    causes.append(cause)
    return pa.table({"n": [-number for number in rows["n"].to_pylist()]})

def board_for():
    return heartbeat(logging.getLogger(), "test", 4, 8)

def read(board):
    return ray.get(board_of(board).read.remote())

start_ray(ClusterSettings(object_store_mb=80))
import ray
causes = []
with board_for() as board:
    done = through_actors(Worker, (board, ""), blocks_of(*range(9)), Workers(2, 0, 1), True)
    print("order", numbers_of(done))
for dies in ("loading", "working"):
    with board_for() as board:
        try:
            list(through_actors(Worker, (board, dies), blocks_of(0, 1), Workers(1, 0, 1), False))
        except WorkerError as error:
            print("died", dies, read(board).rows, "The last cause: " in str(error))
with board_for() as board:
    try:
        list(through_actors(Worker, (board, "raises"), blocks_of(0, 1), Workers(1, 0, 1), False))
    except KeyError as error:
        print("raised", "odd block" in str(error))
taken = []
def lazily():
    for block in blocks_of(*range(1, 41)):
        taken.append(block)
        yield block
with board_for() as board:
    early = []
    answers = through_actors(
        Holder, (board, None), lazily(), Workers(2, 0, 1), False, held=3, refuse=refuse
    )
    for count, block in enumerate(answers, 1):
        early.append(len(taken) - count)
    print("bound", sorted(numbers_of(taken)) == list(range(1, 41)), 1 <= max(early) <= 5)
with board_for() as board:
    answers = through_actors(
        Holder, (board, 5), blocks_of(*range(1, 25), size=2), Workers(1, 0, 1), False, 4, refuse
    )
    print("poison", sorted(numbers_of(answers)), len(causes), read(board).rows)
causes.clear()
with board_for() as board:
    answers = through_actors(
        Holder, (board, None), blocks_of(1, 2, -1, 3), Workers(1, 0, 1), False, 2, refuse
    )
    print("broken", sorted(numbers_of(answers)), causes)
causes.clear()
with board_for() as board:
    stored = []
    try:
        for block in through_actors(
            Holder, (board, 3), blocks_of(1, 2, 3, 3), Workers(1, 0, 1), False, 2, refuse
        ):
            stored += numbers_of([block])
    except WorkerError:
        print("good", stored, len(causes))
with board_for() as board, ActorPool(Adder, (board, ""), Workers(2, 0, 1)) as pool:
    for added in (10, 100):
        numbers = numbers_of(pool.through(blocks_of(1, 2, 3), 3, True, task=(added, False)))
        print("kept", numbers, read(board).rows)
    for actor in pool._idle:
        ray.kill(actor)
    numbers = numbers_of(pool.through(blocks_of(1, 2, 3), 3, True, task=(7, False)))
    print("replaced", numbers, read(board).rows)
    try:
        list(pool.through(blocks_of(1), 1, True, task=(0, True)))
    except WorkerError as error:
        print("doomed", read(board).rows)
"""


@pytest.fixture(scope="module")
def done():
    return subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=280
    )


def said(done, word):
    """Lines of the script; Ray writes of workers that died on the same stream."""
    return [line for line in done.stdout.splitlines() if line.startswith(word)]


def test_blocks_come_back_in_order(done):
    assert done.returncode == 0, done.stderr
    assert said(done, "order") == [f"order {list(range(9))}"]


def test_workers_that_die_again_and_again_are_given_up_with_the_cause(done):
    assert said(done, "died") == ["died loading 4 True", "died working 4 True"]


def test_an_error_of_a_workers_code_is_passed_on(done):
    assert said(done, "raised") == ["raised True"]


def test_no_more_blocks_are_taken_than_workers_hold(done):
    assert said(done, "bound") == ["bound True True"]  # 2 workers x 3 blocks; one is answered


def test_a_row_that_ends_its_workers_is_refused_and_all_others_are_answered(done):
    numbers = sorted([*range(1, 5), *range(6, 25), -5])
    starts = 4  # the first, and one for each of the three that the row has ended
    assert said(done, "poison") == [f"poison {numbers} 1 {starts}"]


def test_the_cause_that_a_broken_worker_gives_is_the_one_in_the_answer(done):
    causes = ["out of memory, says the engine"]
    assert said(done, "broken") == [f"broken [1, 1, 2, 3] {causes}"]


def test_what_was_answered_before_workers_are_given_up_has_been_handed_on(done):
    """And the row that the third of four workers ended with is not blamed: no other did better."""
    assert said(done, "good") == ["good [1, 2] 1"]


def test_actors_are_kept_for_the_next_pass_and_told_what_it_is(done):
    assert said(done, "kept") == ["kept [11, 12, 13] 2", "kept [111, 112, 113] 2"]


def test_a_kept_actor_that_has_died_is_replaced(done):
    assert said(done, "replaced") == ["replaced [8, 9, 10] 4"]


def test_actors_that_die_on_being_told_are_given_up(done):
    assert said(done, "doomed") == ["doomed 6"]  # two that were there, and two more


def test_ray_says_nothing_of_deprecated_options_or_lost_arguments(done):
    for stream in (done.stdout, done.stderr):
        assert "Deprecat" not in stream
        assert "constructor arguments" not in stream
