"""Vectors of entities without a text of their own: means over the texts of others, marked as such.

An entity gets the mean of its group's own vectors (`group`), else that of its kind's (`default`),
and the zero vector (`none`) only where no entity of its kind has a text.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.build import feature_rows, usable_text
from pipeline.errors import DataError
from pipeline.knowledge import entities, is_among
from pipeline.schemas import KINDS


def owed_rows(knowledge: pa.Table, groups: pa.Table) -> tuple[pa.Table, pa.Table]:
    """KNOWLEDGE with a usable text, to be encoded, and all other entities of GROUPS.

    A kind that nothing was written about (`generation.kinds`) has no row in KNOWLEDGE, and is among
    the others. Where no text at all is usable all rows of KNOWLEDGE are to be encoded, since the
    encoder alone knows how wide a vector is.

    Raises:
        DataError: KNOWLEDGE is empty, or has rows of a kind, but not of all its entities.
    """
    written = groups.filter(pc.is_in(groups["kind"], value_set=pc.unique(knowledge["kind"])))
    lacking = written.filter(pc.invert(is_among(written, knowledge)))
    if lacking.num_rows:
        names = lacking["entity_id"].slice(0, 3).to_pylist()
        raise DataError(
            f"knowledge has no row of {lacking.num_rows} entities of groups, such as {names}; run "
            "`laser generate` again"
        )
    if not knowledge.num_rows:
        raise DataError("knowledge holds no row; run `laser generate` again")
    texts = knowledge.filter(pc.not_equal(usable_text(knowledge), ""))
    if not texts.num_rows:
        texts = knowledge
    return texts, groups.filter(pc.invert(is_among(groups, texts)))


class Means:
    """Means of own vectors over every group and every kind.

    Rows are summed one after another in float64, so that the same rows in the same order give the
    same bits in whatever tables they come; memory is bounded by groups times width.
    """

    def __init__(self, groups: pa.Table, width: int) -> None:
        """`groups`: (kind, entity_id, group_id) of GROUPS."""
        self._members = entities(groups).combine_chunks()
        names = pc.binary_join_element_wise(groups["kind"], groups["group_id"], "\0")
        group = np.unique(names.to_numpy(), return_inverse=True)[1]
        kind = pc.index_in(groups["kind"], value_set=pa.array(KINDS)).to_numpy()
        num_groups = int(group.max(initial=-1)) + 1
        self._sets = np.stack([group, num_groups + kind], axis=1)  # of each member, best first
        total = num_groups + len(KINDS)
        self._sums = np.zeros((total, width))
        self._texts = np.zeros(total, np.int64)
        self._asof, self._latest, self._events = np.zeros((3, total), np.int64)

    def add(self, features: pa.Table) -> None:
        """Take in the own vectors among some rows of FEATURES.

        Raises:
            DataError: a row is of no entity of GROUPS.
        """
        own = features.filter(pc.equal(features["source"], "own"))
        if not own.num_rows:
            return
        sets = self._sets_of(own)
        vectors = own["vector"].combine_chunks().flatten().to_numpy().reshape(len(sets), -1)
        for (group, kind), vector in zip(sets.tolist(), vectors, strict=True):
            self._sums[group] += vector
            self._sums[kind] += vector
        seen = {name: own[name].to_numpy() for name in ("asof", "latest_source", "source_events")}
        for of_row in sets.T:
            self._texts += np.bincount(of_row, minlength=len(self._texts))
            np.maximum.at(self._asof, of_row, seen["asof"])
            np.maximum.at(self._latest, of_row, seen["latest_source"])
            np.add.at(self._events, of_row, seen["source_events"])

    def features_of(self, members: pa.Table) -> pa.Table:
        """FEATURES of entities without a text of their own.

        Raises:
            DataError: one of them is not in GROUPS.
        """
        group, kind = self._sets_of(members).T
        has_group, has_kind = self._texts[group] > 0, self._texts[kind] > 0
        chosen = np.where(has_group, group, kind)
        vectors = self._sums[chosen] / np.maximum(self._texts[chosen], 1)[:, None]
        seen = {
            "asof": self._asof[chosen],
            "latest_source": self._latest[chosen],
            "source_events": self._events[chosen],
            "prompt_hash": pa.repeat("", len(chosen)),
        }
        source = np.where(has_group, "group", np.where(has_kind, "default", "none"))
        return feature_rows(members, source, seen, vectors.astype(np.float32))

    def _sets_of(self, table: pa.Table) -> np.ndarray:
        """Group and kind of each row's entity, as numbers of sums: (rows, 2)."""
        place = pc.index_in(entities(table), value_set=self._members)
        if place.null_count:
            strangers = table.filter(pc.is_null(place)).slice(0, 3)["entity_id"].to_pylist()
            raise DataError(
                f"{place.null_count} entities, such as {strangers}, are in no group; run "
                "`laser group` and `laser generate` again"
            )
        return self._sets[place.to_numpy()]
