"""Quality of texts: every figure on tables small enough to reckon by hand."""

from collections import Counter
from itertools import count

import numpy as np
import pyarrow as pa
import pytest

from features.frameworks import framework_named
from features.quality import table
from features.quality.agreement import CatalogFacts
from features.quality.counts import count_texts, shares_of
from features.quality.ngrams import count_distinct, count_looping, count_shared
from features.quality.similarity import another, compare, edit_similarity
from features.quality.summary import COLUMNS, choose_rows, measure_texts, summarise
from features.quality.words import without, words_of, years_in
from pipeline.schemas import FEATURES, ITEMS, KNOWLEDGE, USERS, with_vector_width

LOOP = [1, 2, 3, 4, 5, 6, 7, 8]


def tokens(*rows):
    return pa.chunked_array([pa.array(rows, pa.list_(pa.int32()))])


def row(kind, entity_id, ids, text="some text", **changes):
    fields = {f.name: [] if pa.types.is_list(f.type) else 0 for f in KNOWLEDGE}
    fields |= {f.name: "" for f in KNOWLEDGE if pa.types.is_string(f.type)}
    fields |= {"kind": kind, "entity_id": entity_id, "text": text, "token_ids": ids}
    return fields | {"finish_reason": "stop"} | changes


def knowledge(*rows):
    return pa.Table.from_pylist(list(rows), schema=KNOWLEDGE)


def features(*vectors, sources=None):
    rows = [
        {"kind": "user", "entity_id": f"u{n}", "source": source, "vector": vector}
        for n, (vector, source) in enumerate(
            zip(vectors, sources or ["own"] * len(vectors), strict=True)
        )
    ]
    schema = with_vector_width(FEATURES, len(vectors[0]))
    known = [{f.name: 0 if pa.types.is_integer(f.type) else "" for f in schema} | r for r in rows]
    return pa.Table.from_pylist(known, schema=schema)


def films(*rows):
    return pa.Table.from_pylist(
        [{"item_id": i, "title": title, "attributes": list(a.items())} for i, title, a in rows],
        schema=ITEMS,
    )


def test_a_text_loops_that_says_eight_tokens_twice_and_no_two_texts_loop_together():
    assert count_looping(tokens([*LOOP, 9, *LOOP], [*LOOP, 9], LOOP, []), 8) == 1
    assert count_looping(tokens([7] * 9), 8) == 1  # runs may overlap
    assert count_looping(tokens([7] * 8, [7] * 8), 8) == 0
    assert count_looping(tokens(), 8) == 0


def test_distinct_runs_are_counted_inside_each_text():
    assert count_distinct(tokens([1, 2, 3, 1, 2, 3], [1, 2, 3], [1, 2]), 3) == (4, 5)


def test_a_run_is_shared_if_another_text_has_it_however_often_its_own_does():
    assert count_shared(tokens([1, 1, 1, 1], [2, 3, 4]), 3) == (0, 3)
    assert count_shared(tokens([1, 2, 3, 4], [5, 1, 2, 3], [9, 9, 9]), 3) == (2, 5)
    assert count_shared(tokens([1, 2], []), 3) == (0, 0)


def test_sums_are_over_usable_texts_and_add_up():
    rows = knowledge(
        row(
            "user",
            "a",
            [1, 2, 3, 1, 2, 3],
            finish_reason="length",
            relaxed_tokens=2,
            relaxed_cost=0.75,
            drafted_by_source=[9, 9, 9, 9],
            accepted_by_source=[1, 1, 2, 1],
        ),
        row("user", "b", [4, 5, 6, 7]),
        row("user", "c", [1] * 20, text=" ", relaxed_cost=9.0),
        row("user", "d", [1] * 20, error="too long"),
    )
    halves = count_texts(rows.slice(0, 1)) + count_texts(rows.slice(1))
    assert shares_of(halves) == shares_of(count_texts(rows))
    assert shares_of(halves) == {
        "rows": 4,
        "texts": 2,
        "tokens": 10,
        "tokens_per_text": 5.0,
        "cut_share": 0.5,
        "nats_per_token": 0.075,
        "relaxed_share": 0.2,
        "looping_share": 0.0,
        "distinct_trigram_share": 5 / 6,
        "pool_share": 0.3,
    }
    assert shares_of(count_texts(rows.slice(0, 0)))["cut_share"] is None


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], 1.0),
        ([1, 2, 3, 4], [1, 3, 4], 0.75),  # one left out
        ([1, 2], [3, 4, 5, 6], 0.0),
        ([1, 2, 3], [2, 3, 1], 1 - 2 / 3),
        ([], [1, 2], 0.0),
        ([], [], 1.0),
    ],
)
def test_edit_similarity(ours, theirs, expected):
    found = edit_similarity(tokens([9], ours), tokens([9], theirs))
    assert found.tolist() == pytest.approx([1.0, expected])


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_another_is_never_the_same_one_and_each_is_somebody_s_other(count):
    found = another(count, np.random.default_rng(3))
    assert sorted(found.tolist()) == (list(range(count)) if count > 1 else [])
    assert not (found == np.arange(len(found))).any()


