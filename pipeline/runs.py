"""The runs in a place: local folders, or folders of an object store with a working copy here."""

import hashlib
from pathlib import Path

from pipeline.locations import is_remote
from pipeline.mirror import Mirror
from pipeline.run_files import MANIFEST
from pipeline.store import Store

RECORD = "run.json"  # says what a run is; see jobs.run_record
_WORKING = Path(".cache/working")


def open_run(artifacts: Path | str, run: str) -> Store:
    """The datasets of a run, be there any or not."""
    if not is_remote(artifacts):
        return Store(Path(artifacts) / run)
    place = hashlib.sha256(artifacts.encode()).hexdigest()[:16]
    return Store(_WORKING / place / run, Mirror(artifacts, run))


def runs_in(artifacts: Path | str) -> list[str]:
    """Names of the runs in a place: of all that hold a record or a dataset.

    Raises:
        DataError: the store cannot be asked.
    """
    if is_remote(artifacts):
        return [name for name in Mirror(artifacts).folders() if _is_run(Mirror(artifacts, name))]
    return sorted(
        folder.name
        for folder in Path(artifacts).glob("*/")
        if (folder / RECORD).is_file() or any(folder.glob(f"*/{MANIFEST}"))
    )


def is_refresh(store: Store) -> bool:
    """Whether wave 0 of a run's knowledge is what an earlier run had already."""
    first = store.manifest("waves/0/knowledge")
    return first is not None and "earlier" in first.settings


def _is_run(mirror: Mirror) -> bool:
    return mirror.info(RECORD) is not None or any(
        mirror.info(f"{folder}/{MANIFEST}") for folder in mirror.folders()
    )
