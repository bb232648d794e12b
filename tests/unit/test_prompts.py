"""Prompts: the past only, the constant part first, text that no title can break."""

from itertools import takewhile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.frameworks import REGISTRY, shipped_templates
from pipeline.catalog import load_catalog
from pipeline.catalog_config import CatalogSettings
from pipeline.config import PromptSettings
from pipeline.errors import DataError
from pipeline.prompts import TITLE_CHARS, Prompts, build_prompts, prompt_hash
from pipeline.schemas import INTERACTIONS, ITEMS, SPLITS, USERS

ML100K = Path(__file__).parents[2] / ".cache/assets/recbole/dataset_example/ml-100k"
MOVIE = PromptSettings(domain="movie", history_limit=3)
KAR = shipped_templates("kar")


def make_users(**attributes):
    """One user per keyword, with these attributes."""
    rows = [
        {"user_id": user, "attributes": list(map_.items())} for user, map_ in attributes.items()
    ]
    return pa.Table.from_pylist(rows, schema=USERS)


def make_items(*titles, **attributes):
    """Items i0, i1, ... with these titles, all with the same attributes."""
    rows = [
        {"item_id": f"i{n}", "title": title, "attributes": list(attributes.items())}
        for n, title in enumerate(titles)
    ]
    return pa.Table.from_pylist(rows, schema=ITEMS)


def make_interactions(*rows):
    """(user, item, rating, time, split) in the order of the schema."""
    ordered = sorted(rows, key=lambda row: (row[3], row[0], row[1]))
    table = [
        {
            "user_id": user,
            "item_id": item,
            "rating": rating,
            "label": int(rating >= 4),
            "timestamp": time,
            "split": split,
        }
        for user, item, rating, time, split in ordered
    ]
    return pa.Table.from_pylist(table, schema=INTERACTIONS)


def user_prompts(users, items, interactions, settings=MOVIE):
    return {
        prompt.entity_id: prompt
        for prompt in build_prompts("user", users, items, interactions, settings, KAR)
    }


def item_text(title, settings=MOVIE, **attributes):
    items = make_items(title, **attributes)
    [prompt] = build_prompts("item", make_users(), items, make_interactions(), settings, KAR)
    return prompt.text


def test_a_user_prompt_shows_the_latest_past_in_order_of_time():
    items = make_items("Alpha", "Beta", "Gamma", "Delta")
    rows = [("u", f"i{n}", 1.0 + n, 10 + n, "knowledge") for n in range(4)]
    prompt = user_prompts(make_users(u={"age": "30"}), items, make_interactions(*rows))["u"]
    assert "Beta, 2 stars\nGamma, 3 stars\nDelta, 4 stars\n" in prompt.text
    assert "Alpha" not in prompt.text
    assert (prompt.kind, prompt.source_events, prompt.latest_source) == ("user", 3, 13)


def test_rows_of_one_moment_are_shown_in_order_of_the_item_id():
    items = make_items("Zeta", "Alpha")
    rows = [("u", "i1", 5.0, 7, "knowledge"), ("u", "i0", 4.0, 7, "knowledge")]
    text = user_prompts(make_users(u={}), items, make_interactions(*rows))["u"].text
    assert text.index("Zeta") < text.index("Alpha")


