"""What an attribute of a catalog can be held against a text by: years, names, or neither.

Years are numbers of four digits; names are what the cells list (genres, an author, a job). Numbers,
single letters and sentences come up in a text by accident or not at all, so they are not looked
for.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import re
from collections.abc import Iterable
from statistics import mean
from unicodedata import east_asian_width

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.quality.words import words_of

_CALLED_YEAR = ("year", "jahr", "ann\u00e9e", "a\u00f1o", "\u0433\u043e\u0434", "\u5e74")
_YEAR_BY_NAME, _YEAR_BY_VALUE = "^(1[0-9]|20)[0-9]{2}$", "^(1[89][0-9]{2}|20[0-3][0-9])$"
_MANY, _MOST = 0.5, 0.9  # shares
_FEW = 50  # values that may all differ
_LARGEST = 20_000  # different names
_LONG = 30  # columns of a name, on average; a wide letter takes two
_LISTED = re.compile(r"[,|;/\uff0c\u3001\uff1b]")

WHY_NOT = {
    "numbers": "numbers or single letters, which a text may hold by accident",
    "sentences": "whole sentences or long phrases, which no text repeats word for word",
    "unique": "names that nearly every one has for itself",
    "many": f"more than {_LARGEST:,} different names",
}


def values_of(entities: pa.Table, name: str) -> pa.Array:
    """Values of an attribute, null where an entity has none or it is empty."""
    values = pc.map_lookup(entities["attributes"], pa.scalar(name), "first").combine_chunks()
    return pc.if_else(pc.equal(values, ""), None, values)


def years_of(name: str, values: pa.Array) -> np.ndarray | None:
    """(entities,) int64, 0 where the year is not known; None if the attribute is no year."""
    is_called = any(word in name.lower() for word in _CALLED_YEAR)
    pattern, least = (_YEAR_BY_NAME, _MANY) if is_called else (_YEAR_BY_VALUE, _MOST)
    is_year = pc.fill_null(pc.match_substring_regex(values, pattern), False)
    known = len(values) - values.null_count
    if not known or pc.sum(is_year).as_py() < least * known:
        return None
    return pc.cast(pc.if_else(is_year, values, "0"), pa.int64()).to_numpy()


def names_of(values: pa.Array) -> list[frozenset[str]]:
    """Names in every cell, in words as texts have them; equal cells share a set."""
    cells = values.dictionary_encode()
    sets = [
        frozenset(name for part in _LISTED.split(cell) if (name := " ".join(words_of(part))))
        for cell in cells.dictionary.to_pylist()
    ]
    none: frozenset[str] = frozenset()
    return [none if code is None else sets[code] for code in cells.indices.to_pylist()]


def why_not_names(of_all: Iterable[frozenset[str]]) -> str:
    """A key of `WHY_NOT`, if such names cannot be looked for in texts; else ""."""
    filled = [names for names in of_all if names]
    names = frozenset().union(*filled)
    if not names or sum(map(_is_number, names)) > _MANY * len(names):
        return "numbers"
    if mean(map(_columns, names)) > _LONG:
        return "sentences"
    if len(filled) > _FEW and len(names) >= _MOST * len(filled):
        return "unique"
    return "many" if len(names) > _LARGEST else ""


def _is_number(name: str) -> bool:
    return len(name) == 1 or name.replace(" ", "").replace("_", "").isdecimal()


def _columns(name: str) -> int:
    wide = sum(east_asian_width(letter) in "WF" for letter in name)
    return len(name.replace(" ", "")) + wide if wide else len(name)
