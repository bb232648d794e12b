"""A made-up catalog as the tables that stages read."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ConfigError
from pipeline.schemas import ATTRIBUTES, INTERACTIONS, ITEMS, USERS
from retrieval_pools.synthetic import Interactions

_VALUES = 24  # of an attribute


def catalog_tables(made: Interactions) -> tuple[pa.Table, pa.Table, pa.Table]:
    """USERS, ITEMS and INTERACTIONS, of which all are liked and all are past."""
    users, items, edges = made.num_users, made.num_items, made.edges
    count = len(edges)
    columns = [
        _ids(edges.users),
        _ids(edges.items),
        np.full(count, 4.0, np.float32),
        np.ones(count, np.int8),
        np.arange(count),
        pa.repeat("knowledge", count),
    ]
    return (
        _table(USERS, [_ids(np.arange(users)), _attributes("occupation", users)]),
        _table(
            ITEMS, [_ids(np.arange(items)), _ids(np.arange(items)), _attributes("genre", items)]
        ),
        _table(INTERACTIONS, columns),
    )


def knowledge_table(texts: np.ndarray, group_size: int) -> pa.Table:
    """What pools read of KNOWLEDGE: `texts` (texts, tokens) int32, as many in each group.

    Every second text was relaxed.
    """
    count, length = texts.shape
    if texts.size > np.iinfo(np.int32).max:
        raise ConfigError(
            f"{texts.size} tokens are more than one list column holds; lower scale.pool_groups"
        )
    number = np.arange(count)
    ids = pa.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32) * length, texts.ravel())
    return pa.table(
        {
            "kind": pa.repeat("user", count),
            "entity_id": _ids(number),
            "group_id": pc.binary_join_element_wise("user/", _ids(number // group_size), ""),
            "wave": np.zeros(count, np.int32),
            "token_ids": ids,
            "rule": pa.repeat("relaxed", count),
            "relaxed_tokens": (number % 2).astype(np.int32),
            "error": pa.repeat("", count),
        }
    )


def _table(schema: pa.Schema, columns: list) -> pa.Table:
    return pa.table(dict(zip(schema.names, columns, strict=True))).cast(schema)


def _ids(numbers: np.ndarray) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _attributes(name: str, count: int) -> pa.Array:
    """One attribute for every entity."""
    values = _ids(np.arange(count) % _VALUES)
    keys = pa.repeat(name, count)
    return pa.MapArray.from_arrays(np.arange(count + 1, dtype=np.int32), keys, values).cast(
        ATTRIBUTES
    )