def test_texts_are_compared_with_their_own_plain_one_and_with_another_row_s():
    ours = knowledge(
        row("user", "u0", [1, 2, 3, 4], "same"),
        row("user", "u1", [5, 6], "changed", relaxed_tokens=1),
        row("user", "u2", [9], "asked something else", prompt_hash="new"),
        row("user", "u3", [9], "", error="broken"),
    )
    plain = knowledge(
        row("user", "u0", [1, 2, 3, 4], "same"),
        row("user", "u1", [5, 7], "plain"),
        row("user", "u2", [9], "asked something else", prompt_hash="old"),
        row("user", "u3", [9], "whole"),
    )
    vectors = features([1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [1.0, 1.0])
    others = features([3.0, 0.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0])
    assert compare(ours, plain, vectors, others, 1) == {
        "rows": 2,
        "other_prompt": 1,
        "never_relaxed": 0.5,
        "identical": 0.5,
        "edit_similarity": 0.75,
        "edit_similarity_to_another": 0.0,
        "vectors": 2,
        "cosine": pytest.approx((1 + 0.5**0.5) / 2),
        "cosine_to_another": pytest.approx(0.5**0.5 / 2),
    }
    lent = features([1.0, 0.0], [0.0, 2.0], [1.0, 1.0], [1.0, 1.0], sources=["own", *["group"] * 3])
    found = compare(ours, plain, lent, others, 1)
    assert (found["rows"], found["vectors"], found["cosine"]) == (2, 1, 1.0)
    assert found["cosine_to_another"] is None  # there is no other
    nothing = compare(*(table.slice(0, 0) for table in (ours, plain, vectors, others)), 1)
    assert (nothing["rows"], nothing["identical"], nothing["cosine"]) == (0, None, None)


def test_words_and_years():
    words = words_of(
        "A sci-fi film ('Alien') of 1979-1980, not the 1990s, 2031 or 18990; it\u2019s"
    )
    assert words[:5] == ["a", "sci", "fi", "film", "alien"]
    assert words[-1] == "it's"
    assert years_in(words) == {1979, 1980}
    assert without(["star", "wars", "is", "star", "wars"], ["star", "wars"]) == ["/", "is", "/"]
    assert without(["a"], []) == ["a"]


FILMS = films(
    ("1", "War", {"year": "1995", "genres": "Sci-Fi, War"}),
    ("2", "Fog", {"year": "1942", "genres": "Film-Noir"}),
    ("3", "Old Tale", {"year": "", "genres": "Children's, Comedy"}),
    ("4", "2001", {"year": "2001", "genres": ""}),
)


def test_agreement_with_the_catalog_and_by_chance():
    facts = CatalogFacts(FILMS)
    texts = knowledge(
        row("item", "1", [], "War (1995) is science fiction, or a comedy."),
        row("item", "2", [], "Fog is a film noir of 1995 or 1942."),
        row("item", "3", [], "Childrens comedies of 1950."),
        row("item", "4", [], "2001 is the year, and a war film."),
        row("item", "gone", [], "1995"),
        row("item", "1", [], "", error="broken"),
    )
    found = facts.agreement(facts.count(texts))
    # Known years: 1, 2, 4. Film 4 says its title only. Film 1 says 1995, which neither other has;
    # film 2 says also 1995, which one of two others has.
    assert found["year"] == {
        "kind": "year", "texts": 3, "naming": 2, "right": 1.0, "right_by_chance": 0.25
    }  # fmt: skip
    # Named: {sci fi, comedy} of {sci fi, war}; {film noir} of itself; {children's, comedy}.
    assert found["genres"] == {
        "kind": "names",
        "texts": 3,
        "naming": 3,
        "precision": 4 / 5,
        "recall": 4 / 5,
        # comedy is said of film 1, and one of two others has it; of film 3 neither.
        "precision_by_chance": pytest.approx(0.5 / 5),
        "recall_by_chance": pytest.approx(0.5 / (1.5 + 2.0 + 1.5)),
    }


@pytest.mark.parametrize(
    ("text", "genres"),
    [
        ("a Sci-Fi thriller", {"sci fi"}),
        ("animated romantic films", {"animation", "romance"}),
        ("a film-noir", {"film noir"}),
        ("noirs and warlike wars", {"film noir", "war"}),
        ("two children\u2019s books, no children", {"children's"}),
    ],
)
def test_genres_have_synonyms_and_are_whole_words(text, genres):
    cells = "Sci-Fi, War, Film-Noir, Children's, Animation, Romance"
    facts = CatalogFacts(films(("1", "t", {"genres": cells})))
    assert facts.facts["genres"].named_in(words_of(text)) == genres


def test_a_single_genre_serves_where_there_are_no_several():
    facts = CatalogFacts(films(("1", "t", {"genre": "Crime/Drama"})))
    assert facts.facts["genre"].named_in(words_of("crime dramas")) == {"crime", "drama"}
    both = {"genre": "Crime", "genres": "Crime, Drama"}
    facts = CatalogFacts(films(("1", "t", both), ("2", "t", both)))
    assert (list(facts.facts), facts.skipped) == (["genres"], {})  # prompts show the one only


def shop(**columns):
    """Books with attributes under any names."""
    rows = zip(*columns.values(), strict=True)
    return films(
        *(
            (f"b{n}", f"Book {n}", dict(zip(columns, values, strict=True)))
            for n, values in zip(count(), rows)
        )
    )


BOOKS = shop(
    published=["1813", "1847", "1998", "2001"],
    writer=["Jane Austen", "Charlotte Bront\u00eb", "Yu Hua", "Yu Hua"],
    shelf=["A", "B", "A", "C"],
    pages=["432", "1200", "310", ""],
    blurb=["A lady of small means looks for a husband and finds one"] * 4,
    empty=[""] * 4,
)


def test_any_year_and_any_names_are_held_against_texts_and_others_say_why_not():
    facts = CatalogFacts(BOOKS)
    texts = knowledge(
        row("item", "b0", [], "Jane Austen wrote it in 1813."),
        row("item", "b2", [], "A novel by Yu Hua of 1813, or of 1600."),
    )
    found = facts.agreement(facts.count(texts))
    assert found["published"] == {
        "kind": "year", "texts": 2, "naming": 2, "right": 0.5, "right_by_chance": 1 / 3 / 2
    }  # fmt: skip
    assert found["writer"]["precision"] == 1.0
    assert found["writer"]["precision_by_chance"] == pytest.approx((0 + 1 / 3) / 2)
    reasons = {name: fact["skipped"] for name, fact in found.items() if "skipped" in fact}
    numbers = "numbers or single letters, which a text may hold by accident"
    assert reasons["shelf"] == reasons["pages"] == numbers
    assert reasons["blurb"].startswith("whole sentences")
    assert set(found) == {"published", "writer", "shelf", "pages", "blurb"}


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("price", ["1200", "1350", "2100", "1999"], ""),  # four digits, but hardly years
        ("birth_year", ["1200", "1350", "2100", "unknown"], "Years"),
        ("\u51fa\u7248\u5e74", ["1994", "1200", "2001", "2003"], "Years"),
        ("made", ["1994", "1987", "2001", "2003"], "Years"),
        ("made", ["1994", "1987", "north", "south"], "Names"),
        ("languages", ["French; German", "Dutch", "Dutch | Danish", "Dutch"], "Names"),
    ],
)
def test_years_are_told_by_their_values_and_their_name(name, values, kind):
    facts = CatalogFacts(shop(**{name: values}))
    assert [type(fact).__name__ for fact in facts.facts.values()] == ([kind] if kind else [])


