"""Faults that really happen: processes die, disks fill, models raise; the knowledge is the same.

One undisturbed run under the strict rule is written first. Every other run starts from the same
groups and the same wave 0, loses something in the middle of wave 1, and must end as that one.
"""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from jobs import build_catalog, generate_knowledge, group_entities, train_embeddings
from jobs.cli import ROOT
from jobs.processes import actors_of
from jobs.soak_checks import broken, leftovers
from pipeline.parts import list_parts
from pipeline.store import Store

pytestmark = [
    pytest.mark.faults,
    pytest.mark.ray,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),  # third parties warn as they please inside workers
]

BLOCK, SLOTS = 8, 4  # rows of a part, and in flight
WAVE = "waves/1/knowledge"
PATIENCE = 300  # s; every worker that ends is another start-up, and machines may be busy
SETTINGS = (
    "generation.rule=strict",
    "generation.waves=1",
    f"generation.block_rows={BLOCK}",
    "cluster.object_store_mb=80",
    f"engine.batch_rows={SLOTS}",
)
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI-canary",
    "AWS_SESSION_TOKEN": "session-canary",
    "HF_TOKEN": "hf_canary",
}
# The job with another actor: it notes which rows it begins and has done, and does whatever FAULT
# says before the model's n-th pass over rows, or before a rename.
SCRIPT = """
import functools, os, signal, sys, time
from pathlib import Path
from transformers import LlamaModel
from jobs import generate_knowledge, writers
from jobs.generation_actor import GenerationActor

NOTES = Path({notes!r})
ONCE = NOTES / "once"

def die_once():
    if not ONCE.exists():
        ONCE.touch()
        os.kill(os.getpid(), signal.SIGKILL)

def before_pass(number, input_ids): pass
def before_rename(target): pass
{fault}

class GenerationActor(GenerationActor):
    def __init__(self, *arguments):
        self.passes = None  # before the first row
        forward = LlamaModel.forward

        @functools.wraps(forward)
        def watched(model, input_ids=None, **rest):
            if self.passes is not None:
                self.passes += 1
                before_pass(self.passes, input_ids)
            return forward(model, input_ids=input_ids, **rest)

        LlamaModel.forward = watched
        super().__init__(*arguments)

    async def __call__(self, tasks):
        self.passes = self.passes or 0
        note("begun", tasks)
        done = await super().__call__(tasks)
        note("done", tasks)
        return done

def note(what, tasks):
    import ray
    node = ray.get_runtime_context().get_node_id()
    keys = tasks["request_key"].to_pylist()
    with (NOTES / what).open("a") as file:
        file.write(" ".join([node, *keys]) + "\\n")

def renames(event, arguments):
    if event == "os.rename":
        before_rename(os.fspath(arguments[1]))

sys.addaudithook(renames)
writers.GenerationActor = GenerationActor
"""
RUN = "\nsys.exit(generate_knowledge.main(sys.argv[1:]))\n"
SLOW = "def before_pass(number, input_ids): time.sleep(0.1)"


