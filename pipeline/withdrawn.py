"""Items that are recommended to nobody any more, from a table of the user's own."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.column_files import read_columns
from pipeline.columns import as_ids
from pipeline.errors import DataError
from pipeline.fetched import local_copy

log = logging.getLogger(__name__)

_KEY = "recommendation.withdrawn"
_COLUMN = "item_id"


def read_withdrawn(location: Path | str | None, item_ids: pa.Array) -> np.ndarray:
    """Rows of `item_ids` that the table at `location` names, ascending; (0,) without a table.

    Ids that no item has are left out, with a warning.

    Raises:
        DataError: there is no such file, or it is no table with a column item_id.
    """
    if location is None:
        return np.empty(0, np.int64)
    named = withdrawn_ids(location)
    rows = pc.index_in(named, value_set=item_ids)
    if rows.null_count:
        unknown = named.filter(pc.is_null(rows))
        log.warning(
            "%s: %d of %d items of %s are not in the catalog, such as %s",
            *(_KEY, len(unknown), len(named), location, unknown[:3].to_pylist()),
        )
    return np.sort(rows.drop_null().to_numpy()).astype(np.int64)


def withdrawn_ids(location: Path | str) -> pa.Array:
    """The ids that the table at `location` names, each once.

    Raises:
        DataError: there is no such file, or it is no table with a column item_id.
    """
    file = local_copy(location)
    if not file.is_file():
        raise DataError(f"{_KEY}: {location} does not exist; correct the path or remove the key")
    remedy = f"correct {_KEY} or write the file anew"
    raw = read_columns(
        file, {_COLUMN: f"rename the column that has the ids, or {remedy}"}, _KEY, remedy
    )
    named = pc.unique(as_ids(raw[_COLUMN], f"{file}, column {_COLUMN}")).drop_null()
    return named.filter(pc.not_equal(pc.utf8_trim_whitespace(named), ""))
