"""The main job: every stage in order, each skipped if its output is up to date.

python -m jobs.run_all --config conf/demo.yaml
"""

import logging
import sys
import time
from collections.abc import Sequence
from importlib import import_module

from features.formats import duration
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

_TOLD = 1.0  # s; what took less was up to date, or might as well have been


def run(config: RunConfig, store: Store) -> str | None:
    """Run all stages; a missed threshold is raised at the end, when the report shows it.

    Returns what the last stage has to say at the very end: where the report is.
    What takes seconds to import is imported here, when the config has been read and found good.
    """
    from jobs import log_run
    from jobs.preflight import check_inputs

    check_inputs(config)
    before = _made(config, store)
    missed: list[UserError] = []
    last = None
    for number, name in enumerate(STAGES, 1):
        log.info("[%d/%d] %s", number, len(STAGES), name)
        began = time.monotonic()
        try:
            last = import_module(f"jobs.{name}").run(config, store)
        except (PartialError, CheckError) as error:
            log.error("%s: %s", name, error)
            missed.append(error)
        if (seconds := time.monotonic() - began) >= _TOLD:
            log.info("[%d/%d] %s took %s", number, len(STAGES), name, duration(seconds))
    log_run.attempt(config, store, missed)
    if missed:
        log.info("%s", last)
        raise missed[0]
    if _made(config, store) == before:
        log.info("nothing to do: every stage is up to date")
    return last


def _made(config: RunConfig, store: Store) -> list[Manifest | None]:
    """The datasets of the run as they are now."""
    from jobs.show_status import datasets

    return [store.manifest(name) for name in datasets(config)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
