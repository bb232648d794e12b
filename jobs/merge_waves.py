"""The waves of a run as one table, some rows at a time, and what they come to.

Rows of a wave lie in the order in which they were finished, which is nearly that of their groups.
So a stretch of groups is read from few parts: in memory are its rows, and of all others the keys.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.formats import count, counted
from pipeline.errors import DataError
from pipeline.knowledge import entities
from pipeline.parts import read_parts
from pipeline.schemas import KNOWLEDGE
from pipeline.store import Store

STRETCH = 32_768  # rows in memory at once
_ENTITY = ["kind", "entity_id"]
_TOTALLED = ["error", "token_ids", "forward_passes", "relaxed_tokens"]
_COUNTED = ["rows", "errors", "tokens", "forward_passes", "relaxed_tokens"]
_ORDER = [("kind", "descending"), ("group_id", "ascending")]


def merged(
    store: Store, waves: Sequence[str], groups: pa.Table, stretch: int = STRETCH
) -> Iterator[pa.Table]:
    """KNOWLEDGE of all `waves`, `stretch` rows at a time: users, then items, group by group.

    Inside a group, entities come in the order of `groups`, GROUPS.

    Raises:
        DataError: an entity of `groups` has no row, or two, or a row has no such entity.
    """
    parts = [part for wave in waves for part in store.parts(wave)]
    keys = [read_parts([part], KNOWLEDGE, _ENTITY) for part in parts]
    places = _places(keys, groups, store)
    in_stretch: dict[int, list[int]] = defaultdict(list)
    for part, rows in enumerate(places):
        for number in np.unique(rows // stretch).tolist():
            in_stretch[number].append(part)
    for number in sorted(in_stretch):
        tables, order = [], []
        for part in in_stretch[number]:
            is_in = places[part] // stretch == number
            tables.append(read_parts([parts[part]], KNOWLEDGE).filter(pa.array(is_in)))
            order.append(places[part][is_in])
        yield pa.concat_tables(tables).take(pa.array(np.argsort(np.concatenate(order))))


def _places(keys: Sequence[pa.Table], groups: pa.Table, store: Store) -> list[np.ndarray]:
    """Where the rows of each part stand in the whole: (rows,) int64 each."""
    ordered = entities(groups.sort_by(_ORDER))
    found = pc.index_in(entities(pa.concat_tables(keys)), value_set=ordered)
    places = found.to_numpy(zero_copy_only=False) if not found.null_count else np.zeros(0)
    if not np.array_equal(np.sort(places), np.arange(len(ordered))):
        raise DataError(
            f"{store.files.address}: the waves hold {len(found)} rows for {len(ordered)} entities "
            f"of `groups`, {found.null_count} of them for no such entity; move the folders `waves` "
            "and `knowledge` away and run again"
        )
    return np.split(places.astype(np.int64), np.cumsum([len(table) for table in keys])[:-1])


def totals_of(parts: Sequence[Path]) -> dict[str, Any]:
    """Counts over all rows of parts of KNOWLEDGE, and the first error."""
    each = [totals_in(read_parts([part], KNOWLEDGE, _TOTALLED)) for part in parts]
    return sum_of(each or [totals_in(KNOWLEDGE.empty_table())])


def totals_in(knowledge: pa.Table) -> dict[str, Any]:
    """Counts over KNOWLEDGE, and the first error."""
    failed = knowledge.filter(pc.not_equal(knowledge["error"], ""))
    return {
        "rows": knowledge.num_rows,
        "errors": failed.num_rows,
        "first_error": failed["error"][0].as_py() if failed.num_rows else "",
        "tokens": int(pc.sum(pc.list_value_length(knowledge["token_ids"])).as_py() or 0),
        "forward_passes": int(pc.sum(knowledge["forward_passes"]).as_py() or 0),
        "relaxed_tokens": int(pc.sum(knowledge["relaxed_tokens"]).as_py() or 0),
    }


def sum_of(totals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Totals of tables together."""
    errors = [one["first_error"] for one in totals if one["first_error"]]
    counts = {name: sum(one[name] for one in totals) for name in _COUNTED}
    return counts | {"first_error": next(iter(errors), "")}


def in_words(totals: Mapping[str, Any]) -> str:
    """Totals as a sentence of a log."""
    rate = totals["tokens"] / max(totals["forward_passes"], 1)
    return (
        f"{counted(totals['rows'], 'rows')}, {count(totals['tokens'])} tokens, {rate:.2f} tokens "
        f"per forward pass, {counted(totals['relaxed_tokens'], 'tokens')} relaxed, "
        f"{counted(totals['errors'], 'rows')} failed"
    )
