"""What semantic IDs are made from: vectors of items, and by whom they were made."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.generative.semantic_ids import ItemContents
from pipeline.generative_config import SemanticIdSettings
from pipeline.schemas import SPLITS
from pipeline.store import Store

RAW_TEXT = "raw_text"  # the control of `jobs.encode_controls`


def content_dataset(settings: SemanticIdSettings) -> str:
    """Where content vectors stand."""
    return "features" if settings.content == "knowledge" else f"controls/{RAW_TEXT}/features"


def made_with(store: Store, dataset: str) -> dict[str, Any]:
    """What makes content vectors of two runs comparable: the encoder, and how it was asked."""
    manifest = store.require(dataset)
    made: dict[str, Any] = {"dataset": dataset, **manifest.settings}
    knowledge = store.manifest("knowledge") if dataset == "features" else None
    if knowledge is not None and "framework" in knowledge.facts:
        made["framework"] = knowledge.facts["framework"]
    return made


def read_contents(store: Store, dataset: str) -> tuple[pa.Array, ItemContents]:
    """Ids of the items in the order of the catalog, and their content alone; nobody is warm.

    Raises:
        DataError: content lacks an item, or no item has a text.
    """
    ids = store.read("items", ["item_id"])["item_id"].combine_chunks()
    features = _rows_of(ids, store, dataset, ["source"])
    source = features["source"]
    has_content = pc.not_equal(source, "none").to_numpy()
    if not has_content.any():
        raise DataError(
            f"{store.files.address}/{dataset}: no item has a text, so there is nothing to tell "
            "items apart by; see the errors of the knowledge"
        )
    nobody = np.zeros(len(ids), bool)
    return ids, ItemContents(
        _matrix(features["vector"]),
        np.zeros((len(ids), 0), np.float32),
        has_content,
        pc.equal(source, "own").to_numpy(),
        nobody,
        nobody,
    )


def read_items(store: Store, dataset: str, until: str) -> tuple[pa.Array, ItemContents]:
    """Ids of the items in the order of the catalog, and all that is known of each.

    Who has an interaction of the splits up to `until` is warm.

    Raises:
        DataError: content or embeddings lack an item, or no item has a text.
    """
    ids, items = read_contents(store, dataset)
    embeddings = _rows_of(ids, store, "embeddings", ["num_interactions"])
    interactions = store.read("interactions", ["item_id", "split"])
    splits = pa.array(SPLITS[: SPLITS.index(until) + 1])
    seen = interactions.filter(pc.is_in(interactions["split"], value_set=splits))
    warm = pc.is_in(ids, value_set=pc.unique(seen["item_id"]))
    return ids, replace(
        items,
        collaborative=_matrix(embeddings["vector"]),
        has_collaborative=pc.greater(embeddings["num_interactions"], 0).to_numpy(),
        is_warm=warm.to_numpy(zero_copy_only=False),
    )


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
