"""All that lists of items take, from raw data on, each stage skipped if its output is up to date.

python -m jobs.recommend --config conf/generative.yaml
"""

import logging
import sys
import time
from collections.abc import Sequence
from importlib import import_module

from jobs import cli
from pipeline.config import RunConfig
from pipeline.errors import PartialError, UserError
from pipeline.store import Store

log = logging.getLogger("jobs.recommend")

LIST_STAGES = ("assign_semantic_ids", "train_recommender", "recommend_items")
STAGES = (
    "build_catalog",
    "train_embeddings",
    "group_entities",
    "generate_knowledge",
    "encode_features",
    *LIST_STAGES,
)


def run(config: RunConfig, store: Store) -> None:
    """Run all stages; error rows of one are raised at the end, as all others can be served.

    What takes seconds to import is imported here, when the config has been read and found good.
    """
    from jobs.preflight import check_inputs

    check_inputs(config)
    missed: list[UserError] = []
    for number, name in enumerate(STAGES, 1):
        log.info("[%d/%d] %s", number, len(STAGES), name)
        began = time.monotonic()
        try:
            import_module(f"jobs.{name}").run(config, store)
        except PartialError as error:
            log.error("%s: %s", name, error)
            missed.append(error)
        log.info("[%d/%d] %s: %.0f s", number, len(STAGES), name, time.monotonic() - began)
    if missed:
        raise missed[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
