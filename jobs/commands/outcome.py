"""How a command ended, as one JSON object for a scheduler or a notebook."""

import time
from pathlib import Path
from typing import Any

from jobs.cli import Ended, read_config
from jobs.commands.options import Asked
from pipeline.errors import UserError
from pipeline.run_files import MANIFEST
from pipeline.runs import open_run
from pipeline.store import Store


def outcome(command: str, ended: Ended, on: Asked, began: float) -> dict[str, Any]:
    """Exit code, error, and every dataset of the run with whether it was made since `began`.

    `began` is in seconds since 1970.
    """
    told: dict[str, Any] = {
        "command": command,
        "exit_code": ended.code,
        "error": ended.error or None,
        "seconds": round(time.time() - began, 1),
    }
    try:
        config = read_config(*on)
        store = open_run(config.artifacts, config.run)
        datasets = _datasets(store, began) if store.files.exists() else []
    except UserError:  # it is what `error` says
        return told
    return told | {"run": config.run, "folder": store.files.address, "datasets": datasets}


def _datasets(store: Store, began: float) -> list[dict[str, Any]]:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began))
    found = [store.manifest(name) for name in _names(store.root)]
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


def _names(root: Path) -> list[str]:
    """Datasets in a folder, at any depth, but for those set aside."""
    folders = [file.parent.relative_to(root) for file in root.rglob(MANIFEST)]
    return sorted(str(one) for one in folders if one.parts[0] != "superseded")
