"""FEATURES and CTR rows -> `export`: npz in FuxiCTR's format, and Parquet in Feast's.

    python -m jobs.export_features --config conf/demo.yaml

What the files hold stands in `features/export.py`. The rows are those of the CTR check, and what
the check refuses (knowledge from the future, vectors without provenance) is refused here too.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from features.export import FEAST, FORMAT, FUXICTR, write_feast, write_fuxictr
from jobs import cli
from jobs.fit_models import INPUTS, load_inputs
from jobs.waves import require_own_framework
from pipeline.config import RunConfig
from pipeline.store import Store

log = logging.getLogger("jobs.export_features")


def run(config: RunConfig, store: Store) -> None:
    """Write the dataset `export`."""
    require_own_framework(config, store)
    plan = store.plan("export", settings=settings_of(config), inputs=INPUTS)
    if plan.is_done:
        log.info("export: up to date, %d CTR rows", store.require("export").num_rows)
        return
    data, _ = load_inputs(store, config)
    features = store.read("features")
    interactions = store.read("interactions", ["timestamp"])
    created = store.require("features").created

    def fill(folder: Path) -> None:
        write_fuxictr(folder / FUXICTR, data, features, config.run)
        write_feast(folder / FEAST, data, features, interactions, created)

    rows = {name: len(split) for name, split in data.splits.items()}
    plan.write_files(fill, num_rows=sum(rows.values()), facts=rows)
    log.info(
        "export: %d CTR rows and %d vectors in %s/export",
        *(sum(rows.values()), features.num_rows, store.files.address),
    )


def settings_of(config: RunConfig) -> dict[str, Any]:
    """What an export depends on besides its inputs."""
    return {
        "history_length": config.ctr.history_length,
        "dataset": config.run,
        "format": FORMAT,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
