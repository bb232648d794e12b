"""Ids and attributes of entities as small integer codes, one column per field.

Code 0 is "unknown": a value that no known entity has, or none at all. Which attributes take part
follows from the data: a number becomes its quantile among the trained entities, free text is left
out.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.columns import as_numbers

_QUANTILES = 8
_NOT_CATEGORICAL = frozenset({"title", "genres"})  # text; many values in one (`genre` is kept)
_MIN_REPEATS = 2.0  # entities per value; below, an attribute is free text or a second id


@dataclass(frozen=True)
class Fields:
    """Codes of all entities of a kind; field 0 is the id."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]  # codes of each field, 0 included
    codes: np.ndarray  # (entities, fields) int32
    left_out: tuple[str, ...] = ()  # what takes no part, and why

    def without_id(self, why: str) -> "Fields":
        """The same with every id unknown."""
        codes = self.codes.copy()
        codes[:, 0] = 0
        left_out = (*self.left_out, f"ids, since {why}")
        return replace(self, sizes=(1, *self.sizes[1:]), codes=codes, left_out=left_out)


def make_fields(
    attributes: pa.ChunkedArray, is_known: np.ndarray, is_trained: np.ndarray
) -> Fields:
    """Fields of the id and of every categorical attribute.

    Args:
        attributes: (entities,) map of strings.
        is_known: (entities,) bool, entities of knowledge or train rows: they make vocabularies.
        is_trained: (entities,) bool, entities of train rows: they make quantiles.
    """
    left_out: list[str] = []
    names, columns = ["id"], [np.where(is_known, np.cumsum(is_known), 0)]
    for name in _attribute_names(attributes):
        values = pc.fill_null(pc.map_lookup(attributes, name, "first"), "")
        codes = _quantiles(values, is_trained)
        if codes is None:
            codes = _categories(values, is_known)
        if codes is None:
            left_out.append(f"attribute {name}, which is free text or empty")
            continue
        names.append(name)
        columns.append(codes)
    codes = np.stack(columns, axis=1).astype(np.int32)
    sizes = codes.max(axis=0, initial=0) + 1
    return Fields(tuple(names), tuple(int(size) for size in sizes), codes, tuple(left_out))


def _attribute_names(attributes: pa.ChunkedArray) -> list[str]:
    names = {name for chunk in attributes.chunks for name in pc.unique(chunk.keys).to_pylist()}
    return sorted(names - _NOT_CATEGORICAL)


def _quantiles(values: pa.ChunkedArray, is_trained: np.ndarray) -> np.ndarray | None:
    """1 + the quantile of a numeric attribute, 0 where it is no number; None if not numeric."""
    numbers = as_numbers(values, "attributes").to_numpy()  # NaN: not a number
    trained = numbers[is_trained & (values.to_numpy() != "")]
    if np.isnan(trained).any() or len(np.unique(trained)) <= _QUANTILES:
        return None
    edges = np.quantile(trained, np.arange(1, _QUANTILES) / _QUANTILES)
    return np.where(np.isnan(numbers), 0, 1 + np.searchsorted(edges, numbers, "right"))


def _categories(values: pa.ChunkedArray, is_known: np.ndarray) -> np.ndarray | None:
    """1 + the place of a value in the sorted vocabulary, 0 if not in it; None if free text."""
    known = values.filter(pa.array(is_known & (values.to_numpy() != "")))
    vocabulary = pc.unique(known).sort()
    if not 0 < len(vocabulary) <= len(known) / _MIN_REPEATS:
        return None
    return pc.fill_null(pc.index_in(values, value_set=vocabulary), -1).to_numpy() + 1
