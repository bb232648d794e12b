"""A made-up catalog as the tables that stages read."""

import numpy as np
import pyarrow as pa

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
