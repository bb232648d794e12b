"""Attributes of catalogs of any size: how much of them is looked at, and what is kept of it."""

import time

import pyarrow as pa
import pytest

from features.formats import listed
from features.quality import attributes, table
from features.quality.agreement import CatalogFacts, Names
from features.quality.attributes import Listed, names_of, years_of
from features.quality.words import words_of
from pipeline.schemas import ITEMS


def items(*attributes):
    return pa.Table.from_pylist(
        [
            {"item_id": f"i{n}", "title": f"Item {n}", "attributes": list(own.items())}
            for n, own in enumerate(attributes)
        ],
        schema=ITEMS,
    )


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("wide grey field {0}, long cold road {0}", "unique"),
        ("{0}00, {0}01", "numbers"),
        ("a long walk along the grey field of number {0}", "sentences"),
    ],
)
def test_of_an_attribute_that_cannot_be_looked_for_only_its_first_cells_are_seen(cell, why):
    seen = []

    def values():
        for start in range(0, 10**7, 4096):
            seen.append(start)
            yield pa.array([cell.format(n) for n in range(start, start + 4096)])

    assert names_of(values) == why
    assert len(seen) < 8


def test_names_that_come_again_are_seen_to_the_end_and_kept_as_numbers():
    batch = pa.array(["Drama, Crime", None, "Crime,crime", ""] * 1000)
    found = names_of(lambda: [batch] * 50)
    assert isinstance(found, Listed)
    assert found.names == ["drama", "crime"]
    assert found.starts[:5].tolist() == [0, 2, 2, 3, 3]
    assert found.places[:3].tolist() == [0, 1, 1]
    assert (len(found.starts), len(found.places)) == (200_001, 150_000)
    assert found.places.nbytes + found.starts.nbytes < 3e6


def test_cells_are_those_of_their_entities_in_any_chunks(monkeypatch):
    rows = [
        {"genres": "Crime, Drama", "made": "1995"},
        {"made": "1942", "genres": "War"},
        {},
        {"genres": ""},
        {"genres": "Drama", "made": "2001"},
        {"genre": "Comedy"},
    ]
    whole = items(*rows, *rows)
    chunks = pa.concat_tables([whole.slice(0, 5), whole.slice(5, 1), whole.slice(6)])
    monkeypatch.setattr(attributes, "_AT_ONCE", 2)
    facts = CatalogFacts(chunks).facts
    assert set(facts) == {"genres", "genre", "made"}
    for fact, expected in (
        (facts["genres"], ["crime drama", "war", "", "", "drama", ""] * 2),
        (facts["genre"], ["", "", "", "", "", "comedy"] * 2),
    ):
        words = words_of("crime drama war comedy")
        for row, own in enumerate(expected):
            assert fact.count(row, words, []).get("catalog", 0) == len(own.split())
            right = fact.count(row, words_of(own), [])
            assert right.get("right", 0) == right.get("named", 0) == len(own.split())
    years = years_of("made", lambda: attributes.values_of(chunks, "made"))
    assert years is not None
    assert years.tolist() == [1995, 1942, 0, 0, 2001, 0] * 2


def test_one_long_cell_makes_no_text_slow():
    words = [f"w{n}" for n in range(4000)]
    known = [f"name {n}" for n in range(2000)]
    found = names_of(lambda: [pa.array([*known, " ".join(words)] * 2)])
    assert isinstance(found, Listed)
    names = Names(found)
    began = time.perf_counter()
    assert names.named_in(["so", *words[1:], "name", "7"] * 5) == {"name 7"}
    assert time.perf_counter() - began < 2  # minutes, if every word began 4,000 phrases
    assert names.named_in(["so", *words, "name", "7"]) == {"name 7", " ".join(words)}


def test_an_attribute_that_is_one_thing_of_users_and_another_of_items_has_lines_of_both():
    year = {"kind": "year", "texts": 9, "naming": 8, "right": 0.5, "right_by_chance": 0.1}
    names = {"kind": "names", "texts": 7, "naming": 6, "precision": 0.75, "recall": 0.25}
    names |= {"precision_by_chance": 0.2, "recall_by_chance": 0.15}
    kinds = {
        kind: {"texts": {"rows": 9, "catalog": {"made": fact}}, "similarity": None, "plain": None}
        for kind, fact in (("user", names), ("item", year))
    }
    lines = {line.name: line.values for line in table.lines(kinds) if line.name.startswith("Made")}
    assert lines == {
        "Made: what is named is right": ["75 % (chance: 20 %)", ""],
        "Made: what is right is named": ["25 % (chance: 15 %)", ""],
        "Made: the one named is right": ["", "50 % (chance: 10 %; 8 of 9 name one)"],
    }


def test_names_are_listed_as_people_do():
    assert [listed(["a", "b", "c"][:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
