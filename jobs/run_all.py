"""The main job: every stage in order, each skipped if its output is up to date.

python -m jobs.run_all --config conf/demo.yaml
"""

import logging
import sys
import time
from collections.abc import Sequence
from importlib import import_module

from jobs import cli
from pipeline.config import RunConfig
from pipeline.errors import CheckError, PartialError, UserError
from pipeline.store import Manifest, Store

log = logging.getLogger("jobs.run_all")

STAGES = (
    "build_catalog",
    "train_embeddings",
    "group_entities",
    "generate_knowledge",
    "encode_features",
    "measure_quality",
    "check_ctr",
    "compare_decoding",  # a measurement: nothing waits for it but the report
    "write_report",
)


def run(config: RunConfig, store: Store) -> None:
    """Run all stages; a missed threshold is raised at the end, when the report shows it.

    What takes seconds to import is imported here, when the config has been read and found good.
    """
    from jobs import log_run
    from jobs.preflight import check_inputs

    check_inputs(config)
    before = _made(config, store)
    missed: list[UserError] = []
    for number, name in enumerate(STAGES, 1):
        log.info("[%d/%d] %s", number, len(STAGES), name)
        began = time.monotonic()
        try:
            import_module(f"jobs.{name}").run(config, store)
        except (PartialError, CheckError) as error:
            log.error("%s: %s", name, error)
            missed.append(error)
        log.info("[%d/%d] %s: %.0f s", number, len(STAGES), name, time.monotonic() - began)
    log_run.attempt(config, store, missed)
    if missed:
        raise missed[0]
    if _made(config, store) == before:
        log.info("nothing to do: every stage is up to date")


def _made(config: RunConfig, store: Store) -> list[Manifest | None]:
    """The datasets of the run as they are now."""
    from jobs.show_status import datasets

    return [store.manifest(name) for name in datasets(config)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
