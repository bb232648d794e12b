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

_TEXTS = ("group_entities", "generate_knowledge", "encode_features")
TRAINED_BY = {"aligned_drafter": "align_drafter", "retriever": "train_retriever"}


def stages_of(config: RunConfig) -> list[str]:
    """All jobs, in order; of texts and embeddings only what semantic IDs are made from."""
    if config.semantic_ids.content == "knowledge":
        return ["build_catalog", "train_embeddings", *_TEXTS, *list_stages(config)]
    behaviour = [] if config.semantic_ids.from_run else ["train_embeddings"]
    return ["build_catalog", *behaviour, *list_stages(config)]


def list_stages(config: RunConfig) -> list[str]:
    """The jobs between features and lists."""
    from pipeline.generative.methods import METHODS  # torch takes seconds to import

    needs = METHODS[config.recommendation.method].datasets
    trained = ["train_recommender", *(TRAINED_BY[name] for name in needs)]
    return ["assign_semantic_ids", *trained, "recommend_items"]


def run(config: RunConfig, store: Store) -> None:
    """Run all stages; error rows of one are raised at the end, as all others can be served.

    What takes seconds to import is imported here, when the config has been read and found good.
    """
    from jobs.preflight import check_inputs
    from jobs.recommendation_examples import examples
    from pipeline.withdrawn import withdrawn_ids

    check_inputs(config, writes_texts=config.semantic_ids.content == "knowledge")
    _check_earlier(config)
    if config.recommendation.withdrawn is not None:
        withdrawn_ids(config.recommendation.withdrawn)
    missed: list[UserError] = []
    stages = stages_of(config)
    for number, name in enumerate(stages, 1):
        log.info("[%d/%d] %s", number, len(stages), name)
        began = time.monotonic()
        try:
            import_module(f"jobs.{name}").run(config, store)
        except PartialError as error:
            log.error("%s: %s", name, error)
            missed.append(error)
        log.info("[%d/%d] %s: %.0f s", number, len(stages), name, time.monotonic() - began)
    for line in examples(store):
        log.info("%s", line)
    if missed:
        raise missed[0]


def _check_earlier(config: RunConfig) -> None:
    """Refuse now what stages would refuse of runs that this one goes on from."""
    from jobs.earlier_models import open_earlier_model
    from jobs.semantic_id_files import open_earlier
    from pipeline.generative.methods import METHODS

    open_earlier(config)
    for dataset in ("recommender", *METHODS[config.recommendation.method].datasets):
        open_earlier_model(config, dataset)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
