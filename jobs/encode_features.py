"""KNOWLEDGE -> FEATURES: encode the text of every entity, on a pool of Ray actors.

    python -m jobs.encode_features --config conf/demo.yaml

What of an answer is encoded the framework says: the whole of it, or the part that was asked for.
In a refresh a text that has not changed keeps the vector of the earlier run.
Own vectors are stored first, block by block in the order of KNOWLEDGE, then the means that all
other entities get, which are made from the stored ones. So memory stays bounded, and a killed job
goes on after the last stored block.
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
    with_provenance,
)
from features.encoder import locate_encoder, require_positions, weights_fingerprint
from features.fallback import Means, owed_rows
from features.formats import count
from features.frameworks import framework_named
from jobs import cli
from jobs.actor_pool import ActorPool
from jobs.cluster import node_resources, size_workers, start_ray
from jobs.encoding_actor import EncodingActor
from jobs.progress import Countdown
from jobs.waves import require_own_framework
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.parts import read_parts
from pipeline.runs import open_run
from pipeline.schemas import FEATURES, PROVENANCE, VECTOR_SOURCES
from pipeline.store import DatasetWriter, Store

log = logging.getLogger("jobs.encode_features")

_BLOCK_ROWS = 1024  # encoded together; texts are sorted by length inside a block
_STORED_ROWS = 16 * _BLOCK_ROWS  # at most, where most rows are carried over
_KEY = ["kind", "entity_id"]
_FROM = {  # VECTOR_SOURCES, in words
    "own": "from their own texts",
    "group": "from those of their groups",
    "default": "from those of all",
    "none": "without any text",
}
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
    plan = store.plan("features", settings=settings, inputs=["knowledge", "groups"])
    if plan.is_done:
        log.info("features: up to date, %d rows", store.require("features").num_rows)
        return
    groups = store.read("groups", [*_KEY, "group_id"])
    texts, others = owed_rows(store.read("knowledge", [*_TEXT, *PROVENANCE]), groups)
    writer = plan.open_writer()
    stored = writer.existing(_KEY)
    owed = pa.concat_tables([texts.select(_KEY), others.select(_KEY)])
    require_owed(stored, owed.slice(0, stored.num_rows))
    log.info("features: %d texts, %d are stored already", texts.num_rows, stored.num_rows)
    _encode(config, settings, writer, texts.slice(min(stored.num_rows, texts.num_rows)))
    _fill(writer, groups, others.slice(max(stored.num_rows - texts.num_rows, 0)))
    facts = {"dim": _width(writer), "sources": _sources(writer)}
    facts["rows_written"] = len(owed) - stored.num_rows  # now, by the job that says its seconds
    if framework.reading:
        facts["malformed"] = count_malformed(texts, framework.read)
        malformed = ", ".join(f"{n} of {kind}s" for kind, n in facts["malformed"].items())
        log.info("features: malformed answers, encoded whole: %s", malformed)
    writer.finish(settings | facts)
    sources = [f"{count(n)} {_FROM[name]}" for name, n in facts["sources"].items() if n]
    told = "features: %s rows of %d dimensions, %s"
    log.info(told, count(len(owed)), facts["dim"], ", ".join(sources))


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


def _encode(
    config: RunConfig, settings: Mapping[str, Any], writer: DatasetWriter, todo: pa.Table
) -> None:
    """Store the own vectors of `todo`, KNOWLEDGE, block by block."""
    rows, earlier = _carried(config, settings, todo)
    done = num_cut = 0
    countdown = Countdown(log, "features", "texts", todo.num_rows)
    for block, truncated in _blocks(config, todo, rows, earlier):
        require_owed(block, todo.slice(done, block.num_rows))
        writer.append(block)
        done += block.num_rows
        num_cut += truncated
        countdown.count(block.num_rows)
    log.info(
        "features: %d of %d texts encoded now are longer than %d tokens",
        *(num_cut, int((rows == FRESH).sum()), config.encoder.max_tokens),
    )


def _fill(writer: DatasetWriter, groups: pa.Table, others: pa.Table) -> None:
    """Store the vectors of entities without a text: means over those stored, in their order."""
    if not others.num_rows:
        return
    means = Means(groups, _width(writer))
    for part in writer.parts():
        means.add(read_parts([part], FEATURES))
    for start in range(0, others.num_rows, _STORED_ROWS):
        writer.append(means.features_of(others.slice(start, _STORED_ROWS)))


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
    stored = earlier.read("features", [*_KEY, "source"])
    rows = unchanged_rows(todo, earlier.read("knowledge", _TEXT), stored)
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
            is_kept = wanted != FRESH
            asked = todo.slice(block.start, len(wanted)).filter(pa.array(is_kept))
            kept = with_provenance(earlier.take(wanted[is_kept]), asked)
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


def _width(writer: DatasetWriter) -> int:
    """Dimensions of the stored vectors; 0 where nothing is stored."""
    kind = read_parts(writer.parts()[-1:], FEATURES, ["vector"]).schema.field("vector").type
    return kind.list_size if pa.types.is_fixed_size_list(kind) else 0


def _sources(writer: DatasetWriter) -> dict[str, int]:
    """How many vectors are of each source."""
    found = writer.existing(["source"])["source"]
    return {name: pc.sum(pc.equal(found, name)).as_py() or 0 for name in VECTOR_SOURCES}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
