"""A refresh: vectors of an earlier run whose texts have not changed.

Own vectors only: means over the texts of others are made anew in every run. Vectors are read part
by part when they are asked for, so memory stays bounded.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.build import usable_text
from pipeline.errors import DataError
from pipeline.knowledge import entities
from pipeline.parts import count_rows, list_parts, read_parts
from pipeline.schemas import FEATURES, PROVENANCE, SCHEMAS
from pipeline.store import Store

FRESH = -1  # instead of a row of the earlier run: the text is new or has changed


def why_not(earlier: Store, settings: Mapping[str, Any]) -> str:
    """Why no vector of the run `earlier` can be taken over; "" if they can."""
    features, knowledge = (earlier.manifest(name) for name in ("features", "knowledge"))
    if features is None or knowledge is None:
        return "it has no finished features"
    if features.inputs["knowledge"] != knowledge.version:
        return "its features were made from other knowledge"
    if any(found.schema_version != SCHEMAS[found.dataset][1] for found in (features, knowledge)):
        return "its datasets have another schema version"
    if features.settings != settings:
        names = sorted(features.settings.keys() | settings.keys())
        differing = [n for n in names if features.settings.get(n) != settings.get(n)]
        return f"its features were made with other settings ({', '.join(differing)})"
    return ""


def unchanged_rows(knowledge: pa.Table, earlier: pa.Table, stored: pa.Table) -> np.ndarray:
    """Row of the earlier FEATURES that has the vector of each text: (rows,) int64, or FRESH.

    Args:
        knowledge: KNOWLEDGE.
        earlier: KNOWLEDGE of the earlier run, whose text must be the same and usable.
        stored: (kind, entity_id, source) of its FEATURES, whose source must be `own`.
    """
    asked = entities(knowledge)
    place = pc.index_in(asked, value_set=entities(earlier))
    is_same = pc.equal(usable_text(earlier).take(place), usable_text(knowledge))
    row = pc.index_in(asked, value_set=entities(stored))
    is_own = pc.equal(stored["source"].take(row), "own")
    return (
        pc.if_else(pc.fill_null(pc.and_(is_same, is_own), False), row, FRESH)
        .to_numpy()
        .astype(np.int64)
    )


def with_provenance(features: pa.Table, knowledge: pa.Table) -> pa.Table:
    """Own rows of FEATURES as of today's KNOWLEDGE, row by row: the same text may be asked anew."""
    for name in PROVENANCE:
        place = features.schema.get_field_index(name)
        field = features.schema.field(place)
        features = features.set_column(place, field, knowledge[name].cast(field.type))
    return features


def blocks_of(is_fresh: np.ndarray, most_fresh: int, most_rows: int) -> Iterator[slice]:
    """Consecutive rows with at most `most_fresh` to encode and at most `most_rows` in all."""
    fresh = np.flatnonzero(is_fresh)
    start = 0
    while start < len(is_fresh):
        last = np.searchsorted(fresh, start) + most_fresh - 1
        stop = int(fresh[last]) + 1 if last < len(fresh) else len(is_fresh)
        stop = min(stop, start + most_rows)
        yield slice(start, stop)
        start = stop


def interleave(rows: np.ndarray, fresh: pa.Table | None, carried: pa.Table | None) -> pa.Table:
    """One table in the order of `rows`: FRESH asks for the next row of `fresh`, else of `carried`.

    A table may be None where no row asks for it.
    """
    if fresh is None or carried is None:
        whole = carried if fresh is None else fresh
        assert whole is not None, "a block has rows"
        return whole
    is_fresh = rows == FRESH
    order = np.where(is_fresh, np.cumsum(is_fresh) - 1, fresh.num_rows + np.cumsum(~is_fresh) - 1)
    return pa.concat_tables([fresh, carried.cast(fresh.schema)]).take(pa.array(order))


class StoredFeatures:
    """The dataset `features` of a run, read by row number.

    Raises:
        DataError: it holds more or fewer rows than its manifest says.
    """

    def __init__(self, store: Store) -> None:
        self._parts = list_parts(store.files.local("features"))
        self._starts = np.cumsum([0, *map(count_rows, self._parts)])
        self._latest: tuple[int, pa.Table] | None = None  # neighbours mostly lie in one part
        if self._starts[-1] != store.require("features").num_rows:
            raise DataError(
                f"{store.files.address}/features has lost or gained a part; move the folder away "
                "and run again: all texts are then encoded"
            )

    def take(self, rows: np.ndarray) -> pa.Table:
        """FEATURES of the given rows (at least one), in the order asked for."""
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        by_part = np.argsort(owners, kind="stable")
        found = [
            self._read(part).take(pa.array(rows[owners == part] - self._starts[part]))
            for part in np.unique(owners).tolist()
        ]
        return pa.concat_tables(found).take(pa.array(np.argsort(by_part)))

    def _read(self, part: int) -> pa.Table:
        if self._latest is None or self._latest[0] != part:
            self._latest = part, read_parts([self._parts[part]], FEATURES)
        return self._latest[1]
