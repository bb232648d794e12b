"""Which rows of an earlier run hold."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from pipeline.decoding_config import GenerationSettings, RelaxedSettings
from pipeline.engine.types import Generation, RowStatistics
from pipeline.knowledge import WaveIdentity, collect, make_tasks, requests_of, with_prompts
from pipeline.language_model import ChatTokenizer
from pipeline.refresh import EarlierTexts, in_tokens_of, rows_that_hold

SETTINGS = GenerationSettings()
GREEDY = WaveIdentity(1, "strict", "pools-1", "model-1", "tokenizer-1")
RELAXED = replace(GREEDY, rule="relaxed")


@pytest.fixture
def tasks_for(given, letters):
    """PROMPTED for {entity: prompt}."""

    def make(prompts, identity=GREEDY, settings=SETTINGS):
        asked, members = given(prompts)
        return with_prompts(make_tasks(asked, members, letters, identity, settings), asked)

    return make


@pytest.fixture
def knowledge_of(tasks_for, letters):
    """KNOWLEDGE for {entity: prompt}; a text is one letter."""

    def make(prompts, identity=GREEDY, settings=SETTINGS, errors=()):
        generations = [
            Generation(
                str(number),
                np.array([65 + number], np.int32),
                "error" if name in errors else "length",
                RowStatistics(),
                "broken" if name in errors else "",
            )
            for number, name in enumerate(prompts)
        ]
        return collect(tasks_for(prompts, identity, settings), generations, letters, 99)

    return make


@pytest.fixture
def held(tasks_for):
    """Entities whose rows hold."""

    def find(prompts, earlier, identity=GREEDY, settings=SETTINGS):
        rows = rows_that_hold(tasks_for(prompts, identity, settings), earlier, identity, settings)
        return [earlier["entity_id"][int(row)].as_py() for row in rows]

    return find


def test_only_equal_prompts_hold_in_the_order_of_the_tasks(knowledge_of, held):
    earlier = knowledge_of({"a": "one", "b": "two", "gone": "x", "bad": "y"}, errors=["bad"])
    now = {"new": "two", "b": "two", "bad": "y", "a": "other"}
    assert held(now, earlier) == ["b"]
    assert held({"b": "two", "a": "one"}, earlier) == ["b", "a"]


@pytest.mark.parametrize(
    ("then", "now", "holds"),
    [
        ("plain", "strict", True),
        ("plain", "relaxed", True),
        ("strict", "relaxed", True),
        ("relaxed", "relaxed", True),
        ("relaxed", "strict", False),
        ("plain", "sampled", False),
        ("sampled", "relaxed", False),
    ],
)
def test_greedy_text_stands_in_for_relaxed_text(then, now, holds, knowledge_of, held):
    earlier = knowledge_of({"a": "one"}, replace(GREEDY, rule=then))
    asked = replace(GREEDY, rule=now, pool_version="pools-2", wave=2)
    assert held({"a": "one"}, earlier, asked) == (["a"] if holds else [])


def test_other_parameters_or_another_model_make_every_row_anew(knowledge_of, held):
    earlier = knowledge_of({"a": "one"}, RELAXED)
    stricter = GenerationSettings(relaxed=RelaxedSettings(floor=0.4))
    assert held({"a": "one"}, earlier, RELAXED, stricter) == []
    assert held({"a": "one"}, earlier, RELAXED, GenerationSettings(max_new_tokens=9)) == []
    assert held({"a": "one"}, earlier, replace(RELAXED, model="model-2")) == []
    assert held({"a": "one"}, earlier, RELAXED) == ["a"]


def test_tasks_get_the_earlier_text_of_their_own_entity(knowledge_of, tasks_for, letters):
    earlier = knowledge_of({"a": "one", "b": "two", "bad": "y"}, errors=["bad"])
    tasks = EarlierTexts(earlier).beside(tasks_for({"b": "new", "c": "new", "bad": "new"}))
    assert tasks["previous_ids"].to_pylist() == [[66], [], []]
    requests = requests_of(tasks, letters, 9, 99)
    assert [request.previous_ids is None for request in requests] == [False, True, True]
    assert requests[0].previous_ids.tolist() == [66]


def test_texts_of_another_tokenizer_are_told_in_todays_tokens(knowledge_of, tasks_for):
    earlier = knowledge_of({"a": "one", "bad": "two"}, errors=["bad"])
    place = earlier.schema.get_field_index("token_ids")
    foreign = pa.array([[70_001], []], earlier.schema.field("token_ids").type)
    earlier = earlier.set_column(place, "token_ids", foreign)

    def letters(text, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [ord(letter) for letter in text]}

    today = ChatTokenizer(letters, "tokenizer-2")
    told = in_tokens_of(today, earlier, "tokenizer-1")
    assert told["token_ids"].to_pylist() == [[65], [66]]
    assert told.schema == earlier.schema
    assert in_tokens_of(today, earlier, "tokenizer-2") is earlier
    tasks = EarlierTexts(told).beside(tasks_for({"a": "new"}))
    assert tasks["previous_ids"].to_pylist() == [[65]]
