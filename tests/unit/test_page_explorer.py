"""The texts that the page carries: all of a small run, a fair sample of a large one, and safe."""

import base64
import gzip
import itertools
import json
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.page.asked import parts_of
from features.page.explorer import ORIGINS
from features.page.explorer import pack as pack_batches
from features.page.render import render
from pipeline.errors import DataError
from pipeline.half_characters import HALF
from pipeline.prompts import Prompt, prompt_hash
from pipeline.schemas import ITEMS, KNOWLEDGE, SOURCES

WORDS = ["a ", "film", " about", " 电影", " 🎬", "."]


def decode(ids):
    return "".join(WORDS[token] for token in ids)


def row(number, kind="item", tokens=(0, 1, 5), origins=(0, 3, 19), error=""):
    return {
        **{"kind": kind, "entity_id": f"{kind[0]}{number}", "group_id": f"{kind}/collab-0"},
        **{"wave": 1, "rule": "relaxed", "finish_reason": "error" if error else "stop"},
        **{"text": "" if error else decode(tokens).strip(), "error": error},
        **{"token_ids": [] if error else list(tokens), ORIGINS: [] if error else list(origins)},
        **{"forward_passes": 2, "relaxed_tokens": 1, "relaxed_cost": 0.12345},
    }


def table(rows):
    filled = [{field.name: [] if pa.types.is_list(field.type) else None for field in KNOWLEDGE}]
    return pa.Table.from_pylist([filled[0] | one for one in rows], schema=KNOWLEDGE)


def titles(**names):
    rows = [{"item_id": key, "title": title, "attributes": []} for key, title in names.items()]
    return pa.Table.from_pylist(rows, schema=ITEMS)


def pack(knowledge, *others, prompts=None, **options):
    """The texts of a table, seven rows at a time."""
    if prompts is not None:
        options["prompts_of"] = lambda users, items: prompts
    starts = range(0, max(knowledge.num_rows, 1), 7)
    return pack_batches(
        lambda columns: (knowledge.select(columns).slice(start, 7) for start in starts),
        *others,
        **options,
    )


def unpacked(explorer):
    return json.loads(gzip.decompress(base64.b64decode(explorer.data)))


def test_every_column_stands_in_the_order_of_the_rows():
    rows = [row(1), row(2, "user"), row(3, error="prompt has 600 tokens")]
    explorer = pack(table(rows), titles(i1="Heat" * 1000, u2="not a user's"), decode)
    assert (explorer.rows, explorer.of_rows, explorer.is_sample) == (3, 3, False)
    packed = unpacked(explorer)
    columns = packed["columns"]
    assert [name for name, _ in packed["sources"]] == list(SOURCES)
    assert columns["id"] == ["i1", "u2", "i3"]
    assert columns["title"] == ["Heat" * 75 + "\N{HORIZONTAL ELLIPSIS}", "", ""]
    assert columns["kind"] == {"names": ["item", "user"], "places": [0, 1, 0]}
    assert columns["tokens"] == [3, 3, 0]
    assert columns["cost"] == [0.123, 0.123, 0.123]
    assert columns["text"] == ["a film.", "a film.", ""]
    assert columns["error"] == ["", "", "prompt has 600 tokens"]


def numbers(characters):
    return [ord(character) - 48 for character in characters]


def test_lengths_count_as_javascript_does_and_origins_stand_beside_them():
    explorer = pack(table([row(1, tokens=(0, 3, 4), origins=(0, 1, 20))]), titles(), decode)
    columns = unpacked(explorer)["columns"]
    assert numbers(columns["lengths"][0]) == [2, 3, 3]  # the clapper board is two units
    assert numbers(columns["origins"][0]) == [0, 1, 20]
    assert explorer.has_origins


def test_an_origin_follows_its_character_where_that_takes_several_tokens():
    halves = {0: "a", 1: "", 2: "电"}

    def halved(ids):
        text = "".join(halves[int(token)] for token in ids)
        return text + "\N{REPLACEMENT CHARACTER}" if len(ids) and ids[-1] == 1 else text

    rows = [row(1, tokens=(0, 1, 2, 0), origins=(0, 2, 18, 3))]
    columns = unpacked(pack(table([{**rows[0], "text": "a电a"}]), titles(), halved))["columns"]
    assert columns["text"] == ["a电a"]
    assert numbers(columns["origins"][0]) == [0, 18, 3]