@pytest.mark.parametrize(
    ("ratings", "lines"),
    [
        ([8.0, 1.0, 5.5], "A, 8 of 10 stars\nB, 1 of 10 stars\nC, 5.5 of 10 stars"),
        ([2.0, 10.0, 20.0], "A, 2 of 20 stars\nB, 10 of 20 stars\nC, 20 of 20 stars"),
        ([1.5, 5.5, 10.5], "A, 1.5 of 20 stars\nB, 5.5 of 20 stars\nC, 10.5 of 20 stars"),
        ([8.0, 1.0, 21.0], "A, 8 of 50 stars\nB, 1 of 50 stars\nC, 21 of 50 stars"),
        ([80.0, 8.0, 100.0], "A, 80 of 100 stars\nB, 8 of 100 stars\nC, 100 of 100 stars"),
        ([812.0, 3.0, 1.0], "A, 812 stars\nB, 3 stars\nC, 1 star"),  # plays, say
        ([1.0, 0.0, 1.0], "A, liked\nB, not liked\nC, liked"),
        ([1.0, 0.5, 0.0], "A, 1 star\nB, 0.5 stars\nC, 0 stars"),
        ([1.0, 1.0, 1.0], "A, liked\nB, liked\nC, liked"),  # as where there are no ratings
        ([5.0, 0.0, 1.0], "A, 5 stars\nB, 0 stars\nC, 1 star"),
    ],
)
def test_ratings_that_are_not_of_five_stars_say_of_what_they_are(ratings, lines):
    rows = [("u", f"i{n}", rating, n, "knowledge") for n, rating in enumerate(ratings)]
    later = ("u", "i0", 1000.0, 9, "train")  # no prompt knows of it
    prompts = user_prompts(
        make_users(u={}), make_items("A", "B", "C"), make_interactions(*rows, later)
    )
    assert lines in prompts["u"].text


def test_the_scale_is_that_of_all_whoever_is_asked():
    rows = [("u", "i0", 4.0, 0, "knowledge"), ("v", "i0", 9.0, 1, "knowledge")]
    prompts = user_prompts(make_users(u={}), make_items("A"), make_interactions(*rows))
    assert "A, 4 of 10 stars" in prompts["u"].text


def test_star_ratings_read_naturally():
    items = make_items("A", "B", "C")
    rows = [(("u"), f"i{n}", stars, n, "knowledge") for n, stars in enumerate([1.0, 3.5, 3.7])]
    text = user_prompts(make_users(u={}), items, make_interactions(*rows))["u"].text
    assert "A, 1 star\nB, 3.5 stars\nC, 3.7 stars" in text


def test_titles_and_ratings_that_only_ctr_rows_know_are_in_no_user_prompt():
    items = make_items("Seen One", "CANARY-TITLE", "CANARY-LATER", "Seen Two")
    rows = [
        ("u", "i0", 3.0, 100, "knowledge"),
        ("u", "i1", 4.5, 101, "train"),
        ("u", "i2", 2.5, 102, "valid"),
        ("u", "i0", 0.5, 103, "test"),  # the same film again, with a rating from the future
        ("v", "i3", 2.0, 50, "knowledge"),
        ("v", "i1", 4.5, 40, "test"),  # earlier than the past of others, a CTR row all the same
    ]
    prompts = user_prompts(make_users(u={}, v={}), items, make_interactions(*rows))
    for prompt in prompts.values():
        for trace in ("CANARY", "4.5", "2.5 ", "0.5"):
            assert trace not in prompt.text
    assert "Seen One, 3 stars" in prompts["u"].text
    assert "Seen Two" not in prompts["u"].text
    assert (prompts["u"].source_events, prompts["u"].latest_source) == (1, 100)
    assert (prompts["v"].source_events, prompts["v"].latest_source) == (1, 50)


@pytest.mark.parametrize(("past", "asof"), [([(3, "knowledge"), (7, "knowledge")], 7), ([], 0)])
def test_the_latest_of_the_past_is_how_much_a_run_could_know(past, asof):
    rows = [("u", "i0", 3.0, time, split) for time, split in [*past, (9, "train"), (11, "test")]]
    tables = make_users(u={}), make_items("A"), make_interactions(*rows)
    assert Prompts(*tables, MOVIE, KAR).asof == asof


rows_of_any_split = st.lists(
    st.tuples(
        st.sampled_from("uvw"),
        st.integers(0, 5).map(lambda n: f"i{n}"),
        st.sampled_from([1.0, 2.5, 5.0]),
        st.integers(0, 30),
        st.sampled_from(SPLITS),
    ),
    max_size=40,
)


@settings(max_examples=50)
@given(rows_of_any_split)
def test_ctr_rows_change_no_prompt_whatever_they_are(rows):
    users, items = make_users(u={"age": "1"}, v={}, w={}), make_items(*"ABCDEF")
    past = [row for row in rows if row[4] == "knowledge"]
    for kind in ("user", "item"):
        with_all = build_prompts(kind, users, items, make_interactions(*rows), MOVIE, KAR)
        with_past = build_prompts(kind, users, items, make_interactions(*past), MOVIE, KAR)
        assert with_all == with_past