def test_names_that_every_one_has_for_itself_are_not_looked_for():
    facts = CatalogFacts(shop(code=[f"code x{n}" for n in range(60)]))
    assert facts.skipped == {"code": "names that nearly every one has for itself"}
    assert CatalogFacts(shop(code=[f"code x{n % 50}" for n in range(60)])).facts


def test_chinese_names_are_found_inside_of_sentences():
    facts = CatalogFacts(shop(genre=["\u79d1\u5e7b\u3001\u5192\u9669", "\u7231\u60c5"]))
    text = "\u8fd9\u90e81994\u5e74\u7684\u79d1\u5e7b\u7535\u5f71\u5f88\u597d\u3002"
    assert facts.facts["genre"].named_in(words_of(text)) == {"\u79d1 \u5e7b"}
    assert years_in(words_of(text)) == {1994}


def test_users_are_held_against_their_attributes_as_well():
    people = [
        {"user_id": f"u{n}", "attributes": [("job", job)]}
        for n, job in enumerate(["nurse", "teacher", "nurse"])
    ]
    facts = CatalogFacts(pa.Table.from_pylist(people, schema=USERS))
    found = facts.agreement(facts.count(knowledge(row("user", "u0", [], "Nurses and a teacher."))))
    assert (found["job"]["precision"], found["job"]["recall"]) == (0.5, 1.0)
    assert found["job"]["precision_by_chance"] == pytest.approx((0.5 + 0.5) / 2)


