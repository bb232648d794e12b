"""CATALOG -> `controls/<name>/features`: what the catalog says by itself, encoded without an LLM.

    python -m jobs.encode_controls --config conf/demo.yaml

Which of them a check needs `ctr.controls` says. A killed job goes on after the last stored block.
"""

import logging
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import islice

import pyarrow as pa

from features.ctr.controls import TEMPLATES, control_texts
from features.encoder import locate_encoder, require_positions, weights_fingerprint
from jobs import cli
from jobs.actor_pool import ActorPool
from jobs.cluster import node_resources, size_workers, start_ray
from jobs.encoding_actor import EncodingActor
from jobs.waves import CATALOG
from pipeline.config import RunConfig
from pipeline.prompts import Prompts
from pipeline.schemas import KINDS
from pipeline.store import Store

log = logging.getLogger("jobs.encode_controls")

_BLOCK_ROWS = 1024


def run(config: RunConfig, store: Store) -> None:
    """Write the controls that are wanted and missing."""
    folder = locate_encoder(config.encoder.path)
    require_positions(folder, config.encoder.max_tokens)
    encoder = {"weights": weights_fingerprint(folder), "max_tokens": config.encoder.max_tokens}
    for name in wanted(config):
        settings = encoder | {"prompts": config.prompts, "templates": TEMPLATES[name].hash}
        plan = store.plan(dataset_of(name), settings, CATALOG)
        if plan.is_done:
            log.info("%s: up to date, %d rows", plan.name, store.require(plan.name).num_rows)
            continue
        writer = plan.open_writer()
        for block in _encoded(config, store, name, len(writer.parts())):
            writer.append(block)
        writer.finish()
        log.info("%s: %d rows", plan.name, store.require(plan.name).num_rows)


def wanted(config: RunConfig) -> list[str]:
    """The controls of the check that an encoder reads."""
    return [name for name in config.ctr.controls if name in TEMPLATES]


def dataset_of(name: str) -> str:
    """Where the features of a control stand."""
    return f"controls/{name}/features"


def _encoded(config: RunConfig, store: Store, name: str, stored: int) -> Iterator[pa.Table]:
    """FEATURES, block by block, without the first `stored` blocks."""
    users, items, interactions = (store.read(table) for table in CATALOG)
    prompts = Prompts(users, items, interactions, config.prompts, TEMPLATES[name])
    start_ray(config.cluster)
    workers = size_workers(config.cluster, "features", config.encoder.device, node_resources())
    total = sum(math.ceil(prompts.count(kind) / _BLOCK_ROWS) for kind in KINDS)
    blocks = islice(control_texts(prompts, _BLOCK_ROWS), stored, None)
    with ActorPool(EncodingActor, (config.encoder, workers.threads_each, None), workers) as pool:
        for number, block in enumerate(pool.through(blocks, total - stored, ordered=True), 1):
            yield block.drop_columns(["truncated"])
            log.info("%s: %d / %d blocks", dataset_of(name), stored + number, total)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
