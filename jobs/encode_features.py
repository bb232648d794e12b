"""KNOWLEDGE -> FEATURES: encode the text of every entity, on a pool of Ray actors.

    python -m jobs.encode_features --config conf/demo.yaml

Blocks are stored in the order of KNOWLEDGE as they come, so memory stays bounded and a killed job
goes on after the last stored block.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
import math
import sys
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from features.encoder import locate_encoder, require_positions, weights_fingerprint
from jobs import cli
from jobs.cluster import bounded_retries, size_workers, start_ray
from jobs.encoding_actor import EncodingActor
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.store import Store

log = logging.getLogger("jobs.encode_features")

_BLOCK_ROWS = 1024  # stored together; texts are sorted by length inside a block
_KEY = ["kind", "entity_id"]


def run(config: RunConfig, store: Store) -> None:
    """Write the dataset `features`."""
    folder = locate_encoder(config.encoder.path)
    require_positions(folder, config.encoder.max_tokens)
    settings = {"weights": weights_fingerprint(folder), "max_tokens": config.encoder.max_tokens}
    plan = store.plan("features", settings=settings, inputs=["knowledge"])
    if plan.is_done:
        log.info("features: up to date, %d rows", store.require("features").num_rows)
        return
    knowledge = store.read("knowledge").select([*_KEY, "text", "error"])
    writer = plan.open_writer()
    stored = writer.existing()
    require_owed(stored, knowledge.slice(0, stored.num_rows))
    log.info("features: %d texts, %d are encoded already", knowledge.num_rows, stored.num_rows)
    todo = knowledge.slice(stored.num_rows)
    tally = {"dim": _width(stored), "without_text": _without_text(stored), "truncated": 0}
    encoded = 0
    for block in _encoded_blocks(config, todo):
        require_owed(block, todo.slice(encoded, block.num_rows))
        writer.append(block.drop_columns(["truncated"]))
        encoded += block.num_rows
        tally["dim"] = _width(block)
        tally["without_text"] += _without_text(block)
        tally["truncated"] += pc.sum(block["truncated"]).as_py()
        log.info("features: %d / %d texts encoded", encoded, todo.num_rows)
    if encoded != todo.num_rows:
        raise DataError(
            f"features: {todo.num_rows - encoded} rows of knowledge were not encoded; run again"
        )
    writer.finish(settings | tally | {"truncated_of": encoded})
    log.info(
        "features: %d rows of %d dimensions, %d without usable text; %d of %d texts encoded now "
        "are longer than %d tokens",
        *(knowledge.num_rows, tally["dim"], tally["without_text"]),
        *(tally["truncated"], encoded, config.encoder.max_tokens),
    )


def require_owed(block: pa.Table, owed: pa.Table) -> None:
    """Check that `block` answers the rows of `owed`, each once and in order.

    Raises:
        DataError: rows are missing, extra or in another order; up to 3 are named.
    """
    if block.select(_KEY).equals(owed.select(_KEY)):
        return
    got, wanted = (
        list(zip(*(t[key].to_pylist() for key in _KEY), strict=True)) for t in (block, owed)
    )
    missing, extra = sorted(set(wanted) - set(got)), sorted(set(got) - set(wanted))
    raise DataError(
        f"features: a block of {len(wanted)} rows came back as {len(got)}: {len(missing)} missing "
        f"{missing[:3]}, {len(extra)} not asked for {extra[:3]}; move the folder of `features` "
        "away and run again"
    )


def _encoded_blocks(config: RunConfig, knowledge: pa.Table) -> Iterator[pa.Table]:
    """FEATURES with `truncated`, block by block, in the order of `knowledge`."""
    if not knowledge.num_rows:
        return
    start_ray(config.cluster)
    import ray

    workers = size_workers(config.cluster, config.encoder.device, ray.cluster_resources())
    rows = min(_BLOCK_ROWS, math.ceil(knowledge.num_rows / workers.actors))
    blocks = [knowledge.slice(at, rows) for at in range(0, knowledge.num_rows, rows)]
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    encoded = ray.data.from_arrow(blocks).map_batches(
        EncodingActor,
        fn_constructor_args=(config.encoder, workers.threads_each),
        batch_size=None,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=workers.actors),
        num_cpus=1,
        num_gpus=workers.gpus_each,
        ray_remote_args_fn=bounded_retries,
    )
    yield from encoded.iter_batches(batch_size=None, batch_format="pyarrow")


def _width(features: pa.Table) -> int:
    """Dimensions of the vectors; 0 for a table that never had a row."""
    kind = features.schema.field("vector").type
    return kind.list_size if pa.types.is_fixed_size_list(kind) else 0


def _without_text(features: pa.Table) -> int:
    return pc.sum(pc.equal(features["source"], "none")).as_py() or 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
