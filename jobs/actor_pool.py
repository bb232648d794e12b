"""Blocks of rows through a pool of actors: how every model-holding worker is started and ended.

Plain Ray actors: Ray Data names no option for how often an actor may be restarted, and would
restart for ever one whose process dies while it loads.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from jobs.cluster import Workers

_RESTARTS = 3  # of an actor, and tries of a block


def through_actors(
    kind: type,
    arguments: Sequence[Any],
    blocks: Sequence[pa.Table],
    workers: Workers,
    ordered: bool,
) -> Iterator[pa.Table]:
    """What actors of a class answer to each block: in the order of `blocks`, or as they finish.

    Every actor is built with `arguments`, and called with one block after another. An actor among
    the arguments would be lost in a restart: give its name instead.
    """
    import ray
    from ray.util import ActorPool

    remote: Any = ray.remote(
        num_cpus=1,
        num_gpus=workers.gpus_each,
        max_restarts=_RESTARTS,
        max_task_retries=_RESTARTS,
    )(kind)
    actors = [remote.remote(*arguments) for _ in range(min(workers.actors, len(blocks)))]
    pool = ActorPool(actors)
    answers = pool.map if ordered else pool.map_unordered
    yield from answers(lambda actor, block: actor.__call__.remote(block), list(blocks))
    for actor in actors:  # not where a job fails or is stopped: Ray would mourn blocks in work
        ray.kill(actor)
