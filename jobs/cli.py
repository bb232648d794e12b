"""What every job shares: arguments, logging to terminal and file, exit codes a scheduler can trust.

Exit codes: 0 done; 1 unforeseen failure; 2 config; 3 data or model; 4 too many error rows;
5 the CTR check missed its threshold.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.config import RunConfig
from pipeline.config_file import load_config
from pipeline.errors import UserError
from pipeline.store import Store

ROOT = Path(__file__).resolve().parent.parent
log = logging.getLogger("jobs")

Job = Callable[[RunConfig, Store], None]


def main(job: Job, description: str | None, argv: Sequence[str] | None = None) -> int:
    """Parse the arguments, run `job`, and return its exit code."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=Path("conf/demo.yaml"))
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args(argv)
    os.chdir(ROOT)  # relative paths in a config mean the project's root, wherever we were called
    try:
        config = load_config(arguments.config, arguments.set)
        store = Store(config.artifacts / config.run)
        _start_logging(store.root)
        began = time.monotonic()
        job(config, store)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        log.debug("failed", exc_info=True)
        return error.exit_code
    log.info("done in %.0f s; outputs in %s", time.monotonic() - began, store.root)
    return 0


def _start_logging(root: Path) -> None:
    """Log to the terminal and to `<run>/run.log`."""
    root.mkdir(parents=True, exist_ok=True)
    line = logging.Formatter("%(asctime)s %(name)-24s %(message)s", datefmt="%H:%M:%S")
    handlers = [logging.StreamHandler(sys.stderr), logging.FileHandler(root / "run.log")]
    for handler in handlers:
        handler.setFormatter(line)
    for name in ("jobs", "pipeline", "retrieval_pools", "features"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.handlers = handlers
        logger.propagate = False