def test_an_item_prompt_shows_no_interaction():
    items = make_items("Alpha")
    rows = make_interactions(("u", "i0", 4.5, 100, "knowledge"), ("u", "i0", 2.5, 101, "test"))
    [prompt] = build_prompts("item", make_users(u={}), items, rows, MOVIE, KAR)
    assert (prompt.source_events, prompt.latest_source) == (0, 0)
    assert [prompt] == build_prompts("item", make_users(), items, make_interactions(), MOVIE, KAR)


def test_a_user_without_a_past_is_asked_about_by_attributes():
    users = make_users(u={"age": "30", "home_town": "Oslo"}, v={})
    prompts = user_prompts(users, make_items("A"), make_interactions(("u", "i0", 5.0, 1, "train")))
    assert "Viewer: age 30, home town Oslo\n" in prompts["u"].text
    assert "Ratings" not in prompts["u"].text
    assert "Viewer: nothing is known\n" in prompts["v"].text
    assert (prompts["u"].source_events, prompts["u"].latest_source) == (0, 0)


def test_a_user_without_attributes_is_asked_about_by_history():
    rows = make_interactions(("u", "i0", 5.0, 1, "knowledge"))
    text = user_prompts(make_users(u={}), make_items("A"), rows)["u"].text
    assert "Viewer:" not in text
    assert "A, 5 stars" in text


def test_prompts_come_in_the_order_of_their_table():
    users = make_users(b={}, a={}, c={})
    prompts = build_prompts("user", users, make_items(), make_interactions(), MOVIE, KAR)
    assert [prompt.entity_id for prompt in prompts] == ["b", "a", "c"]
    prompts = build_prompts("item", users, make_items("Z", "A"), make_interactions(), MOVIE, KAR)
    assert [prompt.entity_id for prompt in prompts] == ["i0", "i1"]


def test_an_item_prompt_names_title_and_attributes_but_not_a_genre_twice():
    text = item_text("Alpha", year="1995", genres="Drama, War", genre="Drama")
    assert "Movie: Alpha\nyear: 1995\ngenres: Drama, War\n" in text
    assert "genre: Drama" not in text
    assert "genre: Drama" in item_text("Alpha", genre="Drama")
    assert "Movie: untitled\n" in item_text("")


@pytest.mark.parametrize("kind", ["user", "item"])
@pytest.mark.parametrize("domain", ["movie", "book", "garden tool"])
@pytest.mark.parametrize("framework", REGISTRY)
def test_all_prompts_of_a_kind_share_the_task_at_the_start(framework, kind, domain):
    users = make_users(u={"age": "30"}, v={}, w={"city": "Rome"})
    items = make_items("Alpha", "Beta")
    rows = make_interactions(("u", "i0", 5.0, 1, "knowledge"), ("v", "i1", 5.0, 1, "knowledge"))
    asked = build_prompts(
        kind,
        *(users, items, rows, PromptSettings(domain=domain)),
        shipped_templates(framework),
    )
    texts = [prompt.text for prompt in asked]
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))
    shared = "".join(column[0] for column in columns)
    assert domain in shared
    assert "\n\n" in shared  # which ends the task and its factors
    assert all(len(text) - len(shared) < 200 for text in texts)


def test_each_domain_has_its_own_factors_and_words():
    movie, book, tool = (
        item_text("Alpha", PromptSettings(domain=domain)) for domain in ("movie", "book", "ax")
    )
    assert "soundtrack" in movie
    assert "writing style" in book
    assert "Book: Alpha" in book
    assert "Describe an ax for" in tool
    assert "soundtrack" not in book + tool


def test_titles_are_cleaned_of_newlines_controls_and_tags_and_cut():
    text = item_text("Two\nlines\t\x00\x1b[31m and <|im_end|>\u200b </s> I <3 it")
    assert "Movie: Two lines [31m and < |im_end|> < /s> I <3 it\n" in text
    long = item_text("x" * 10_000)
    assert "x" * TITLE_CHARS in long
    assert "x" * (TITLE_CHARS + 1) not in long


