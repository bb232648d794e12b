"""What generation takes at one size: time and memory of each process; see jobs.benchmark_scale.

The catalog is made up and the language model tiny, so what is seen is the pipeline around it.
"""

import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from jobs.processes import actors_of, descendants, read_proc, start_job
from jobs.scale_stages import Cost
from jobs.scale_tables import catalog_tables
from jobs.soak_shop import make_shop
from pipeline.config import RunConfig
from pipeline.errors import ModelError
from pipeline.schemas import GROUPS
from pipeline.store import Store
from retrieval_pools.synthetic import synthetic_interactions

_GROUP_SIZE = 100
_EDGES_PER_USER = 20
_LOOK = 0.5  # s
_MIB = 2**10  # kB
_SETTINGS = {
    "prompts": {"history_limit": 5, "max_tokens": 448},
    "generation": {
        "rule": "strict",
        "max_new_tokens": 4,
        "waves": 1,
        "kinds": ["user"],
        "block_rows": 1024,
    },
    "engine": {"batch_rows": 64, "max_length": 512, "draft_nodes": 4, "prefill_tokens": 8192},
    "groups": {"min_interactions": 1},
    "catalog": {"source": "movielens", "path": "unused"},
    "encoder": {"path": "unused"},
}


def knowledge(rows: int, config: RunConfig, scratch: Path) -> list[Cost]:
    """Write knowledge about so many users.

    Raises:
        ModelError: the job failed; its last lines are in the message.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as made:
        folder = Path(made)
        make_shop(folder, config.seed)
        users = _write_catalog(Store(folder / "artifacts/scale"), rows, config.seed)
        tree = _SETTINGS | {
            "run": "scale",
            "artifacts": str(folder / "artifacts"),
            "language_model": {"path": str(folder / "model")},
        }
        (folder / "scale.yaml").write_text(json.dumps(tree))  # JSON is YAML
        return [_watched(folder, users)]


def _write_catalog(store: Store, rows: int, seed: int) -> int:
    """The datasets that generation reads; returns how many users there are."""
    made = synthetic_interactions(rows * _EDGES_PER_USER, seed)
    tables = dict(zip(("users", "items", "interactions"), catalog_tables(made), strict=True))
    for name, table in tables.items():
        store.plan(name, {}).write(table)
    count = made.num_users
    number = np.arange(count)
    store.plan("groups", {}).write(
        pa.table(
            {
                "kind": pa.repeat("user", count),
                "entity_id": tables["users"]["user_id"],
                "route": pa.repeat("attribute", count),
                "group_id": [f"user/{group}" for group in (number // _GROUP_SIZE).tolist()],
                "distance": np.zeros(count, np.float32),
                "representative": number % _GROUP_SIZE < 2,
            }
        ).cast(GROUPS)
    )
    return count


def _watched(folder: Path, rows: int) -> Cost:
    """Run the job, and look at its processes until it ends."""
    output = folder / "output"
    began = time.perf_counter()
    job = start_job("jobs.generate_knowledge", ["--config", str(folder / "scale.yaml")], output)
    facts = {"driver_mib": 0.0, "actor_mib": 0.0, "store_mib": 0.0}
    core_seconds, resident = 0.0, [0]
    try:
        while job.poll() is None:
            actors, others = actors_of(job.pid), descendants(job.pid)
            seen = {
                "driver_mib": _kilobytes(job.pid, "VmHWM"),
                "actor_mib": max((_kilobytes(one, "VmHWM") for one in actors), default=0),
                "store_mib": max((_kilobytes(one, "RssShmem") for one in others), default=0),
            }
            facts = {name: max(value, seen[name] / _MIB) for name, value in facts.items()}
            core_seconds = max(core_seconds, sum(_core_seconds(one) for one in [job.pid, *actors]))
            resident.append(_kilobytes(job.pid, "VmRSS"))
            time.sleep(_LOOK)
    finally:
        job.terminate()  # if we are stopped, it is too
        job.wait()
    if job.returncode:
        raise ModelError(f"generation of {rows} rows failed: {output.read_text()[-2000:]}")
    seconds = time.perf_counter() - began
    # Of the driver while rows are written: the second half of the time, without the very end.
    written = resident[len(resident) // 2 : -len(resident) // 20]
    facts["driver_drift_mib"] = (written[-1] - written[0]) / _MIB if written else 0.0
    peak = facts["driver_mib"] + facts["actor_mib"]
    return Cost("knowledge", "row", rows, rows, core_seconds, seconds, peak, peak, None, facts)


def _kilobytes(pid: int, field: str) -> int:
    """A field of /proc/<pid>/status, 0 if the process has ended."""
    lines = read_proc(Path(f"/proc/{pid}/status")).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)


def _core_seconds(pid: int) -> float:
    """What all threads of a process have worked, 0 if it has ended."""
    fields = read_proc(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
