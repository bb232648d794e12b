"""Several engines at once, and engines that fail: no row is lost, blamed or left waiting."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from jobs import generate_knowledge
from jobs.cli import ROOT
from pipeline.parts import list_parts

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),  # third parties warn as they please inside workers
]

WAVE = "waves/1/knowledge"
PATIENCE = 300  # s; every worker that ends is another start-up, and machines may be busy
SETTINGS = (
    "generation.rule=strict",
    "generation.waves=1",
    "generation.block_rows=8",
    "cluster.object_store_mb=80",
    "engine.batch_rows=4",
)
# The job with an actor that notes the rows of every step, and fails before one as FAULT says.
SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
from jobs import generate_knowledge, writers
from jobs.generation_actor import GenerationActor
from pipeline.engine.engine import Engine

NOTES = Path({notes!r})

def before_step(step, seeds): pass
{fault}

class GenerationActor(GenerationActor):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        step, self.steps = Engine.step, 0

        def noted(engine):
            waiting, active = engine._scheduler._waiting, engine._scheduler._active
            seeds = [row.request.seed for row in active]
            seeds += [request.seed for request in list(waiting)[: 4 - len(active)]]
            self.steps += 1
            before_step(self.steps, seeds)
            with (NOTES / str(os.getpid())).open("a") as file:
                file.write(str(len(seeds)) + "\\n")
            return step(engine)

        Engine.step = noted

writers.GenerationActor = GenerationActor
sys.exit(generate_knowledge.main(sys.argv[1:]))
"""
NO_MEMORY = 'torch.OutOfMemoryError("no memory is left, says the test")'


class Bench:
    """A run with everything before wave 1, and the run that nobody disturbs."""

    def __init__(self, config, calm, store, notes):
        self.config, self.calm, self.store, self.notes = config, calm, store, notes
        self.job = None

    @property
    def arguments(self):
        return ["--config", str(self.config), *sets(*SETTINGS, f"run={self.notes.name}")]

    def start(self, fault, *extra):
        script = SCRIPT.format(notes=str(self.notes), fault=fault)
        command = [sys.executable, "-c", script, *self.arguments, *sets(*extra)]
        with (self.notes / "output").open("ab") as file:
            self.job = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
        return self.job

    def output(self):
        return (self.notes / "output").read_text()[-4000:]

    @property
    def log(self):
        return (self.store.root / "run.log").read_text()

    def steps(self):
        """Rows in the steps of every actor."""
        files = [path for path in self.notes.iterdir() if path.name.isdigit()]
        return [list(map(int, path.read_text().split())) for path in files]

    def stored(self):
        parts = list_parts(self.store.path(WAVE))
        return [key for part in parts for key in pq.read_table(part)["request_key"].to_pylist()]


def sets(*overrides):
    return [part for one in overrides for part in ("--set", one)]


