"""How far a run is, from its folder: running, dead or done.

    python -m jobs.show_status --config conf/demo.yaml

Looks only; takes no lock and writes nothing. Exit codes: 0 every stage is made, 6 some are not,
3 there is no such run.
"""

import fcntl
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from features.ctr.controls import dataset_of, encoded
from features.formats import duration
from features.provenance import unit_of
from jobs import cli
from jobs.lease import holder
from jobs.left_out import why_no_check, why_no_comparison
from jobs.remote_log import RUN_LOG
from jobs.wave_names import knowledge_name, last_wave, pools_name, wave_has_pools
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
    checked = ["quality", *check_datasets(config)]
    return [*before, *by_wave, "knowledge", "features", *checked, "comparison", "report"]


def check_datasets(config: RunConfig) -> list[str]:
    """What the CTR check makes, in order."""
    return [*map(dataset_of, encoded(config.ctr.controls)), "fits", "ctr"]


# Of lists of items: listed if they exist.
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
    facts = facts_of(config, store)
    for line in lines(facts):
        print(line)
    return facts["exit_code"]


def facts_of(config: RunConfig, store: Store) -> dict[str, Any]:
    """The status as plain data; `exit_code` is 0 if every stage is made, else 6."""
    skipped, wanted = _skipped(config, store), wanted_of(config, store)
    on_demand = [name for name in _GENERATIVE if store.files.has_folder(name)]
    names = list(dict.fromkeys([*wanted, *on_demand]))
    made = all(store.is_consistent(name) for name in wanted if name not in skipped)
    log, written = store.files.read(RUN_LOG), store.files.written_at(RUN_LOG)
    last = log.decode(errors="replace").splitlines()[-1:] if log else []
    return {
        "run": config.run,
        "folder": store.files.address,
        "previous": config.refresh.previous,
        "who": _who(store),
        "datasets": [_dataset(store, name, skipped.get(name, "")) for name in names],
        "last_line": last[0] if last else "",
        "last_line_age_seconds": None if written is None else round(time.time() - written),
        "exit_code": 0 if made else UNFINISHED,
    }


def lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The status for a terminal."""
    previous = facts["previous"]
    refresh = f", a refresh of {previous}" if previous else ""
    yield f"{facts['folder']}{refresh}: {facts['who']}"
    for dataset in facts["datasets"]:
        yield f"  {dataset['dataset']:<20} {_in_words(dataset)}"
    if facts["last_line_age_seconds"] is not None:
        age = facts["last_line_age_seconds"]
        told = duration(age) if age >= 10 else f"{age} s"
        yield f"last line of run.log, {told} ago: {facts['last_line'] or '(empty)'}"


def wanted_of(config: RunConfig, store: Store) -> list[str]:
    """What the run makes in the end: of lists alone no texts are wanted."""
    has_texts = any(store.files.has_folder(name) for name in ("waves", "knowledge", "groups"))
    has_lists = any(store.files.has_folder(name) for name in _GENERATIVE)
    if has_texts or not has_lists:
        return datasets(config)
    from pipeline.generative.methods import METHODS  # torch takes seconds to import

    trained = METHODS[config.recommendation.method].datasets
    catalog = ["users", "items", "interactions"]
    return [*catalog, "semantic_ids", "recommender", *trained, "recommendations"]


def _skipped(config: RunConfig, store: Store) -> dict[str, str]:
    """What a run rightly leaves out, and why."""
    no_comparison, no_check = why_no_comparison(config, store), why_no_check(config)
    left_out = {"comparison": no_comparison} if no_comparison else {}
    return left_out | (dict.fromkeys(check_datasets(config), no_check) if no_check else {})


def _dataset(store: Store, name: str, skipped: str) -> dict[str, Any]:
    """One dataset: made, stale (from older inputs), unfinished, missing or left out."""
    manifest = store.manifest(name)
    if skipped:
        return {"dataset": name, "state": "left out", "why": skipped}
    if manifest is not None:
        return {
            "dataset": name,
            "state": "made" if store.is_consistent(name) else "stale",
            "rows": manifest.num_rows,
            "unit": unit_of(name),
            "created": manifest.created,
            "seconds": manifest.seconds,
        }
    stored = store.files.stored_rows(name)
    if stored is None:
        return {"dataset": name, "state": "missing"}
    return {"dataset": name, "state": "unfinished", "rows": stored}


def _in_words(dataset: Mapping[str, Any]) -> str:
    match dataset["state"]:
        case "left out":
            return f"left out: {dataset['why']}"
        case "missing":
            return "-"
        case "unfinished":
            return f"unfinished, {dataset['rows']} rows stored"
    size = f"{dataset['rows']} {dataset['unit']}"
    stale = ", from older inputs" if dataset["state"] == "stale" else ""
    return f"{size}, {dataset['created']}, {duration(dataset['seconds'])}{stale}"


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
