"""What an attribute of a catalog can be held against a text by: years, names, or neither.

Years are numbers of four digits; names are what the cells list (genres, an author, a job). Numbers,
single letters and sentences come up in a text by accident or not at all, so they are not looked
for. Cells are seen some at a time, and no more names than can be looked for: a description of ten
million items is given up after its first rows.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean
from unicodedata import east_asian_width

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.quality.words import words_of

Values = Callable[[], Iterable[pa.Array]]  # of an attribute: anew at every call, some at a time

_CALLED_YEAR = ("year", "jahr", "ann\u00e9e", "a\u00f1o", "\u0433\u043e\u0434", "\u5e74")
_YEAR_BY_NAME, _YEAR_BY_VALUE = "^(1[0-9]|20)[0-9]{2}$", "^(1[89][0-9]{2}|20[0-3][0-9])$"
_MANY, _MOST = 0.5, 0.9  # shares
_FEW = 50  # values that may all differ
_LARGEST = 20_000  # different names
_LONG = 30  # columns of a name, on average; a wide letter takes two
_LISTED = "[,|;/\uff0c\u3001\uff1b]"
_AT_ONCE = 4096  # entities

WHY_NOT = {
    "numbers": "numbers or single letters, which a text may hold by accident",
    "sentences": "whole sentences or long phrases, which no text repeats word for word",
    "unique": "names that nearly every one has for itself",
    "many": f"more than {_LARGEST:,} different names",
}


@dataclass(frozen=True)
class Listed:
    """The names that the cells of all entities list, each spelled once."""

    names: list[str]  # in words, as texts have them
    places: np.ndarray  # (listed,) int32 among `names`, entity after entity, none twice in one
    starts: np.ndarray  # (entities + 1,) int64: where an entity's places begin


def values_of(entities: pa.Table, name: str, unless: str = "") -> Iterator[pa.Array]:
    """Values of an attribute, null where an entity has none, or it is empty, or has `unless`."""
    for chunk in entities["attributes"].chunks:
        for start in range(0, len(chunk), _AT_ONCE):
            some = chunk.slice(start, _AT_ONCE)
            values = _looked_up(some, name)
            if unless:
                values = pc.if_else(pc.is_valid(_looked_up(some, unless)), None, values)
            yield values


def _looked_up(attributes: pa.Array, name: str) -> pa.Array:
    values = pc.map_lookup(attributes, pa.scalar(name), "first")
    return pc.if_else(pc.equal(values, ""), None, values)


def years_of(name: str, values: Values) -> np.ndarray | None:
    """(entities,) int64, 0 where the year is not known; None if the attribute is no year."""
    is_called = any(word in name.lower() for word in _CALLED_YEAR)
    pattern, least = (_YEAR_BY_NAME, _MANY) if is_called else (_YEAR_BY_VALUE, _MOST)
    known = right = 0
    for some in values():
        known += len(some) - some.null_count
        right += pc.sum(_is_year(some, pattern)).as_py() or 0
    if not known or right < least * known:
        return None
    years = [pc.if_else(_is_year(some, pattern), some, "0") for some in values()]
    return np.concatenate([pc.cast(some, pa.int64()).to_numpy() for some in years])


def _is_year(values: pa.Array, pattern: str) -> pa.Array:
    return pc.fill_null(pc.match_substring_regex(values, pattern), False)


def names_of(values: Values) -> Listed | str:
    """The names in every cell; or, if they cannot be looked for in texts, a key of `WHY_NOT`.

    "" if no cell holds anything.
    """
    names: dict[str, int] = {}
    places, counts, filled, is_empty = [np.zeros(0, np.int32)], [np.zeros(1, np.int64)], 0, True
    for some in values():
        is_empty &= some.null_count == len(some)
        rows, found = _pairs(some, names)
        places.append(found.astype(np.int32))
        counts.append(np.bincount(rows, minlength=len(some)))
        filled += int(np.count_nonzero(counts[-1]))
        if len(names) > _LARGEST:
            break
    if is_empty:
        return ""
    why = _why_not(names, filled)
    return why or Listed(list(names), np.concatenate(places), np.concatenate(counts).cumsum())


def _pairs(values: pa.Array, names: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows and the places of their names, in order and none twice; new names join `names`."""
    cells = pc.split_pattern_regex(values, _LISTED)
    parts = pc.list_flatten(cells).dictionary_encode()
    spelled = (_spelled(part) for part in parts.dictionary.to_pylist())
    known = [names.setdefault(name, len(names)) if name else -1 for name in spelled]
    found = np.array(known, np.int64)[parts.indices.to_numpy()]
    rows = pc.list_parent_indices(cells).to_numpy().astype(np.int64)
    width = max(len(names), 1)
    pairs = np.unique((rows * width + found)[found >= 0])
    return pairs // width, pairs % width


@lru_cache(maxsize=4 * _LARGEST)
def _spelled(part: str) -> str:
    """In words, as texts have them."""
    return " ".join(words_of(part))


def _why_not(names: Collection[str], filled: int) -> str:
    """A key of `WHY_NOT`, if the names of so many entities cannot be looked for; else ""."""
    if not names or sum(map(_is_number, names)) > _MANY * len(names):
        return "numbers"
    if mean(map(_columns, names)) > _LONG:
        return "sentences"
    if filled > _FEW and len(names) >= _MOST * filled:
        return "unique"
    return "many" if len(names) > _LARGEST else ""


def _is_number(name: str) -> bool:
    return len(name) == 1 or name.replace(" ", "").replace("_", "").isdecimal()


def _columns(name: str) -> int:
    wide = sum(east_asian_width(letter) in "WF" for letter in name)
    return len(name.replace(" ", "")) + wide if wide else len(name)