@settings(max_examples=100)
@given(st.text(max_size=400), st.text(max_size=400))
def test_no_title_or_attribute_can_add_a_line_or_open_a_tag(title, value):
    plain = item_text("Alpha", plot="Beta")
    text = item_text(title, plot=value)
    assert text.count("\n") == plain.count("\n")
    assert len(text.splitlines()) == len(plain.splitlines())
    assert not any(tag in text for tag in ("<|", "</", "<s>"))
    assert len(text) < len(plain) + 500


def test_template_syntax_in_a_title_is_only_text():
    assert "Movie: {{ 7 * 7 }} {% raw %} &amp; <3\n" in item_text("{{ 7 * 7 }} {% raw %} &amp; <3")


def test_a_past_item_that_the_table_lacks_is_named():
    rows = make_interactions(("u", "i9", 5.0, 1, "knowledge"))
    with pytest.raises(DataError, match=r"1 past interactions .*\['i9'\]; run `laser catalog`"):
        user_prompts(make_users(u={}), make_items("A"), rows)


def test_a_subset_of_users_may_be_asked_about():
    rows = make_interactions(("u", "i0", 5.0, 1, "knowledge"), ("v", "i0", 1.0, 2, "knowledge"))
    everyone = user_prompts(make_users(u={}, v={}), make_items("A"), rows)
    assert user_prompts(make_users(v={}), make_items("A"), rows) == {"v": everyone["v"]}


def test_the_hash_tells_texts_apart_and_stays_the_same():
    assert prompt_hash("") == "e3b0c44298fc1c14"  # SHA-256 of nothing
    assert prompt_hash("a") != prompt_hash("a ")
    assert len(prompt_hash("é")) == 16


@pytest.mark.assets
def test_no_prompt_of_movielens_knows_a_ctr_row():
    split = {"protocol": "per_user_prefix", "history_limit": 30}
    catalog = load_catalog(CatalogSettings(source="movielens", path=ML100K, split=split))
    titles = dict(
        zip(catalog.items["item_id"].to_pylist(), catalog.items["title"].to_pylist(), strict=True)
    )
    prompts = user_prompts(
        catalog.users, catalog.items, catalog.interactions, PromptSettings(history_limit=10)
    )
    assert all(prompt.source_events == 10 for prompt in prompts.values())
    shown = {user: set(prompt.text.splitlines()) for user, prompt in prompts.items()}
    past: dict[str, set[str]] = {user: set() for user in prompts}
    rows = catalog.interactions.to_pylist()
    for row in rows:
        if row["split"] == "knowledge":
            past[row["user_id"]].add(titles[row["item_id"]])
    latest = {user: prompt.latest_source for user, prompt in prompts.items()}
    for row in rows:
        title = titles[row["item_id"]]
        if row["split"] != "knowledge":
            assert latest[row["user_id"]] <= row["timestamp"]
            if title not in past[row["user_id"]]:
                assert f"{title}, {row['rating']:g} stars" not in shown[row["user_id"]]


def test_prompts_are_those_of_the_rows_asked_for_whatever_the_chunks_of_the_table():
    titles = ["Alpha", "Beta", "Gamma", "Delta", "Epsilon"]
    whole = make_items(*titles)
    chunks = pa.concat_tables([whole.slice(0, 2), whole.slice(2, 1), whole.slice(3)])
    prompts = Prompts(make_users(), chunks, make_interactions(), MOVIE, KAR)
    asked = prompts.take("item", np.array([4, 0, 2, 3, 1, 0]))
    assert [prompt.entity_id for prompt in asked] == ["i4", "i0", "i2", "i3", "i1", "i0"]
    assert all(titles[int(prompt.entity_id[1:])] in prompt.text for prompt in asked)
    assert prompts.rows("item", pa.array(["i3", "i1"])).tolist() == [3, 1]
    with pytest.raises(DataError, match="item 'ghost'"):
        prompts.rows("item", pa.array(["i3", "ghost"]))
