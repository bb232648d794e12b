"""FEATURES joined to the CTR rows; see `features.ctr.guard` for what is refused.

One indicator tells the model that a vector is not of the entity's own text: which of the others it
is (the mean of its group or of its kind, or zero) the vector shows by itself.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.ctr.data import CtrData, marked
from features.ctr.guard import require_past_only, require_provenance, require_rows
from pipeline.errors import DataError

_LEAST_DEVIATION = 1e-6  # a component that hardly varies is centred only


@dataclass(frozen=True)
class KnowledgeVectors:
    """Standardised vectors of all entities; the last column is 1 where the text is not theirs."""

    users: np.ndarray  # (users, width + 1) float32
    items: np.ndarray  # (items, width + 1) float32

    def coverage(self, data: CtrData, split: str) -> dict[str, float]:
        """Share of the rows of `split` whose user, and whose item, has a text of its own."""
        rows = data.splits[split]
        return {
            "user": float(1 - self.users[data.users[rows], -1].mean()),
            "item": float(1 - self.items[data.items[rows], -1].mean()),
        }


def join_vectors(
    data: CtrData, features: pa.Table, knowledge: pa.Table, protocol: str
) -> KnowledgeVectors:
    """Vectors of all entities of the catalog, standardised over own ones that train rows show.

    Args:
        data: the CTR rows.
        features: FEATURES.
        knowledge: KNOWLEDGE, of which kind, entity_id and PROVENANCE are read.
        protocol: of the split that `data` has.

    Raises:
        DataError: knowledge from the future or from nowhere, an entity without a row or with two,
            or vectors that are not finite.
    """
    require_rows(data, features, knowledge)
    require_provenance(features, knowledge)
    require_past_only(data, features, protocol)
    return vectors_of(data, features)


def vectors_of(data: CtrData, features: pa.Table) -> KnowledgeVectors:
    """Vectors of all entities of the catalog, each of which has a row, whatever they have seen."""
    trained = data.splits["train"]
    return KnowledgeVectors(
        _kind_vectors(features, "user", data.user_ids, data.users[trained]),
        _kind_vectors(features, "item", data.item_ids, data.items[trained]),
    )


def sources_of(data: CtrData, features: pa.Table) -> dict[str, np.ndarray]:
    """By kind, the source of every entity's vector: (entities,) of VECTOR_SOURCES."""
    return {
        kind: _rows_of(features, kind, ids)["source"].to_numpy()
        for kind, ids in (("user", data.user_ids), ("item", data.item_ids))
    }


def _rows_of(features: pa.Table, kind: str, ids: pa.ChunkedArray) -> pa.Table:
    """FEATURES of the entities in `ids`, each of which has a row."""
    rows = features.filter(pc.equal(features["kind"], kind))
    return rows.take(pc.index_in(ids, value_set=rows["entity_id"].combine_chunks()))


def _kind_vectors(
    features: pa.Table, kind: str, ids: pa.ChunkedArray, trained: np.ndarray
) -> np.ndarray:
    """(entities, width + 1) float32 of the entities in `ids`."""
    width = features.schema.field("vector").type.list_size
    rows = _rows_of(features, kind, ids)
    source = rows["source"].to_numpy()
    stored = rows["vector"].combine_chunks().flatten().to_numpy().reshape(-1, width)
    if not np.isfinite(stored).all():
        raise DataError(f"features: {kind} vectors are not finite; run `laser encode` again")
    vectors = np.zeros((len(ids), width + 1), np.float32)
    vectors[:, :-1] = stored
    reference = vectors[(source == "own") & marked(trained, len(ids)), :-1]
    has_vector = source != "none"
    if len(reference):
        deviation = reference.std(axis=0)
        deviation[deviation < _LEAST_DEVIATION] = 1.0
        vectors[has_vector, :-1] = (vectors[has_vector, :-1] - reference.mean(axis=0)) / deviation
    vectors[source != "own", -1] = 1.0
    return vectors
