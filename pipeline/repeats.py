"""Rows that repeat an earlier one: told apart, counted and named in one way everywhere."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

EVENT = ("user_id", "item_id", "timestamp")  # which no two interactions share


def repeats(*keys: str) -> str:
    """What rows do that are not `is_first`, in words."""
    named = keys[0] if len(keys) == 1 else f"({', '.join(keys)})"
    return f"repeat the {named} of an earlier row"


def first_rows(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The first row of every value of `keys`, in the table's order.

    A row without one of them stays: it is for `validation` to count.
    """
    keep = is_first(table, keys)
    for key in keys:
        keep |= pc.is_null(table[key]).to_numpy()
    return table if keep.all() else table.filter(pa.array(keep))


def is_first(table: pa.Table, keys: Sequence[str]) -> np.ndarray:
    """Whether no earlier row has the same keys: (rows,) bool."""
    numbers = pa.array(np.arange(table.num_rows))
    numbered = table.select(list(keys)).append_column("row", numbers)
    firsts = numbered.group_by(list(keys)).aggregate([("row", "min")])["row_min"]
    found = np.zeros(table.num_rows, bool)
    found[firsts.to_numpy()] = True
    return found
