"""KNOWLEDGE -> FEATURES: encode the text of every entity, on a pool of Ray actors.

    python -m jobs.encode_features --config conf/demo.yaml

What of an answer is encoded the framework says: the whole of it, or the part that was asked for.
In a refresh a text that has not changed keeps the vector of the earlier run.
Blocks are stored in the order of KNOWLEDGE, so memory stays bounded and a killed job goes on after
the last stored block.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.build import count_malformed
from features.carry import (
    FRESH,
    StoredFeatures,
    blocks_of,
    interleave,
    unchanged_rows,
    why_not,
)
from features.encoder import locate_encoder, require_positions, weights_fingerprint
from features.frameworks import framework_named
from jobs import cli
from jobs.actor_pool import ActorPool
from jobs.cluster import node_resources, size_workers, start_ray
from jobs.encoding_actor import EncodingActor
from jobs.waves import require_own_framework
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.parts import read_parts
from pipeline.runs import open_run
from pipeline.schemas import FEATURES
from pipeline.store import Store

log = logging.getLogger("jobs.encode_features")

_BLOCK_ROWS = 1024  # encoded together; texts are sorted by length inside a block
_STORED_ROWS = 16 * _BLOCK_ROWS  # at most, where most rows are carried over
_KEY = ["kind", "entity_id"]
_TEXT = [*_KEY, "text", "error"]


def run(config: RunConfig, store: Store) -> None:
    """Write the dataset `features`."""
    framework = framework_named(config.framework)
    require_own_framework(config, store)
    folder = locate_encoder(config.encoder.path)
    require_positions(folder, config.encoder.max_tokens)
    settings = {"weights": weights_fingerprint(folder), "max_tokens": config.encoder.max_tokens}
    if framework.reading:  # whole texts were encoded before there was a choice
        settings["reading"] = framework.reading
    plan = store.plan("features", settings=settings, inputs=["knowledge"])
    if plan.is_done:
        log.info("features: up to date, %d rows", store.require("features").num_rows)
        return
    knowledge = store.read("knowledge", _TEXT)
    writer = plan.open_writer()
    stored = writer.existing([*_KEY, "source"])
    require_owed(stored, knowledge.slice(0, stored.num_rows))
    log.info("features: %d texts, %d are stored already", knowledge.num_rows, stored.num_rows)
    todo = knowledge.slice(stored.num_rows)
    rows, earlier = _carried(config, settings, todo)
    vectors = read_parts(writer.parts()[-1:], FEATURES, ["vector"])
    facts: dict[str, Any] = {"dim": _width(vectors), "without_text": _without_text(stored)}
    done = num_cut = 0
    for block, truncated in _blocks(config, todo, rows, earlier):
        require_owed(block, todo.slice(done, block.num_rows))
        writer.append(block)
        done += block.num_rows
        facts["dim"] = _width(block)
        facts["without_text"] += _without_text(block)
        num_cut += truncated
        log.info("features: %d / %d rows stored", done, todo.num_rows)
    if framework.reading:
        facts["malformed"] = count_malformed(knowledge, framework.read)
        log.info("features: malformed answers, encoded whole: %s", facts["malformed"])
    writer.finish(settings | facts)
    log.info(
        "features: %d rows of %d dimensions, %d without usable text; %d of %d texts encoded now "
        "are longer than %d tokens",
        *(knowledge.num_rows, facts["dim"], facts["without_text"]),
        *(num_cut, int((rows == FRESH).sum()), config.encoder.max_tokens),
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


def _carried(
    config: RunConfig, settings: Mapping[str, Any], todo: pa.Table
) -> tuple[np.ndarray, StoredFeatures | None]:
    """For each row of `todo` the row of the earlier run that has its vector, or FRESH."""
    nothing = np.full(todo.num_rows, FRESH), None
    previous = config.refresh.previous
    if not previous:
        return nothing
    earlier = open_run(config.artifacts, previous)
    if reason := why_not(earlier, settings):
        log.info("features: nothing is carried over from %s, since %s", previous, reason)
        return nothing
    rows = unchanged_rows(todo, earlier.read("knowledge", _TEXT))
    fresh = int((rows == FRESH).sum())
    log.info("features: %d carried over from %s, %d to encode", len(rows) - fresh, previous, fresh)
    return rows, StoredFeatures(earlier)


def _blocks(
    config: RunConfig, todo: pa.Table, rows: np.ndarray, earlier: StoredFeatures | None
) -> Iterator[tuple[pa.Table, int]]:
    """FEATURES of `todo`, block by block, and how many texts of each the encoder cut."""
    is_fresh = rows == FRESH
    fresh = todo.filter(pa.array(is_fresh))
    encoded = _Regrouped(_encoded_blocks(config, fresh), fresh.num_rows)
    for block in blocks_of(is_fresh, _BLOCK_ROWS, _STORED_ROWS):
        wanted = rows[block]
        new, kept, truncated = None, None, 0
        if count := int((wanted == FRESH).sum()):
            table = encoded.take(count)
            truncated = pc.sum(table["truncated"]).as_py()
            new = table.drop_columns(["truncated"])
        if earlier is not None and count < len(wanted):
            kept = earlier.take(wanted[wanted != FRESH])
        yield interleave(wanted, new, kept), truncated
    encoded.require_end()


class _Regrouped:
    """Tables of `total` rows in all, taken in other sizes than they come."""

    def __init__(self, tables: Iterator[pa.Table], total: int) -> None:
        self._tables = tables
        self._held: list[pa.Table] = []
        self._owed = total

    def take(self, count: int) -> pa.Table:
        """The next `count` rows (at least one).

        Raises:
            DataError: there are fewer.
        """
        held = sum(table.num_rows for table in self._held)
        while held < count:
            table = next(self._tables, None)
            if table is None:
                raise DataError(
                    f"features: {self._owed - held} rows of knowledge were not encoded; run again"
                )
            self._held.append(table)
            held += table.num_rows
        whole = pa.concat_tables(self._held)
        self._held = [whole.slice(count)]
        self._owed -= count
        return whole.slice(0, count)

    def require_end(self) -> None:
        """Let the workers end.

        Raises:
            DataError: they gave more rows than they owed.
        """
        extra = sum(table.num_rows for table in [*self._held, *self._tables])
        if extra:
            raise DataError(
                f"features: {extra} rows were encoded that are not of knowledge; move the folder "
                "of `features` away and run again"
            )


def _encoded_blocks(config: RunConfig, knowledge: pa.Table) -> Iterator[pa.Table]:
    """FEATURES with `truncated`, block by block, in the order of `knowledge`."""
    if not knowledge.num_rows:
        return
    start_ray(config.cluster)
    workers = size_workers(config.cluster, "features", config.encoder.device, node_resources())
    rows = min(_BLOCK_ROWS, math.ceil(knowledge.num_rows / workers.actors))
    blocks = [knowledge.slice(at, rows) for at in range(0, knowledge.num_rows, rows)]
    arguments = (config.encoder, workers.threads_each, config.framework)
    with ActorPool(EncodingActor, arguments, workers) as pool:
        yield from pool.through(blocks, len(blocks), ordered=True)


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
