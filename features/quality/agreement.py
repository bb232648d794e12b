"""Whether texts about films name the year and the genres that the catalog has.

Both stand in the prompt, so this is about keeping to what was shown, not about knowing. A year or
genre in the title is not counted as named: that would be the title's doing. Chance is what the
same texts would reach, on average, against every other item of the catalog.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.measures import ratio
from features.quality.counts import with_text

_YEARS = range(1900, 2031)
_GENRES = ("genres", "genre")  # attributes, best first
_SAME = (
    ("sci fi", "scifi", "science fiction"),
    ("film noir", "noir"),
    ("children's", "childrens"),
    ("animation", "animated"),
    ("romance", "romantic"),
)
_BREAK = "/"  # instead of the title; no word


class CatalogFacts:
    """Year and genres of every item, and how frequent each is."""

    def __init__(self, items: pa.Table) -> None:
        """`items` is ITEMS."""
        self._ids = items["item_id"].combine_chunks()
        self._titles = items["title"].combine_chunks()
        self._years = _years(_attribute(items, "year"))
        columns = (_attribute(items, name) for name in _GENRES)
        column = next((one for one in columns if len(one) > one.null_count), None)
        self._genres = [] if column is None else _genres(column)
        self._phrases = _phrases(set().union(*self._genres))
        self._longest = max((len(phrase.split()) for phrase in self._phrases), default=0)
        self._with_year = Counter(self._years[self._years > 0].tolist())
        self._with_genre = Counter(chain.from_iterable(self._genres))
        self._have_genres = sum(map(bool, self._genres))

    def count(self, knowledge: pa.Table) -> Counter[str]:
        """Sums over the texts of KNOWLEDGE about items of the catalog."""
        texts = with_text(knowledge)
        places = pc.index_in(texts["entity_id"], value_set=self._ids)
        known = pc.is_valid(places)
        rows = places.filter(known).to_pylist()
        titles = self._titles.take(pa.array(rows, pa.int64())).to_pylist()
        sums: Counter[str] = Counter()
        for row, title, text in zip(
            rows, titles, texts["text"].filter(known).to_pylist(), strict=True
        ):
            said, title_words = words_of(text), words_of(title)
            self._add_years(sums, row, years_in(said) - years_in(title_words))
            if self._genres and self._genres[row]:
                self._add_genres(sums, row, self.genres_in(without(said, title_words)))
        return sums

    def agreement(self, sums: Counter[str]) -> dict[str, Any]:
        """Counts and shares for the report; a part that the catalog cannot judge says why."""
        year: dict[str, Any] = {"skipped": "no item has an attribute `year`"}
        if self._years.any():
            year = {
                "texts": sums["year_texts"],
                "naming": sums["year_naming"],
                "right": ratio(sums["year_right"], sums["year_naming"]),
                "right_by_chance": ratio(sums["year_chance"], sums["year_naming"]),
            }
        genre: dict[str, Any] = {"skipped": "no item has an attribute `genres` or `genre`"}
        if self._phrases:
            genre = {
                "texts": sums["genre_texts"],
                "naming": sums["genre_naming"],
                "precision": ratio(sums["genre_right"], sums["genre_named"]),
                "recall": ratio(sums["genre_right"], sums["genre_catalog"]),
                "precision_by_chance": ratio(sums["genre_chance"], sums["genre_named"]),
                "recall_by_chance": ratio(sums["genre_chance"], sums["chance_catalog"]),
            }
        return {"year": year, "genre": genre}

    def genres_in(self, words: Sequence[str]) -> set[str]:
        """The catalog's genres that some words name; of two that overlap the longer one."""
        found, at = set(), 0
        while at < len(words):
            for size in range(self._longest, 0, -1):
                genre = self._phrases.get(" ".join(words[at : at + size]))
                if genre is not None:
                    found.add(genre)
                    at += size - 1
                    break
            at += 1
        return found

    def _add_years(self, sums: Counter[str], row: int, named: set[int]) -> None:
        year = int(self._years[row])
        if not year:
            return
        sums["year_texts"] += 1
        if not named:
            return
        sums["year_naming"] += 1
        sums["year_right"] += year in named
        hits = sum(self._with_year[one] for one in named) - (year in named)
        sums["year_chance"] += _mean(hits, self._with_year.total() - 1)

    def _add_genres(self, sums: Counter[str], row: int, named: set[str]) -> None:
        genres, others = self._genres[row], self._have_genres - 1
        right = len(named & genres)
        sums["genre_texts"] += 1
        sums["genre_naming"] += bool(named)
        sums["genre_named"] += len(named)
        sums["genre_right"] += right
        sums["genre_catalog"] += len(genres)
        hits = sum(self._with_genre[one] for one in named) - right
        sums["genre_chance"] += _mean(hits, others)
        sums["chance_catalog"] += _mean(self._with_genre.total() - len(genres), others)


def words_of(text: str) -> list[str]:
    """Words in lower case; a hyphen parts two."""
    plain = text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    words = (word.strip("'") for word in re.findall(r"[\w']+", plain))
    return [word for word in words if word]


def without(words: Sequence[str], title: Sequence[str]) -> list[str]:
    """`words` with every occurrence of `title` replaced by a break."""
    kept, at = [], 0
    while at < len(words):
        is_title = bool(title) and list(words[at : at + len(title)]) == list(title)
        kept.append(_BREAK if is_title else words[at])
        at += len(title) if is_title else 1
    return kept


def years_in(words: Iterable[str]) -> set[int]:
    """Four-digit years from 1900 to 2030; `1990s` is none."""
    numbers = (int(word) for word in words if re.fullmatch("[0-9]{4}", word))
    return {number for number in numbers if number in _YEARS}


def _attribute(items: pa.Table, name: str) -> pa.Array:
    """Values of an attribute, null where an item has none or it is empty."""
    values = pc.map_lookup(items["attributes"], pa.scalar(name), "first").combine_chunks()
    return pc.if_else(pc.equal(values, ""), None, values)


def _years(column: pa.Array) -> np.ndarray:
    """(items,) int64, 0 where the year is not known."""
    is_year = pc.fill_null(pc.match_substring_regex(column, "^[0-9]{4}$"), False)
    return pc.cast(pc.if_else(is_year, column, "0"), pa.int64()).to_numpy()


def _genres(column: pa.Array) -> list[frozenset[str]]:
    """Genres of every item in words as texts have them; equal cells share a set."""
    cells = column.dictionary_encode()
    sets = [
        frozenset(name for part in re.split(r"[,|;/]", cell) if (name := " ".join(words_of(part))))
        for cell in cells.dictionary.to_pylist()
    ]
    none: frozenset[str] = frozenset()
    return [none if code is None else sets[code] for code in cells.indices.to_pylist()]


def _phrases(genres: set[str]) -> dict[str, str]:
    """What names a genre: itself, its synonyms, and the plurals of all of these."""
    named: dict[str, str] = {genre: genre for genre in genres}
    for genre in sorted(genres):
        for phrase in next((same for same in _SAME if genre in same), (genre,)):
            plural = phrase[:-1] + "ies" if phrase.endswith("y") else phrase + "s"
            for form in (phrase, plural):
                named.setdefault(form, genre)
    return named


def _mean(total: int, count: int) -> Any:
    """A float, which a Counter adds up like any number; 0 where there is nothing."""
    return total / max(count, 1)
