"""FEATURES joined to the CTR rows, and the guard against knowledge from the future.

A vector is only as honest as the moment its text was written for: every user's knowledge must end
before that user's first CTR row, else the join refuses.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.ctr.data import CtrData, marked
from pipeline.errors import DataError

_LEAST_DEVIATION = 1e-6  # a component that hardly varies is centred only


@dataclass(frozen=True)
class KnowledgeVectors:
    """Standardised vectors of all entities; the last column is 1 where an entity has none."""

    users: np.ndarray  # (users, width + 1) float32
    items: np.ndarray  # (items, width + 1) float32

    def coverage(self, data: CtrData, split: str) -> dict[str, float]:
        """Share of the rows of `split` whose user, and whose item, has a vector."""
        rows = data.splits[split]
        return {
            "user": float(1 - self.users[data.users[rows], -1].mean()),
            "item": float(1 - self.items[data.items[rows], -1].mean()),
        }


def join_vectors(data: CtrData, features: pa.Table, knowledge: pa.Table) -> KnowledgeVectors:
    """Vectors of all entities of the catalog, standardised over those that train rows show.

    Raises:
        DataError: knowledge from the future, or features that are empty, repeated, not finite or
            without their knowledge row.
    """
    require_past_only(data, knowledge)
    require_provenance(features, knowledge)
    return vectors_of(data, features)


def vectors_of(data: CtrData, features: pa.Table) -> KnowledgeVectors:
    """Vectors of all entities of the catalog, of which nobody says when they were written."""
    trained = data.splits["train"]
    return KnowledgeVectors(
        _kind_vectors(features, "user", data.user_ids, data.users[trained]),
        _kind_vectors(features, "item", data.item_ids, data.items[trained]),
    )


def require_past_only(data: CtrData, knowledge: pa.Table) -> None:
    """Check that no user's knowledge saw an interaction later than that user's first CTR row.

    Equal timestamps pass, since data with ties cannot do better.

    Raises:
        DataError: some did; up to 3 are named.
    """
    first = np.full(len(data.user_ids), np.iinfo(np.int64).max)
    np.minimum.at(first, data.users, data.timestamps)
    rows = knowledge.filter(pc.equal(knowledge["kind"], "user"))
    owners = pc.index_in(rows["entity_id"], value_set=data.user_ids.combine_chunks())
    rows, owners = rows.filter(pc.is_valid(owners)), owners.drop_null().to_numpy()
    late = rows["latest_source"].to_numpy() > first[owners]
    if late.any():
        names = rows["entity_id"].filter(pa.array(late)).to_pylist()[:3]
        raise DataError(
            f"knowledge of {late.sum()} users, such as {names}, saw interactions later than "
            "their first CTR row, so the check would leak; prompts may use split knowledge only"
        )


def require_provenance(features: pa.Table, knowledge: pa.Table) -> None:
    """Check that every feature has a knowledge row, which says what it has seen.

    Raises:
        DataError: there are no features, an entity has several, or some have no knowledge row.
    """
    keys = _keys(features)
    if not len(keys):
        raise DataError("features holds no row; run generate_knowledge and encode_features")
    repeated = len(keys) - len(pc.unique(keys))
    if repeated:
        raise DataError(f"features holds {repeated} rows of entities that have another row")
    orphans = keys.filter(pc.invert(pc.is_in(keys, value_set=_keys(knowledge))))
    if len(orphans):
        raise DataError(
            f"features of {len(orphans)} entities, such as {orphans[:3].to_pylist()}, have no "
            "row in knowledge; run encode_features again"
        )


def _keys(table: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(table["kind"], table["entity_id"], "/")


def _kind_vectors(
    features: pa.Table, kind: str, ids: pa.ChunkedArray, trained: np.ndarray
) -> np.ndarray:
    """(entities, width + 1) float32 of the entities in `ids`."""
    width = features.schema.field("vector").type.list_size
    is_usable = pc.and_(pc.equal(features["kind"], kind), pc.not_equal(features["source"], "none"))
    rows = features.filter(is_usable)
    found = pc.index_in(ids, value_set=rows["entity_id"].combine_chunks())
    is_there = pc.is_valid(found).to_numpy()
    stored = rows["vector"].combine_chunks().flatten().to_numpy().reshape(-1, width)
    if not np.isfinite(stored).all():
        raise DataError(f"features: {kind} vectors are not finite; run encode_features again")
    vectors = np.zeros((len(ids), width + 1), np.float32)
    vectors[is_there, :-1] = stored[found.drop_null().to_numpy()]
    reference = vectors[is_there & marked(trained, len(ids)), :-1]
    if len(reference):
        deviation = reference.std(axis=0)
        deviation[deviation < _LEAST_DEVIATION] = 1.0
        vectors[is_there, :-1] = (vectors[is_there, :-1] - reference.mean(axis=0)) / deviation
    vectors[~is_there, -1] = 1.0
    return vectors