def rows_of(store):
    """Token ids and error by entity; every entity once."""
    rows = store.read("knowledge").to_pylist()
    found = {(row["kind"], row["entity_id"]): (row["token_ids"], row["error"]) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture
def bench(config_file, calm, begun, tmp_path):
    one = Bench(config_file, calm, begun, tmp_path)
    yield one
    if one.job is not None:
        one.job.kill()
        one.job.wait()


def test_two_actors_share_the_rows_and_write_what_one_writes(bench):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    job = bench.start("", "cluster.knowledge.actors=2")
    assert job.wait(PATIENCE) == 0, bench.output()
    assert rows_of(bench.store) == rows_of(bench.calm)
    knowledge = [store.read("knowledge") for store in (bench.store, bench.calm)]
    assert knowledge[0]["entity_id"].equals(knowledge[1]["entity_id"])
    assert len(bench.steps()) == 2


def test_slots_are_idle_at_a_waves_end_only(bench):
    """Parts have 8 rows; the engine of 4 slots, as slow as a real one, knows nothing of them."""
    slow = "def before_step(step, seeds): time.sleep(0.04)"
    assert bench.start(slow).wait(PATIENCE) == 0, bench.output()
    (steps,) = bench.steps()
    full = [rows == 4 for rows in steps]
    assert sum(full) > len(steps) / 2
    last = len(full) - full[::-1].index(True)
    assert len(steps) - last <= 14  # the slowest row takes 12 tokens and its prompt
    assert full[:last].count(False) <= 2
    assert all(pq.read_metadata(part).num_rows <= 8 for part in list_parts(bench.store.path(WAVE)))


@pytest.mark.faults
def test_memory_that_runs_out_once_costs_a_process_and_no_row(bench):
    job = bench.start(
        f"""
def before_step(step, seeds):
    if step == 30 and not (NOTES / "once").exists():
        (NOTES / "once").touch()
        raise {NO_MEMORY}
"""
    )
    assert job.wait(PATIENCE) == 0, bench.output()
    assert len(bench.steps()) == 2
    assert "OutOfMemoryError: no memory is left, says the test" in bench.log
    assert rows_of(bench.store) == rows_of(bench.calm)


@pytest.mark.faults
def test_a_row_that_takes_all_memory_is_an_error_row_with_the_cause(bench):
    job = bench.start(
        f"""
def before_step(step, seeds):
    chosen = NOTES / "chosen"
    if step == 20 and not chosen.exists():
        chosen.write_text(str(seeds[-1]))
    if chosen.exists() and int(chosen.read_text()) in seeds:
        raise {NO_MEMORY}
""",
        "generation.max_error_share=0.05",
    )
    assert job.wait(PATIENCE) == 0, bench.output()
    assert bench.log.count("a worker has ended") == 3
    rows, wanted = rows_of(bench.store), rows_of(bench.calm)
    failed = {entity for entity, (_, error) in rows.items() if error}
    assert len(failed) == 1
    assert "no memory is left, says the test" in rows[failed.pop()][1]
    assert len(rows) == len(wanted)
    assert sum(rows[entity] != wanted[entity] for entity in rows) == 1


@pytest.mark.faults
def test_an_engine_that_dies_for_good_ends_the_job_and_what_is_finished_is_stored(bench):
    job = bench.start(
        """
def before_step(step, seeds):
    if step == 25: (NOTES / "broken").touch()
    if (NOTES / "broken").exists(): raise MemoryError("there is none, says the test")
""",
        "generation.block_rows=1000",  # no part is whole by then
    )
    assert job.wait(PATIENCE) == 1, bench.output()
    assert "MemoryError: there is none, says the test" in bench.log
    assert "4 workers in a row ended without an answer" in bench.log
    stored = bench.stored()
    assert len(stored) > 8
    assert generate_knowledge.main(bench.arguments) == 0
    assert f"{len(stored)} stored already" in bench.log
    assert rows_of(bench.store) == rows_of(bench.calm)


@pytest.mark.faults
def test_every_row_failing_is_the_engines_fault_and_no_row_is_stored(bench):
    fault = "def before_step(step, seeds): raise ValueError('a broken kernel, says the test')"
    assert bench.start(fault).wait(PATIENCE) == 1, bench.output()
    assert "a broken kernel, says the test" in bench.log
    assert bench.stored() == []


@pytest.mark.faults
def test_ctrl_c_keeps_what_is_finished(bench):
    job = bench.start("def before_step(step, seeds): time.sleep(0.05)")
    deadline = time.monotonic() + 90
    while not list_parts(bench.store.path(WAVE)):
        assert job.poll() is None, bench.output()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    job.send_signal(signal.SIGINT)
    assert job.wait(PATIENCE) == 128 + signal.SIGINT
    stored = bench.stored()
    assert 8 <= len(stored) < len(rows_of(bench.calm))
    assert len(set(stored)) == len(stored)
    assert generate_knowledge.main(bench.arguments) == 0
    assert rows_of(bench.store) == rows_of(bench.calm)
    assert not list(Path(bench.store.root).rglob("*.tmp"))
