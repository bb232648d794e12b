"""Whether texts name what the catalog says of their entities: the year, genres, an author, a job.

The prompt shows attributes, so this is about keeping to what was shown, not about knowing. What
stands in the title is not counted as named: that would be the title's doing. Chance is what the
same texts would reach, on average, against every other entity of the catalog.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.measures import ratio
from features.quality.attributes import WHY_NOT, Listed, names_of, values_of, years_of
from features.quality.counts import with_text
from features.quality.words import YEARS, without, words_of, years_in
from pipeline.row_batches import Rows

_NOT_SHOWN = "the prompt does not show it"
_FIRST_OF = {"genre": "genres"}  # prompts leave the one out where the other is
_SAME = (
    ("sci fi", "scifi", "science fiction"),
    ("film noir", "noir"),
    ("children's", "childrens"),
    ("animation", "animated"),
    ("romance", "romantic"),
)


class Fact(Protocol):
    """One attribute of all entities, as texts are held against it."""

    def count(self, row: int, said: Sequence[str], title: Sequence[str]) -> dict[str, Any]:
        """What a text about the entity in `row` adds to the sums, by its words and the title's."""
        ...

    def shares(self, sums: Counter[str]) -> dict[str, Any]:
        """Counts and shares of the sums, for the report."""
        ...


class CatalogFacts:
    """What the catalog says of every user or every item, as far as texts can be held against it.

    `skipped` has the attributes that they cannot, and why.
    """

    def __init__(self, entities: pa.Table, is_shown: bool = True) -> None:
        """`entities` is USERS or ITEMS; `is_shown` says whether prompts show attributes."""
        self._ids = entities.column(0)
        has_title = "title" in entities.column_names
        self._titles = Rows(entities.select(["title"])) if has_title else None
        self.facts: dict[str, Fact] = {}
        self.skipped: dict[str, str] = {}
        chunks = [pc.unique(chunk.keys) for chunk in entities["attributes"].chunks]
        for name in pc.unique(pa.chunked_array(chunks, pa.string())).to_pylist():
            fact = _fact(name, entities) if is_shown else _NOT_SHOWN
            if not isinstance(fact, str):
                self.facts[name] = fact
            elif fact:
                self.skipped[name] = fact

    def count(self, knowledge: pa.Table) -> Counter[str]:
        """Sums over the texts of KNOWLEDGE about entities of the catalog."""
        sums: Counter[str] = Counter()
        if not self.facts:
            return sums
        texts = with_text(knowledge)
        places = pc.index_in(texts["entity_id"], value_set=self._ids)
        known = pc.is_valid(places)
        rows = places.filter(known).to_pylist()
        titles = [""] * len(rows)
        if self._titles is not None:
            titles = self._titles.take(np.array(rows, np.int64))["title"].to_pylist()
        said = texts["text"].filter(known).to_pylist()
        for row, title, text in zip(rows, titles, said, strict=True):
            words, title_words = words_of(text), words_of(title)
            for name, fact in self.facts.items():
                for key, value in fact.count(row, words, title_words).items():
                    sums[_key(name, key)] += value
        return sums

    def agreement(self, sums: Counter[str]) -> dict[str, dict[str, Any]]:
        """Counts and shares of each attribute; one that was not looked for says why."""
        found: dict[str, dict[str, Any]] = {}
        for name, fact in self.facts.items():
            prefix = _key(name, "")
            own = {k[len(prefix) :]: n for k, n in sums.items() if k.startswith(prefix)}
            found[name] = fact.shares(Counter(own))
        return found | {name: {"skipped": why} for name, why in self.skipped.items()}


