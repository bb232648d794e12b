"""CATALOG -> `controls/<name>/features`: what the catalog says by itself, encoded without an LLM.

    python -m jobs.encode_controls --config conf/demo.yaml

Which of them a check needs `ctr.controls` says. A killed job goes on after the last stored block.
"""

import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

from features.ctr.controls import TEMPLATES, control_texts, dataset_of, encoded
from features.encoder import locate_encoder, require_positions, weights_fingerprint
from jobs import cli
from jobs.actor_pool import ActorPool
from jobs.cluster import node_resources, size_workers, start_ray
from jobs.encoding_actor import EncodingActor
from jobs.progress import Countdown
from jobs.waves import CATALOG
from pipeline.config import RunConfig
from pipeline.prompts import Prompts
from pipeline.schemas import KINDS
from pipeline.store import Plan, Store

log = logging.getLogger("jobs.encode_controls")

_BLOCK_ROWS = 1024


def run(config: RunConfig, store: Store) -> None:
    """Write the controls of the check that are missing."""
    encode(config, store, encoded(config.ctr.controls))


def encode(config: RunConfig, store: Store, names: Sequence[str]) -> None:
    """Write those of the controls `names` that are missing."""
    folder = locate_encoder(config.encoder.path)
    require_positions(folder, config.encoder.max_tokens)
    encoder = {"weights": weights_fingerprint(folder), "max_tokens": config.encoder.max_tokens}
    todo: dict[str, Plan] = {}
    for name in names:
        wording = {"prompts": config.prompts.deciding(), "templates": TEMPLATES[name].hash}
        plan = store.plan(dataset_of(name), encoder | wording, CATALOG)
        if plan.is_done:
            log.info("%s: up to date, %d rows", plan.name, store.require(plan.name).num_rows)
        else:
            todo[name] = plan
    if todo:
        _encode(config, store, todo)


def _encode(config: RunConfig, store: Store, todo: Mapping[str, Plan]) -> None:
    """Write the controls of `todo` by actors that load the encoder once."""
    users, items, interactions = (store.read(table) for table in CATALOG)
    start_ray(config.cluster)
    workers = size_workers(config.cluster, "features", config.encoder.device, node_resources())
    with ActorPool(EncodingActor, (config.encoder, workers.threads_each, None), workers) as pool:
        ended = 0.0
        for name, plan in todo.items():
            # All were planned at once; each takes the seconds that are its own.
            plan = replace(plan, began=max(plan.began, ended))
            prompts = Prompts(users, items, interactions, config.prompts, TEMPLATES[name])
            _write(plan, prompts, pool)
            ended = time.monotonic()


def _write(plan: Plan, prompts: Prompts, pool: ActorPool) -> None:
    """FEATURES, block by block, after those that are stored."""
    writer = plan.open_writer()
    stored = len(writer.parts())
    written = 0  # now, by the job that says its seconds
    total = sum(math.ceil(prompts.count(kind) / _BLOCK_ROWS) for kind in KINDS)
    blocks = islice(control_texts(prompts, _BLOCK_ROWS), stored, None)
    countdown = Countdown(log, plan.name, "blocks of texts", total, stored)
    for block in pool.through(blocks, total - stored, ordered=True):
        writer.append(block.drop_columns(["truncated"]))
        written += block.num_rows
        countdown.count()
    writer.finish({"rows_written": written})
    log.info("%s: %d rows", plan.name, plan.store.require(plan.name).num_rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