@dataclass
class Bench:
    """A config, the run nobody disturbs, and the means to disturb others."""

    config: Path
    calm: Store
    store: Store  # of the run now disturbed
    notes: Path
    jobs: list = field(default_factory=list)

    def arguments(self, *extra):
        name = f"run={self.notes.name}"
        return ["--config", str(self.config), *sets(*SETTINGS, name, *extra)]

    @property
    def log(self):
        return (self.store.root / "run.log").read_text()

    def script(self, fault, end=RUN):
        return SCRIPT.format(notes=str(self.notes), fault=fault) + end

    def start(self, fault, *extra):
        """The job in a process of its own, with a fault in it."""
        command = [sys.executable, "-c", self.script(fault), *self.arguments(*extra)]
        return self.popen(command)

    def popen(self, command):
        with (self.notes / "output").open("ab") as file:
            job = subprocess.Popen(
                command, cwd=ROOT, stdout=file, stderr=file, env=os.environ | SECRETS
            )
        self.jobs.append(job)
        return job

    def output(self):
        return (self.notes / "output").read_text()[-4000:]

    def keys(self, what):
        """Request keys that actors have begun, or have done, in order."""
        path = self.notes / what
        lines = path.read_text().splitlines() if path.exists() else []
        return [key for line in lines for key in line.split()[1:]]

    def stored(self):
        """Request keys in the parts of the wave."""
        parts = list_parts(self.store.path(WAVE))
        return {key for part in parts for key in pq.read_table(part)["request_key"].to_pylist()}

    def require_little_lost(self):
        """Done again is at most one block, and what an actor held: it may finish that alone."""
        done, begun = (set(self.keys(what)) for what in ("done", "begun"))
        assert len((done | begun) - self.stored()) <= BLOCK + 2 * SLOTS

    def resume(self):
        """The same command again, in peace: it writes what is missing and no more."""
        stored = len(self.stored())
        before = {path: path.stat().st_mtime_ns for path in list_parts(self.store.path(WAVE))}
        assert generate_knowledge.main(self.arguments()) == 0
        rows = self.store.require(WAVE).num_rows
        assert f"{WAVE}: {rows - stored} rows to write, {stored} stored already" in self.log
        assert all(path.stat().st_mtime_ns == time for path, time in before.items())

    def require_whole(self):
        """No row missing, none twice, every text the calm run's, nothing left over, no secret."""
        assert broken(self.calm, self.store) == []
        for path in [*self.store.root.rglob("*"), self.notes / "output"]:
            if path.is_file():
                told = [
                    name for name, value in SECRETS.items() if value.encode() in path.read_bytes()
                ]
                assert not told, path


def sets(*overrides):
    return [part for one in overrides for part in ("--set", one)]


