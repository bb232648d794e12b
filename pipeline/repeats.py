"""Rows that repeat an earlier one."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def first_rows(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The first row of every value of `keys`, in the table's order.

    A row without one of them stays: it is for `validation` to count.
    """
    numbers = pa.array(np.arange(table.num_rows))
    numbered = table.select(list(keys)).append_column("row", numbers)
    firsts = numbered.group_by(list(keys)).aggregate([("row", "min")])["row_min"]
    keep = np.zeros(table.num_rows, bool)
    keep[firsts.to_numpy()] = True
    for key in keys:
        keep |= pc.is_null(table[key]).to_numpy()
    return table if keep.all() else table.filter(pa.array(keep))