def test_what_the_prompt_does_not_show_is_not_looked_for():
    facts = CatalogFacts(FILMS, is_shown=False)
    found = facts.agreement(facts.count(knowledge(row("item", "1", [], "A war of 1995."))))
    assert found == {key: {"skipped": "the prompt does not show it"} for key in ("year", "genres")}
    assert CatalogFacts(films()).count(knowledge()) == Counter()


def example(seed=5):
    rng = np.random.default_rng(seed)
    rows = [row(kind, f"{kind}{n}", rng.integers(0, 3, 12).tolist(), f"text {n}") for kind in
            ("user", "item") for n in range(6)]  # fmt: skip
    return knowledge(*rows)


def facts_of(items):
    return {"user": CatalogFacts(USERS.empty_table()), "item": CatalogFacts(items)}


def test_parts_and_the_order_of_the_sample_change_no_figure():
    texts = example()
    chosen = choose_rows(texts["kind"], 1)
    facts = facts_of(FILMS)
    whole = measure_texts([texts.select(COLUMNS)], chosen, facts, None)
    parts = [texts.select(COLUMNS).slice(at, 5) for at in range(0, 12, 5)]
    moved = np.roll(chosen, 3)
    again = measure_texts(parts, moved, facts, None)
    assert again.kinds == whole.kinds
    assert whole.sample["entity_id"].to_pylist() == texts["entity_id"].to_pylist()
    assert again.sample["entity_id"].to_pylist() == texts["entity_id"].take(moved).to_pylist()
    assert whole.kinds["user"]["malformed_share"] is None
    assert whole.kinds["user"]["catalog"] == {}
    assert set(whole.kinds["item"]["catalog"]) == {"year", "genres"}


def test_a_large_catalog_is_sampled_the_same_way_every_time():
    kinds = example()["kind"]
    chosen = choose_rows(kinds, 1, most=4)
    assert chosen.tolist() == choose_rows(kinds, 1, most=4).tolist() == sorted(set(chosen.tolist()))
    assert [int((chosen < 6).sum()), int((chosen >= 6).sum())] == [4, 4]
    sampled = measure_texts([example().select(COLUMNS)], chosen, facts_of(FILMS), None)
    assert sampled.kinds["user"]["texts"] == 6
    assert sampled.kinds["user"]["shared_of_texts"] == 4


def test_malformed_answers_are_those_that_the_framework_cannot_read():
    rows = [row("user", "a", [1], '{"summary": "likes war", "reasoning": "x"}'),
            row("user", "b", [1], "likes war"), row("user", "c", [1], "")]  # fmt: skip
    read = framework_named("rlmrec").read
    texts = knowledge(*rows).select(COLUMNS)
    found = measure_texts([texts], np.arange(3), facts_of(FILMS), read).kinds
    assert found["user"]["malformed_share"] == 0.5
    assert found["item"]["malformed_share"] is None


def summary():
    texts = example().select(COLUMNS)
    measured = measure_texts(
        [texts], choose_rows(texts["kind"], 1), facts_of(films(("item0", "t", {"id": "7"}))), None
    )
    near = {
        "rows": 6, "other_prompt": 0, "never_relaxed": 0.5, "identical": 0.5,
        "edit_similarity": 0.75, "edit_similarity_to_another": 0.25,
        "vectors": 6, "cosine": 0.9, "cosine_to_another": None,
    }  # fmt: skip
    return measured, near


def test_the_table_shows_what_there_is():
    measured, near = summary()
    alone = summarise(measured)
    assert [column.heading for column in table.columns(alone)] == ["users", "items"]
    names = [line.name for line in table.lines(alone)]
    assert "Texts that loop" in names
    assert not {"Cosine to plain", "Malformed"} & set(names)
    assert not any(":" in name for name in names)
    assert table.notes(alone) == [
        "Of the items in the catalog, texts were held against nothing; not against id (numbers or "
        "single letters, which a text may hold by accident)"
    ]
    beside = summarise(measured, measured, {"user": near, "item": near})
    headings = ["users", "users, plain", "items", "items, plain"]
    assert [column.heading for column in table.columns(beside)] == headings
    by_name = {line.name: line.values for line in table.lines(beside)}
    assert by_name["Texts"] == ["6"] * 4
    assert by_name["Identical to plain"] == ["50 %", "", "50 %", ""]
    assert by_name["Edit similarity to plain"][0] == "0.75 (another row: 0.25)"
