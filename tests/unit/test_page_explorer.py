"""The texts that the page carries: all of a small run, a fair sample of a large one, and safe."""

import base64
import gzip
import itertools
import json
from itertools import pairwise

import pyarrow as pa
import pytest

from features.page.explorer import ORIGINS
from features.page.explorer import pack as pack_batches
from features.page.render import render
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


def pack(knowledge, *others, **options):
    """The texts of a table, seven rows at a time."""
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
    explorer = pack(table(rows), titles(i1="Heat", u2="not a user's"), decode)
    assert (explorer.rows, explorer.of_rows, explorer.is_sample) == (3, 3, False)
    packed = unpacked(explorer)
    columns = packed["columns"]
    assert [name for name, _ in packed["sources"]] == list(SOURCES)
    assert columns["id"] == ["i1", "u2", "i3"]
    assert columns["title"] == ["Heat", "", ""]
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


@pytest.mark.parametrize("origins", [(), (0, 1)])
def test_a_row_whose_origins_are_not_known_has_its_stored_text(origins):
    explorer = pack(table([row(1, origins=origins)]), titles(), decode)
    assert unpacked(explorer)["columns"]["text"] == ["a film."]
    assert unpacked(explorer)["columns"]["lengths"] == [""]
    assert not explorer.has_origins


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
