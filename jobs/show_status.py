"""How far a run is, from its folder: running, dead or done.

    python -m jobs.show_status --config conf/demo.yaml

Looks only; takes no lock and writes nothing. Exit codes: 0 every stage is made, 6 some are not,
3 there is no such run.
"""

import fcntl
import sys
import time
from collections.abc import Iterator, Sequence

from features.provenance import unit_of
from jobs import cli
from jobs.encode_controls import dataset_of, wanted
from jobs.lease import holder
from jobs.remote_log import RUN_LOG
from jobs.waves import (
    knowledge_name,
    last_wave,
    pools_name,
    wave_has_pools,
    why_no_comparison,
)
from pipeline.config import RunConfig
from pipeline.mirrored_files import MirroredFiles
from pipeline.store import Store

UNFINISHED = 6  # exit code


def datasets(config: RunConfig) -> list[str]:
    """What a whole run makes, in order."""
    by_wave: list[str] = []
    for wave in range(last_wave(config) + 1):
        by_wave += [pools_name(wave)] if wave_has_pools(config, wave) else []
        by_wave.append(knowledge_name(wave))
    before = ["users", "items", "interactions", "embeddings", "groups"]
    controls = [dataset_of(name) for name in wanted(config)]
    check = [*controls, "fits", "ctr"]
    after = ["knowledge", "comparison", "features", "quality", *check, "report"]
    return [*before, *by_wave, *after]


# Made on demand: listed if they exist, and no run lacks them.
_GENERATIVE = (
    "semantic_ids",
    "recommender",
    "aligned_drafter",
    "retriever",
    "recommendations",
    "generative_benchmark",
)


def run(config: RunConfig, store: Store) -> int:
    """Print the status; return an exit code."""
    for line in lines(config, store):
        print(line)
    skipped = _skipped(config, store)
    made = all(store.is_consistent(name) for name in datasets(config) if name not in skipped)
    return 0 if made else UNFINISHED


def lines(config: RunConfig, store: Store) -> Iterator[str]:
    """The status for a terminal."""
    previous = config.refresh.previous
    yield f"{store.files.address}{f', a refresh of {previous}' if previous else ''}: {_who(store)}"
    skipped = _skipped(config, store)
    on_demand = [name for name in _GENERATIVE if store.files.has_folder(name)]
    for name in [*datasets(config), *on_demand]:
        yield f"  {name:<20} {skipped.get(name) or _state(store, name)}"
    log, written = store.files.read(RUN_LOG), store.files.written_at(RUN_LOG)
    if log is not None and written is not None:
        last = log.decode(errors="replace").splitlines()[-1:]
        age = time.time() - written
        yield f"last line of run.log, {age:.0f} s ago: {last[0] if last else '(empty)'}"


def _skipped(config: RunConfig, store: Store) -> dict[str, str]:
    """What a run rightly leaves out, and why."""
    reason = why_no_comparison(config, store)
    return {"comparison": f"left out: {reason}"} if reason else {}


def _state(store: Store, name: str) -> str:
    """One dataset: made, in work or missing."""
    manifest = store.manifest(name)
    if manifest is not None:
        stale = "" if store.is_consistent(name) else ", from older inputs"
        size = f"{manifest.num_rows} {unit_of(name)}"
        return f"{size}, {manifest.created}, {manifest.seconds:.0f} s{stale}"
    stored = store.files.stored_rows(name)
    return "-" if stored is None else f"unfinished, {stored} rows stored"


def _who(store: Store) -> str:
    """Who writes the run."""
    if isinstance(store.files, MirroredFiles):
        who = holder(store)
        return f"{who} is writing it" if who else "no job is running"
    lock = store.root / "lock"
    if not lock.is_file():
        return "no job was ever started"
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return f"process {file.read() or 'unknown'} is writing it"
        left = file.read()
    return (
        f"no job is running; process {left}, the last, was killed" if left else "no job is running"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.look(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