class Years:
    """A year of every entity; a text may name several, of which one has to be right."""

    def __init__(self, years: np.ndarray) -> None:
        """`years` (entities,) int64, 0 where one is not known."""
        self._years = years
        known = years[years > 0]
        self._among = range(min(YEARS[0], int(known.min())), max(YEARS[-1], int(known.max())) + 1)
        values, counts = np.unique(known, return_counts=True)
        self._frequent = Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def count(self, row: int, said: Sequence[str], title: Sequence[str]) -> dict[str, Any]:
        """See `Fact`."""
        year = int(self._years[row])
        if not year:
            return {}
        named = years_in(said, self._among) - years_in(title, self._among)
        if not named:
            return {"texts": 1}
        hits = sum(self._frequent[one] for one in named) - (year in named)
        chance = hits / max(self._frequent.total() - 1, 1)
        return {"texts": 1, "naming": 1, "right": year in named, "chance": chance}

    def shares(self, sums: Counter[str]) -> dict[str, Any]:
        """See `Fact`."""
        return {
            "kind": "year",
            "texts": sums["texts"],
            "naming": sums["naming"],
            "right": ratio(sums["right"], sums["naming"]),
            "right_by_chance": ratio(sums["chance"], sums["naming"]),
        }


class Names:
    """Names of every entity, such as its genres; of two that overlap the longer one is named."""

    def __init__(self, listed: Listed) -> None:
        self._listed = listed
        self._phrases = _phrases(listed.names)
        lengths: dict[str, set[int]] = {}
        for phrase in self._phrases:
            words = phrase.split()
            lengths.setdefault(words[0], set()).add(len(words))
        # One long name must not make every word of every text slow.
        self._lengths = {word: sorted(own, reverse=True) for word, own in lengths.items()}
        counts = np.bincount(listed.places, minlength=len(listed.names)).tolist()
        self._frequent = Counter(dict(zip(listed.names, counts, strict=True)))
        self._total = len(listed.places)
        self._others = int(np.count_nonzero(np.diff(listed.starts))) - 1

    def count(self, row: int, said: Sequence[str], title: Sequence[str]) -> dict[str, Any]:
        """See `Fact`."""
        own = self._own(row)
        if not own:
            return {}
        named = self.named_in(without(said, title))
        right = len(named & own)
        hits = sum(self._frequent[one] for one in named) - right
        return {
            "texts": 1,
            "naming": bool(named),
            "named": len(named),
            "right": right,
            "catalog": len(own),
            "chance": hits / max(self._others, 1),
            "chance_catalog": (self._total - len(own)) / max(self._others, 1),
        }

    def _own(self, row: int) -> set[str]:
        start, stop = self._listed.starts[row : row + 2]
        return {self._listed.names[place] for place in self._listed.places[start:stop]}

    def named_in(self, words: Sequence[str]) -> set[str]:
        """The catalog's names that stand among some words."""
        found, at = set(), 0
        while at < len(words):
            for size in self._lengths.get(words[at], ()):
                name = self._phrases.get(" ".join(words[at : at + size]))
                if name is not None:
                    found.add(name)
                    at += size - 1
                    break
            at += 1
        return found

    def shares(self, sums: Counter[str]) -> dict[str, Any]:
        """See `Fact`."""
        return {
            "kind": "names",
            "texts": sums["texts"],
            "naming": sums["naming"],
            "precision": ratio(sums["right"], sums["named"]),
            "recall": ratio(sums["right"], sums["catalog"]),
            "precision_by_chance": ratio(sums["chance"], sums["named"]),
            "recall_by_chance": ratio(sums["chance"], sums["chance_catalog"]),
        }


def _fact(name: str, entities: pa.Table) -> Fact | str:
    """What an attribute says, or why texts cannot be held against it; "" if it says nothing."""
    values = partial(values_of, entities, name, _FIRST_OF.get(name, ""))
    years = years_of(name, values)
    if years is not None:
        return Years(years)
    names = names_of(values)
    return Names(names) if isinstance(names, Listed) else WHY_NOT.get(names, "")


def _key(name: str, what: str) -> str:
    """Of a sum; no attribute and no sum of another kind holds a NUL."""
    return f"{name}\0{what}"


def _phrases(names: Sequence[str]) -> dict[str, str]:
    """What says a name: itself, its synonyms, and the plurals of all of these."""
    found: dict[str, str] = {name: name for name in names}
    for name in sorted(names):
        for phrase in next((same for same in _SAME if name in same), (name,)):
            plural = phrase[:-1] + "ies" if phrase.endswith("y") else phrase + "s"
            for form in (phrase, plural):
                found.setdefault(form, name)
    return found
