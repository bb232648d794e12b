"""Rows of a table by number: all of its texts or attributes may be too many for one array.

Taking rows from a table joins all of its chunks first, and an array of texts ends at 2 GiB.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

# Columns -> the rows of a table in their order, some at a time: once at least, if there are none.
Batches = Callable[[Sequence[str]], Iterable[pa.Table]]


class Rows:
    """Rows of a table by number, in any order."""

    def __init__(self, table: pa.Table) -> None:
        self._schema = table.schema
        self._batches = table.to_batches()
        self._starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    def take(self, rows: np.ndarray) -> pa.Table:
        """The given rows, in their order; they must fit one array."""
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(owners, kind="stable")
        found = [
            self._batches[owner].take(pa.array(rows[owners == owner] - self._starts[owner]))
            for owner in np.unique(owners).tolist()
        ]
        return pa.Table.from_batches(found, self._schema).take(pa.array(np.argsort(order)))


def rows_among(batches: Iterable[pa.Table], rows: np.ndarray) -> pa.Table:
    """The given rows, in ascending order, of a table that is seen once and never as a whole."""
    found, start = [], 0
    for batch in batches:
        inside = rows[(rows >= start) & (rows < start + batch.num_rows)]
        found.append(batch.take(pa.array(inside - start)))
        start += batch.num_rows
    return pa.concat_tables(found)
