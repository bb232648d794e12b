"""How a command ended, as one JSON object for a scheduler or a notebook."""

import time
from typing import Any

from jobs.cli import Ended
from pipeline.mirrored_files import MirroredFiles
from pipeline.run_files import MANIFEST
from pipeline.store import Store


def outcome(command: str, ended: Ended, store: Store | None, began: float) -> dict[str, Any]:
    """Exit code, error, and every dataset of the run with whether it was made since `began`.

    `store` is None where no run was begun; `began` is in seconds since 1970.
    """
    told: dict[str, Any] = {
        "command": command,
        "exit_code": ended.code,
        "error": ended.error or None,
        "seconds": round(time.time() - began, 1),
    }
    if store is None:
        return told
    run, folder = store.root.name, store.files.address
    return told | {"run": run, "folder": folder, "datasets": _datasets(store, began)}


def _datasets(store: Store, began: float) -> list[dict[str, Any]]:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began))
    found = [store.manifest(name) for name in _names(store)]
    return [
        {
            "dataset": manifest.dataset,
            "rows": manifest.num_rows,
            "made_now": manifest.created >= since,
            "created": manifest.created,
            "seconds": manifest.seconds,
            "fingerprint": manifest.fingerprint,
        }
        for manifest in found
        if manifest is not None
    ]


def _names(store: Store) -> list[str]:
    """Datasets of a run, at any depth, but for those set aside."""
    if isinstance(store.files, MirroredFiles):
        files = list(store.files.mirror.files())
    else:
        files = [str(path.relative_to(store.root)) for path in store.root.rglob(MANIFEST)]
    folders = [file.removesuffix(f"/{MANIFEST}") for file in files if file.endswith(f"/{MANIFEST}")]
    return sorted(name for name in folders if not name.startswith("superseded/"))
