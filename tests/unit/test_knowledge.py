"""Waves, request keys and one row out for every row in."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from pipeline import knowledge
from pipeline.decoding_config import GenerationSettings
from pipeline.engine.types import Generation, RowStatistics
from pipeline.errors import DataError
from pipeline.knowledge import (
    WaveIdentity,
    collect,
    content_key,
    key_of_ids,
    make_tasks,
    plan_waves,
    request_key,
    requests_of,
    with_prompts,
)
from pipeline.schemas import GROUPS, KNOWLEDGE

IDENTITY = WaveIdentity(1, "relaxed", "pools-1", "model-1", "tokenizer-1")
SETTINGS = GenerationSettings()


def groups_table(rows):
    columns = zip(*rows, strict=True)
    names = ["entity_id", "group_id", "distance", "representative"]
    table = dict(zip(names, map(list, columns), strict=True))
    size = len(rows)
    table |= {"kind": ["item"] * size, "route": ["collaborative"] * size}
    return pa.table(table).select(GROUPS.names).cast(GROUPS)


@pytest.fixture
def tasks_for(given, letters):
    """PROMPTED, of items that are numbered."""

    def make(texts):
        prompts, members = given({str(number): text for number, text in enumerate(texts)})
        tasks = make_tasks(prompts, members, letters, IDENTITY, SETTINGS)
        return with_prompts(tasks, prompts)

    return make


def test_representatives_come_first_and_every_wave_gets_its_share_of_each_group():
    rows = [(f"{group}{i}", group, i / 10, i < 2) for group in "ab" for i in range(8)]
    waves = plan_waves(groups_table(rows), 3)
    for start in (0, 8):
        assert waves[start : start + 8].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_waves_follow_the_distance_not_the_order_of_the_table():
    rows = [("x", "a", 0.9, False), ("y", "a", 0.1, False), ("z", "a", 0.5, True)]
    assert plan_waves(groups_table(rows), 2).tolist() == [2, 1, 0]


def test_a_content_key_changes_with_everything_that_decides_the_text():
    ids = key_of_ids(np.array([1, 2], np.int32))
    other = key_of_ids(np.array([2, 3], np.int32))
    base = content_key("user", "1", ids, IDENTITY, SETTINGS)
    others = [
        content_key("item", "1", ids, IDENTITY, SETTINGS),
        content_key("user", "2", ids, IDENTITY, SETTINGS),
        content_key("user", "1", other, IDENTITY, SETTINGS),
        content_key("user", "1", ids, IDENTITY, GenerationSettings(max_new_tokens=5)),
        content_key("user", "1", ids, IDENTITY, GenerationSettings(repetition_penalty=1.3)),
        content_key("user", "1", ids, replace(IDENTITY, rule="strict"), SETTINGS),
        content_key("user", "1", ids, replace(IDENTITY, rule="sampled"), SETTINGS),
        content_key("user", "1", ids, replace(IDENTITY, model="m"), SETTINGS),
        content_key("user", "1", ids, replace(IDENTITY, tokenizer="t"), SETTINGS),
    ]
    assert len({base, *others}) == len(others) + 1
    same = content_key("user", "1", ids, IDENTITY, GenerationSettings(block_rows=7))
    assert same == base  # how rows are stored does not change what they say
    assert content_key("user", "1", ids, replace(IDENTITY, pool_version="p"), SETTINGS) == base


def test_plain_text_is_strict_text_but_its_request_is_another():
    ids = key_of_ids(np.array([1, 2], np.int32))
    plain, strict = (replace(IDENTITY, rule=rule) for rule in ("plain", "strict"))
    contents = [content_key("user", "1", ids, one, SETTINGS) for one in (plain, strict)]
    assert contents[0] == contents[1]
    keys = {
        request_key(contents[0], one) for one in (plain, strict, replace(strict, pool_version="p"))
    }
    assert len(keys) == 3


def test_an_entity_without_a_prompt_is_an_error_that_names_it(given, letters):
    with pytest.raises(DataError, match="item 'ghost'"):
        make_tasks(given({})[0], given({"ghost": ""})[1], letters, IDENTITY, SETTINGS)


def test_one_row_out_for_every_row_in_with_a_poisoned_one(tasks_for, letters):
    tasks = tasks_for(["short", "x" * 50, "also short"])
    requests = requests_of(tasks, letters, 8, max_prompt_tokens=20)
    assert [len(request.prompt_ids) for request in requests] == [5, 0, 10]
    generations = [
        Generation(
            request.key,
            np.array([104, 105], np.int32) if len(request.prompt_ids) else request.prompt_ids,
            "length" if len(request.prompt_ids) else "error",
            RowStatistics(forward_passes=2),
            "" if len(request.prompt_ids) else "the prompt is empty",
            np.array([0, 19], np.int8)[: 2 * len(request.prompt_ids)],
        )
        for request in reversed(requests)
    ]
    rows = collect(tasks, generations, letters, max_prompt_tokens=20)
    assert rows.schema == KNOWLEDGE
    assert rows["entity_id"].to_pylist() == ["0", "1", "2"]
    assert rows["text"].to_pylist() == ["hi", "", "hi"]
    assert rows["token_origins"].to_pylist() == [[0, 19], [], [0, 19]]
    assert all(len(counts) == 10 for counts in rows["drafted_by_chance"].to_pylist())
    assert rows["error"].to_pylist()[::2] == ["", ""]
    assert "50 tokens" in rows["error"][1].as_py()
    assert rows["prompt_tokens"].to_pylist() == [5, 50, 10]
    seen = rows.select(["asof", "source_events", "latest_source"])
    assert seen.to_pylist() == [{"asof": 120, "source_events": 3, "latest_source": 99}] * 3


@pytest.mark.parametrize(("reason", "text"), [("length", "hi, cut"), ("stop", "hi")])
def test_a_row_that_ended_by_length_is_decoded_as_a_text_that_was_cut(tasks_for, reason, text):
    class Telling:
        def decode(self, token_ids, is_cut=False):
            return "".join(map(chr, token_ids)) + ", cut" * is_cut

    ids = np.array([104, 105], np.int32)
    written = Generation("0", ids, reason, RowStatistics(), "", np.zeros(2, np.int8))
    rows = collect(tasks_for(["short"]), [written], Telling(), 20)
    assert rows["text"].to_pylist() == [text]
    assert rows["token_ids"].to_pylist() == [[104, 105]]


def test_a_lost_row_is_noticed(tasks_for, letters):
    with pytest.raises(AssertionError, match="lost"):
        collect(tasks_for(["a", "b"]), [], letters, 10)


def test_a_prompt_that_changes_while_the_job_runs_is_refused(tasks_for, letters):
    tasks = tasks_for(["written on Monday"])
    place = tasks.schema.get_field_index("prompt")
    later = tasks.set_column(place, "prompt", pa.array(["written on Tuesday"]))
    with pytest.raises(DataError, match="item '0' is not the one that the job began with"):
        requests_of(later, letters, 8, 99)


def test_a_long_list_of_prompts_says_how_far_it_is(tasks_for, monkeypatch, caplog):
    monkeypatch.setattr(knowledge, "_TELL", -1.0)
    monkeypatch.setattr(knowledge, "_ASKED_AT_ONCE", 2)
    with caplog.at_level("INFO", "pipeline.knowledge"):
        tasks_for(["a", "b", "c"])
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 3 prompts are read",
        "3 of 3 prompts are read",
    ]