def halved(ids):
    """Letters of one token, but for a character that takes three: each part alone is broken."""
    said, parts = "", 0
    for token in ids:
        if token != 1:
            said, parts = said + HALF * parts + "ab"[token // 2], 0
        elif parts == 2:
            said, parts = said + "\u7535", 0
        else:
            parts += 1
    return said + HALF * parts


@pytest.mark.parametrize(
    ("tokens", "text", "lengths"),
    [
        ((0, 1, 1), "a", [1]),
        ((0, 1, 1, 1, 1), "a\u7535", [1, 1]),
        ((0, 1, 2), f"a{HALF}b", [1, 2]),  # written so
        ((1, 1), "", []),
    ],
)
def test_a_text_cut_in_a_character_ends_before_it(tokens, text, lengths):
    one = row(1, tokens=(0,)) | {"token_ids": list(tokens), ORIGINS: [0] * len(tokens)}
    columns = unpacked(
        pack(table([one | {"finish_reason": "length", "text": "stored"}]), titles(), halved)
    )["columns"]
    assert columns["text"] == [text]
    assert numbers(columns["lengths"][0]) == lengths
    if text.endswith("a"):  # of its own accord, which nobody cuts
        ended = pack(table([one]), titles(), halved)
        assert unpacked(ended)["columns"]["text"] == [f"a{HALF * 2}"]


@pytest.mark.parametrize("origins", [(), (0, 1)])
def test_a_row_whose_origins_are_not_known_has_its_stored_text(origins):
    explorer = pack(table([row(1, origins=origins)]), titles(), decode)
    assert unpacked(explorer)["columns"]["text"] == ["a film."]
    assert unpacked(explorer)["columns"]["lengths"] == [""]
    assert not explorer.has_origins


class Asking:
    """Stands in for `Prompts`: a task that all share, and a list of titles that some do."""

    def __init__(self, lines):
        self.lines = lines

    def places(self, kind, entity_ids):
        numbers = [int(name[1:]) for name in entity_ids.to_pylist()]
        return pa.array([None if number >= 90 else number for number in numbers], pa.int32())

    def take(self, kind, rows):
        if kind == "user" and 9 in rows:
            raise DataError("it cannot be filled in for user 'u9'")
        return [Prompt(kind, f"{kind[0]}{n}", self.text(kind, n), 0, 0) for n in rows.tolist()]

    def text(self, kind, number):
        return f"Say what the {kind} is like.\n\n" + "".join(self.lines[: number + 1]) + "Now."


def asked(explorer):
    packed = unpacked(explorer)
    lines = packed["lines"]
    assert len(lines) == len(set(lines))
    return [one and "".join(lines[n] for n in one) for one in packed["columns"]["asked"]]


def test_what_was_asked_stands_beside_a_text_only_if_its_hash_says_so():
    prompts = Asking([f"Heat {n}\r\n" for n in range(9)])
    wanted = [("item", 1), ("user", 2), ("item", 3), ("user", 0)]
    rows = [
        row(n, kind) | {"prompt_hash": prompt_hash(prompts.text(kind, n))} for kind, n in wanted
    ]
    rows[2]["prompt_hash"] = "of another prompt"
    explorer = pack(table(rows), titles(), decode, prompts=prompts)
    texts = [prompts.text(kind, n) for kind, n in wanted]
    assert asked(explorer) == [*texts[:2], None, texts[3]]
    assert explorer.asked == 3
    assert [word[:10] for word in why_not(explorer)] == ["", "", "made again", ""]
    assert len(unpacked(explorer)["lines"]) == 2 + 1 + 3 + 1  # what prompts share stands once
    assert asked(pack(table(rows), titles(), decode)) == []


def why_not(explorer):
    reasons = unpacked(explorer)["columns"]["unasked"]
    return [reasons["names"][place] for place in reasons["places"]]


def test_one_entity_that_cannot_be_asked_hides_no_other_prompt_and_each_says_why(caplog):
    prompts = Asking([])
    rows = [row(n, "user") for n in (3, 9, 91, 4, 5)]
    for one, number in zip(rows, (3, 9, 91, 4), strict=False):
        one["prompt_hash"] = prompt_hash(prompts.text("user", number))
    explorer = pack(table(rows), titles(), decode, prompts=prompts)
    text = prompts.text("user", 0)
    assert asked(explorer) == [text, None, None, text, None]
    assert why_not(explorer) == [
        "",
        "today's wording cannot be filled in for it",
        "it is not in the catalog any more",
        "",
        "made again, it comes out otherwise: the catalog, the wording or settings have changed",
    ]
    assert "1 texts are shown without what was asked: it cannot be filled in" in caplog.text


def test_prompts_that_the_page_has_no_room_for_are_left_out_and_take_none(monkeypatch):
    monkeypatch.setattr("features.page.asked._MOST_CHARACTERS", 80)
    prompts = Asking(["short\n", f"{'x' * 60}\n", f"{'y' * 60}\n"])
    numbers = (0, 2, 1, 0)
    rows = [row(n) | {"prompt_hash": prompt_hash(prompts.text("item", n))} for n in numbers]
    explorer = pack(table(rows), titles(), decode, prompts=prompts)
    short = prompts.text("item", 0)
    assert asked(explorer) == [short, None, None, short]
    assert why_not(explorer)[1] == "this page has no room for all prompts"
    monkeypatch.setattr("features.page.asked._MOST_CHARACTERS", 130)
    assert asked(pack(table(rows), titles(), decode, prompts=prompts)) == [
        short, None, prompts.text("item", 1), short
    ]  # fmt: skip


@given(st.text(alphabet="a,; \n\r\u7535", max_size=500))
def test_parts_of_a_prompt_are_the_whole_of_it(text):
    assert "".join(parts_of(text)) == text


def test_a_long_list_on_one_line_is_parted_at_its_commas():
    titles = [f"Heat {n}, " for n in range(40)]
    assert parts_of("".join(titles)) == titles
    assert parts_of("Heat, 5 stars\nNow.") == ["Heat, 5 stars\n", "Now."]


def test_without_a_decoder_texts_stay_plain():
    explorer = pack(table([row(1)]), titles(), None)
    assert unpacked(explorer)["columns"]["text"] == ["a film."]
    assert not explorer.has_origins


def test_of_a_large_run_rows_are_evenly_spaced_and_no_error_is_left_out():
    rows = [row(n, error="no" if n in (3, 50, 51) else "") for n in range(100)]
    explorer = pack(table(rows), titles(), decode, most_rows=13)
    assert (explorer.rows, explorer.of_rows, explorer.is_sample) == (13, 100, True)
    assert (explorer.failed, explorer.of_failed) == (3, 3)
    columns = unpacked(explorer)["columns"]
    shown = [int(name[1:]) for name in columns["id"]]
    assert {3, 50, 51} <= set(shown)
    assert shown == sorted(set(shown))
    others = [number for number in shown if number not in (3, 50, 51)]
    assert (others[0], others[-1]) == (0, 99)
    assert max(b - a for a, b in pairwise(others)) <= 13


def test_errors_that_are_too_many_are_sampled_too():
    explorer = pack(table([row(n, error="no") for n in range(50)]), titles(), None, most_rows=10)
    assert explorer.rows == 10


def test_rows_that_failed_leave_half_of_the_room_to_the_others(made_up_report):
    rows = [row(n, error="no" if n % 2 else "") for n in range(100)]
    explorer = pack(table(rows), titles(), decode, most_rows=10)
    shown = [int(name[1:]) for name in unpacked(explorer)["columns"]["id"]]
    assert [number % 2 for number in shown].count(1) == 5
    assert (explorer.rows, explorer.failed, explorer.of_failed) == (10, 5, 50)
    assert "and among them 5 of the 50 that failed" in render(made_up_report, explorer)
    few = pack(table(rows[:98] + [row(n, error="no") for n in (98, 99)]), titles(), None, 99)
    assert (few.rows, few.failed, few.of_failed) == (99, 50, 51)
    rest = pack(table([row(0), *(row(n, error="no") for n in range(1, 50))]), titles(), None, 10)
    assert (rest.rows, rest.failed) == (10, 9)  # room that the others do not need is theirs
    all_failed = pack(table(rows[:3] * 5), titles(), None, most_rows=14)
    assert "and among them all 5 that failed" in render(made_up_report, all_failed)


def test_texts_that_fill_no_single_array_are_packed_batch_by_batch():
    """Forty times the same batch of 64 MiB: more than 2 GiB to whoever joins them."""
    batch = table([row(n) | {"text": "a" * 2**24} for n in range(4)])
    seen = []

    def knowledge(columns):
        seen.append(tuple(columns))
        return itertools.repeat(batch.select(columns), 40)

    explorer = pack_batches(knowledge, titles(), None, most_rows=5)
    assert (explorer.rows, explorer.of_rows) == (1, 160)  # of 20,000,000 characters one fits
    assert seen[0] == ("error", "text")


def test_long_texts_make_the_sample_smaller(monkeypatch):
    monkeypatch.setattr("features.page.explorer._MOST_CHARACTERS", 70)
    assert pack(table([row(n) for n in range(20)]), titles(), None).rows == 10


def test_an_empty_run_is_packed_too():
    explorer = pack(table([]), titles(), decode)
    assert (explorer.rows, explorer.of_rows) == (0, 0)


def test_the_same_texts_give_the_same_bytes():
    assert pack(table([row(1)]), titles(), decode) == pack(table([row(1)]), titles(), decode)