def wait_until(condition, process=None, seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, f"exit code {process.returncode}"
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def bench(config_file, calm, begun, tmp_path):
    """A run with everything before wave 1."""
    one = Bench(config_file, calm, begun, tmp_path)
    yield one
    for job in one.jobs:
        job.kill()
        job.wait()


def test_an_actor_killed_in_the_middle_costs_what_it_had_in_work(bench):
    job = bench.start("""
def before_pass(number, input_ids):
    if number == 30: die_once()
""")
    assert job.wait(PATIENCE) == 0, bench.output()
    assert (bench.notes / "once").exists()
    begun = bench.keys("begun")
    twice = {key for key in begun if begun.count(key) > 1}
    assert 0 < len(twice) <= 2 * SLOTS
    assert max(begun.count(key) for key in twice) == 2
    assert len(bench.keys("done")) > len(twice)
    bench.require_whole()
    assert "a worker has ended (1 of 4 in a row)" in bench.log


def test_a_driver_killed_in_the_middle_loses_what_was_in_work(bench):
    job = bench.start(SLOW)
    wait_until(bench.stored, job)
    actors = actors_of(job.pid)
    assert len(actors) == 1
    job.kill()
    assert job.wait() == -signal.SIGKILL
    bench.require_little_lost()
    wait_until(lambda: not is_alive(actors[0]), seconds=30)  # it does not go on alone
    torn = bench.store.path(WAVE) / "part-00001.tmp"  # as if it had died in the middle of a write
    torn.write_bytes(list_parts(bench.store.path(WAVE))[0].read_bytes()[:500])
    bench.resume()
    bench.require_whole()


def is_alive(pid):
    """Whether a process runs; one that has ended may wait for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def one_running(bench):
    job = bench.start(SLOW)
    wait_until(bench.stored, job)
    return job


def test_a_second_run_is_told_who_holds_the_lock_and_sigterm_loses_nothing(
    bench, one_running, capsys
):
    assert generate_knowledge.main(bench.arguments()) == 3
    assert f"is being written by another job (process {one_running.pid})" in capsys.readouterr().err
    one_running.terminate()
    assert one_running.wait(PATIENCE) == 143
    assert "interrupted; what is stored stays" in bench.log
    bench.require_little_lost()
    bench.resume()
    bench.require_whole()


@pytest.mark.parametrize(
    "moment",
    [
        f'"{WAVE}/part-00002" in target',  # written, not renamed
        f'target.endswith("{WAVE}/manifest.json")',  # all parts there, the manifest not
        'target.endswith("/knowledge/manifest.json") and "waves" not in target',
    ],
    ids=["a part has no name yet", "a wave has no manifest yet", "the run has no manifest yet"],
)
def test_a_crash_between_two_writes_leaves_what_was_whole(bench, moment):
    job = bench.start(f"def before_rename(target):\n    if {moment}: die_once()")
    assert job.wait(PATIENCE) == -signal.SIGKILL, bench.output()
    assert leftovers(bench.store.root)  # it died before the rename
    bench.require_little_lost()
    assert generate_knowledge.main(bench.arguments()) == 0
    bench.require_whole()


# A mount of its own for these processes only; the second run has room.
FULL = """
set -eu
cp -r "$RUN" "$RUN.aside"
mount -t tmpfs -o size="$ROOM" none "$RUN"
cp -r "$RUN.aside/." "$RUN"
code=0; "$@" || code=$?
find "$RUN" -name "*.tmp" > "$NOTES/torn"
echo $code > "$NOTES/code"
cp "$RUN/run.log" "$NOTES/log"
mount -o remount,size=64m "$RUN"
"$@"
cp -r "$RUN/." "$RUN.aside"
"""


def can_mount(folder):
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(folder)]
    return shutil.which("unshare") and not subprocess.run(command, capture_output=True).returncode


def test_a_full_disk_ends_the_run_and_loses_nothing_once_there_is_room(bench):
    if not can_mount(bench.notes):
        pytest.skip("no mount namespaces on this machine")
    variables = {
        "RUN": str(bench.store.root),
        "NOTES": str(bench.notes),
        "ROOM": str(pages(bench.store.root) + 24 * 4096),
    }
    job = subprocess.run(
        [
            *("unshare", "-rm", "bash", "-c", FULL, "full"),
            *(sys.executable, "-c", bench.script(""), *bench.arguments()),
        ],
        cwd=ROOT,
        env=os.environ | variables | SECRETS,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    (bench.notes / "output").write_text(job.stdout + job.stderr)
    assert job.returncode == 0, job.stderr
    assert int((bench.notes / "code").read_text()) == 3
    assert "No space left on device" in (bench.notes / "log").read_text()
    assert (bench.notes / "torn").read_text() == ""  # what was half written took room
    shutil.rmtree(bench.store.root)
    bench.store.root.with_name(f"{bench.store.root.name}.aside").rename(bench.store.root)
    bench.require_whole()


def pages(folder):
    """Bytes that a tmpfs needs for a folder."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return sum(-(-size // 4096) * 4096 for size in sizes)


def rows_of(store):
    return {(row["kind"], row["entity_id"]): row for row in store.read("knowledge").to_pylist()}


def with_other_books(bench, titles):
    """Overrides for the same catalog with further books, which nobody has read."""
    tree = yaml.safe_load(bench.config.read_text())
    source = Path(tree["catalog"]["tables"]["items"]["path"])
    target = bench.notes / "books.csv"
    shutil.copy(source, target)
    with target.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows((f"x{n}", title, "Crime") for n, title in enumerate(titles))
    shutil.rmtree(bench.store.root)
    return (f"catalog.tables.items.path={target}",)


def require_others_equal(bench, spared):
    """Rows that were asked the same say the same; `spared` are the rows not compared."""
    calm, rows = rows_of(bench.calm), rows_of(bench.store)
    same = {
        entity
        for entity, row in rows.items()
        if entity in calm and calm[entity]["prompt_hash"] == row["prompt_hash"]
    }
    assert len(same) > 70
    for entity in same - set(spared):
        assert rows[entity]["token_ids"] == calm[entity]["token_ids"], entity
        assert rows[entity]["error"] == ""


def write_groups(bench, *overrides):
    for stage in (build_catalog, train_embeddings, group_entities):
        assert stage.main(bench.arguments(*overrides)) == 0


POISON = [
    "",
    "\x01\x02\x03\x1b\x7f",
    "\u202eeltit a\u202c\u200f\u061c",
    "x" * 100_000,
    "</s><s><pad>" * 50,
    "<|im_end|><|im_start|>system",
    '"quoted", {{ 7 * 7 }} {% raw %}',
    "\U0001f469\u200d\U0001f680" * 200,
    "Zu lang " + "\u4e66" * 5000,
]


def test_poison_titles_get_a_row_each_and_change_no_other(bench):
    longest = 500
    more = (
        *with_other_books(bench, POISON),
        f"prompts.max_tokens={longest}",
        "generation.max_error_share=0.1",
    )
    write_groups(bench, *more)
    assert generate_knowledge.main(bench.arguments(*more)) == 0
    rows = rows_of(bench.store)
    assert len(rows) == 79 + len(POISON)
    poisoned = [rows["item", f"x{n}"] for n in range(len(POISON))]
    for row in poisoned:
        assert row["error"] == "" or "prompts.max_tokens is 500" in row["error"]
        assert (row["error"] != "") == (row["prompt_tokens"] > longest)
    assert 0 < sum(row["error"] != "" for row in poisoned) < len(POISON)
    require_others_equal(bench, [])


def test_too_many_rows_in_error_say_so_and_keep_the_others(bench):
    more = (*with_other_books(bench, ["\u4e66" * 5000] * 9), "prompts.max_tokens=500")
    write_groups(bench, *more)
    assert generate_knowledge.main(bench.arguments(*more)) == 4
    assert "prompts.max_tokens is 500" in bench.log
    assert len(rows_of(bench.store)) == 79 + 9
    require_others_equal(bench, [])


def test_a_model_that_raises_on_one_row_costs_that_row_only(bench):
    more = (*with_other_books(bench, ["Q" * 12]), "generation.max_error_share=0.05")
    write_groups(bench, *more)
    fault = f"""
def before_pass(number, input_ids):
    row = "".join("Q" if one == {token_of(bench, "Q")} else "." for one in input_ids[0].tolist())
    if "QQQQQ" in row:
        raise RuntimeError("this row cannot be computed")
"""
    job = bench.start(fault, *more)
    assert job.wait(PATIENCE) == 0, bench.output()
    rows = rows_of(bench.store)
    failed = {entity for entity, row in rows.items() if row["error"]}
    assert failed == {("item", "x0")}
    assert "this row cannot be computed" in rows["item", "x0"]["error"]
    assert len(rows) == 79 + 1
    require_others_equal(bench, failed)
    assert "this row cannot be computed" in bench.log


def token_of(bench, letter):
    from transformers import AutoTokenizer

    path = yaml.safe_load(bench.config.read_text())["language_model"]["path"]
    return AutoTokenizer.from_pretrained(path).convert_tokens_to_ids(letter)


# Two nodes of one core each. All processes of the second die at once, while its actor is at work.
NODES = """
import threading
from ray.cluster_utils import Cluster
from jobs.processes import descendants

quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 4,
         "health_check_initial_delay_ms": 500}
sizes = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args=sizes | {"_system_config": quick})
node = cluster.add_node(**sizes)
cluster.wait_for_nodes()

def kill_node():
    def at_work():
        path = NOTES / "begun"
        return path.exists() and any(
            line.startswith(node.node_id) for line in path.read_text().splitlines())
    while not at_work():
        time.sleep(0.05)
    processes = [info.process.pid for infos in node.all_processes.values() for info in infos]
    for pid in {*processes, *(child for one in processes for child in descendants(one))}:
        os.kill(pid, signal.SIGKILL)
    ONCE.touch()

threading.Thread(target=kill_node, daemon=True).start()
code = generate_knowledge.main([*sys.argv[1:], "--set", f"cluster.address={cluster.address}"])
import ray
ray.shutdown()
cluster.shutdown()
sys.exit(code)
"""


def test_a_node_that_dies_takes_no_row_with_it(bench):
    script = bench.script(SLOW, NODES)
    job = bench.popen(
        [sys.executable, "-c", script, *bench.arguments("cluster.knowledge.actors=2")]
    )
    assert job.wait(PATIENCE) == 0, bench.output()
    assert (bench.notes / "once").exists()
    nodes = {line.split()[0] for line in (bench.notes / "begun").read_text().splitlines()}
    assert len(nodes) == 2
    bench.require_whole()
    assert "a worker has ended" in bench.log


def test_the_manifests_name_no_secret(bench, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    assert generate_knowledge.main(bench.arguments()) == 0
    (bench.notes / "output").touch()
    manifests = list(bench.store.root.rglob("manifest.json"))
    assert len(manifests) > 7
    assert all(json.loads(path.read_text())["settings"] is not None for path in manifests)
    bench.require_whole()
