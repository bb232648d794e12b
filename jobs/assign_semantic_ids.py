"""Give every item a semantic ID: a few codes, like items with a common beginning.

    python -m jobs.assign_semantic_ids --config conf/demo.yaml

Reads items, interactions, features and embeddings; writes the dataset `semantic_ids`, with the
codebooks beside the rows. Codebooks are fitted on warm items, those with an interaction of the
split `knowledge` or `train`; nothing of valid and test is looked at.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs import cli
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.generative.collisions import resolve
from pipeline.generative.health import codebook_health, collisions
from pipeline.generative.semantic_ids import ItemContents, fit_tokenizer, without_collaborative
from pipeline.parts import append_part
from pipeline.schemas import SEMANTIC_IDS
from pipeline.store import Store

log = logging.getLogger("jobs.assign_semantic_ids")

CODEBOOKS = "codebooks.npz"
INPUTS = ["items", "interactions", "features", "embeddings"]
_DATASET = "semantic_ids"
_SEEN_SPLITS = pa.array(["knowledge", "train"])


def run(config: RunConfig, store: Store) -> None:
    """Make `semantic_ids`.

    Raises:
        ConfigError: too few items to fit on, or too many with the same codes.
        DataError: features or embeddings lack an item, or no item has a text.
    """
    settings = {"semantic_ids": config.semantic_ids, "seed": config.seed}
    plan = store.plan(_DATASET, settings=settings, inputs=INPUTS)
    if plan.is_done:
        log.info("%s: up to date, %d rows", _DATASET, store.require(_DATASET).num_rows)
        return
    ids, items = read_items(store)
    if not config.semantic_ids.collaborative_weight:
        items = without_collaborative(items)
    began = time.monotonic()
    tokenizer = fit_tokenizer(items, config.semantic_ids, config.seed)
    fitting = time.monotonic() - began
    vectors = tokenizer.vectors(items)
    nearest = tokenizer.quantizer.encode(vectors)
    codes = resolve(
        config.semantic_ids.collisions,
        nearest,
        items.is_warm,
        tokenizer.codebook_size,
        lambda rows: tokenizer.quantizer.last_level_choices(vectors.take(rows)),
    )
    facts = codebook_health(items, tokenizer, vectors, nearest, config.seed)
    facts["reassigned"] = int((codes[:, : nearest.shape[1]] != nearest).any(axis=1).sum())
    facts["fitting_seconds"] = round(fitting, 2)
    _log_health(facts)
    table = as_table(ids, codes, items.is_warm, collisions(nearest)[0])

    def fill(folder: Path) -> None:
        append_part(folder, table, SEMANTIC_IDS, _DATASET)
        tokenizer.save(folder / CODEBOOKS)

    plan.write_files(fill, table.num_rows, facts)


def read_items(store: Store) -> tuple[pa.Array, ItemContents]:
    """Ids of the items in the order of the catalog, and what is known of each.

    Raises:
        DataError: features or embeddings lack an item, or no item has a text.
    """
    ids = store.read("items", ["item_id"])["item_id"].combine_chunks()
    features = _rows_of(ids, store, "features", ["source"])
    embeddings = _rows_of(ids, store, "embeddings", ["num_interactions"])
    source = features["source"]
    has_content = pc.not_equal(source, "none").to_numpy()
    if not has_content.any():
        raise DataError(
            f"{store.files.address}/features: no item has a text, so there is nothing to tell "
            "items apart by; see the errors of the knowledge"
        )
    interactions = store.read("interactions", ["item_id", "split"])
    seen = interactions.filter(pc.is_in(interactions["split"], value_set=_SEEN_SPLITS))
    warm = pc.is_in(ids, value_set=pc.unique(seen["item_id"]))
    return ids, ItemContents(
        _matrix(features["vector"]),
        _matrix(embeddings["vector"]),
        has_content,
        pc.equal(source, "own").to_numpy(),
        pc.greater(embeddings["num_interactions"], 0).to_numpy(),
        warm.to_numpy(zero_copy_only=False),
    )


def as_table(
    ids: pa.Array, codes: np.ndarray, is_warm: np.ndarray, collides: np.ndarray
) -> pa.Table:
    """SEMANTIC_IDS."""
    flat = pa.array(codes.ravel(), pa.int32())
    offsets = pa.array(np.arange(len(codes) + 1) * codes.shape[1], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, flat)
    columns = [ids, lists, pa.array(is_warm), pa.array(collides)]
    return pa.table(dict(zip(SEMANTIC_IDS.names, columns, strict=True)))


def _rows_of(ids: pa.Array, store: Store, dataset: str, columns: list[str]) -> pa.Table:
    """Rows of a dataset about the items `ids`, in their order."""
    table = store.read(dataset, ["kind", "entity_id", *columns, "vector"])
    own = table.filter(pc.equal(table["kind"], "item"))
    rows = pc.index_in(ids, value_set=own["entity_id"].combine_chunks())
    if rows.null_count:
        missing = ids.filter(pc.is_null(rows))[:3].to_pylist()
        raise DataError(
            f"{store.files.address}/{dataset}: {rows.null_count} items of the catalog are missing, "
            f"such as {missing}; run the job that writes it again"
        )
    return own.take(rows)


def _matrix(vectors: pa.ChunkedArray) -> np.ndarray:
    flat = pc.list_flatten(vectors).to_numpy()
    return flat.reshape(len(vectors), -1)


def _of_cold_items(facts: Mapping[str, Any], level: int) -> str:
    if facts["items"] == facts["warm"]:
        return ""
    share = facts["cold_prefix_seen"][level]
    return f", and by a warm item of {share:.1%} of the cold ones"


def _log_health(facts: Mapping[str, Any]) -> None:
    log.info(
        "%d items, %d warm; fitted on %d in %.1f s, %d codes a level",
        *(facts[name] for name in ("items", "warm", "fitted", "fitting_seconds", "codebook_size")),
    )
    near = facts["neighbours"]
    for level, own in enumerate(facts["levels"]):
        log.info(
            "level %d: %d codes used, %d dead, perplexity %.1f, error %.3f; prefix shared by "
            "%.1f %% of neighbours (chance %.2f %%)%s",
            level + 1,
            *(own[name] for name in ("used", "dead", "perplexity", "error")),
            *(100 * near[name][level] for name in ("agreement", "chance")),
            _of_cold_items(facts, level),
        )
    log.info(
        "%d items collide (%.1f %%), at most %d in one bucket; %d were given another last code",
        facts["colliding"],
        100 * facts["collision_rate"],
        facts["largest_bucket"],
        facts["reassigned"],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
