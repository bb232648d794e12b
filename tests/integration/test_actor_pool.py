"""Blocks through actors: order, bounded restarts, and a terminal without a word from Ray."""

import subprocess
import sys

import pytest

from jobs.cli import ROOT

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

SCRIPT = """
import logging, os, sys, time
import pyarrow as pa
from jobs.actor_pool import through_actors
from jobs.cluster import Workers, start_ray
from jobs.progress import board_of, heartbeat
from pipeline.config import ClusterSettings

class Worker:
    def __init__(self, board, dies):
        import ray
        self.board = board_of(board)
        ray.get(self.board.add.remote(1, 0, 0))  # a start
        if dies == "loading":
            os._exit(1)
        self.dies = dies

    def __call__(self, block):
        number = block["n"][0].as_py()
        if self.dies == "working":
            os._exit(1)
        time.sleep(0.2 if number == 0 else 0.0)
        return block

start_ray(ClusterSettings(object_store_mb=80))
import ray
blocks = [pa.table({"n": [number]}) for number in range(4)]
with heartbeat(logging.getLogger(), "test", 4) as board:
    done = through_actors(Worker, (board, ""), blocks, Workers(2, 0, 1), ordered=True)
    print("order", [block["n"][0].as_py() for block in done])
for dies in ("loading", "working"):
    with heartbeat(logging.getLogger(), "test", 4) as board:
        try:
            list(through_actors(Worker, (board, dies), blocks, Workers(1, 0, 1), ordered=False))
        except ray.exceptions.RayActorError:
            print("died", dies, ray.get(board_of(board).read.remote()).rows)
"""


@pytest.fixture(scope="module")
def done():
    return subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=150
    )


def said(done, word):
    """Lines of the script; Ray writes of workers that died on the same stream."""
    return [line for line in done.stdout.splitlines() if line.startswith(word)]


def test_blocks_come_back_in_order(done):
    assert done.returncode == 0, done.stderr
    assert said(done, "order") == ["order [0, 1, 2, 3]"]


def test_an_actor_that_dies_again_and_again_is_given_up(done):
    assert said(done, "died") == ["died loading 4", "died working 4"]


def test_ray_says_nothing_of_deprecated_options_or_lost_arguments(done):
    for stream in (done.stdout, done.stderr):
        assert "Deprecat" not in stream
        assert "constructor arguments" not in stream
