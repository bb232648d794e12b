"""What a person is told of one user or item of a finished run."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from jobs.command_line import app
from pipeline.config_file import load_config
from pipeline.language_model import load_tokenizer

pytestmark = [pytest.mark.ray, pytest.mark.assets]


def shown(config_file, entity, *words):
    words = ["inspect", "--config", str(config_file), "--entity", entity, *words]
    return CliRunner().invoke(app, words)


def facts(config_file, entity, *words):
    done = shown(config_file, entity, "--json", *words)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_prompt_text_origins_and_vector_are_those_of_the_run(config_file, finished, prompts_of):
    config = load_config(config_file)
    asked = prompts_of(config, finished)
    rows = finished.read("knowledge").to_pylist()
    tokenizer = load_tokenizer(config.language_model)
    for row in (rows[0], rows[-1]):
        told = facts(config_file, f"{row['kind']}/{row['entity_id']}")
        assert told["prompt"] == asked[row["kind"], row["entity_id"]].text
        assert told["prompt_today"] is None
        assert (told["text"], told["group"]) == (row["text"], row["group_id"])
        pieces = told["pieces"]
        assert "".join(one["text"] for one in pieces) == tokenizer.decode_exactly(
            np.array(row["token_ids"])
        )
        assert sum(one["tokens"] for one in pieces) == told["tokens"] == len(row["token_ids"])
        assert sum(told["by_source"].values()) == told["tokens"]
        assert told["vector"] == {
            "dim": 384,
            "source": "own",
            "source_events": row["source_events"],
        }


def test_on_a_terminal_it_is_told_in_lines(config_file, finished):
    row = finished.read("knowledge", ["kind", "entity_id"]).to_pylist()[0]
    done = shown(config_file, f"{row['kind']}/{row['entity_id']}")
    assert done.exit_code == 0
    for part in (
        "of run bookshop, group",
        "asked (",
        "written in wave",
        "tokens by who",
        "vector of",
    ):
        assert part in done.stdout


def test_a_prompt_that_would_be_another_now_is_not_passed_off_as_the_one_asked(
    config_file, finished
):
    row = next(row for row in finished.read("knowledge").to_pylist() if row["kind"] == "user")
    other = ("--set", "prompts.history_limit=1")
    told = facts(config_file, f"user/{row['entity_id']}", *other)
    assert told["prompt"] is None
    assert told["prompt_today"]
    assert told["text"] == row["text"]
    done = shown(config_file, f"user/{row['entity_id']}", *other)
    assert "what it was asked is not known any more" in done.stdout


@pytest.mark.parametrize(
    ("entity", "words", "code", "said"),
    [
        ("user/r0099", (), 3, "has no text of user 'r0099'; the nearest of 40 ids are "),
        ("user/~", (), 3, "none of 40 ids is like it: "),
        ("planet/1", (), 2, "--entity takes user/ID or item/ID, got 'planet/1'"),
        ("user/", (), 2, "--entity takes user/ID or item/ID"),
        ("user/1", ("--group", "user/a"), 2, "leave out --group and --text"),
        ("user/1", ("--set", "run=nowhere"), 3, "no such run: nowhere"),
    ],
)
def test_what_cannot_be_shown_is_refused(config_file, finished, entity, words, code, said):
    done = shown(config_file, entity, *words)
    assert done.exit_code == code
    assert said in done.stderr
    told = json.loads(shown(config_file, entity, "--json", *words).stdout)
    assert told["exit_code"] == code
