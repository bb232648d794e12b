"""The drafter of the page on extending is put in as its third step says."""

import re
import sys
import textwrap
import types
from pathlib import Path

import pytest
from pydantic import ValidationError

from pipeline.config_file import load_config
from pipeline.engine.types import NoDraft

ROOT = Path(__file__).resolve().parents[2]
STEPS = (ROOT / "pipeline/docs/extending.md").read_text().partition("## A drafter")[2]
STEPS = STEPS.partition("\n## ")[0]
(CODE,) = re.findall(r"^   ```python\n(.*?)^   ```$", STEPS, re.M | re.S)
(CHANGES,) = re.findall(r"^   ```text\n(.*?)^   ```$", STEPS, re.M | re.S)
BY_FILE = dict(re.findall(r"^   (\S+\.py)\n(.*?)(?=^   \S+\.py\n|\Z)", CHANGES, re.M | re.S))


def changed(file):
    """The source of a file with the page's change; its comments at ends of lines do not count."""
    marked = [line[3:] for line in BY_FILE[file].splitlines() if line.strip()]
    before = [line[1:] for line in marked if line[0] != "+"]
    after = [line[1:] for line in marked if line[0] != "-"]
    source = (ROOT / file).read_text().splitlines()
    bare = [line.partition("  # ")[0] for line in source]
    places = [n for n in range(len(bare)) if bare[n : n + len(before)] == before]
    assert len(places) == 1, f"{file} has the lines of the page {len(places)} times"
    return "\n".join([*source[: places[0]], *after, *source[places[0] + len(before) :]])


@pytest.fixture
def module(monkeypatch):
    """Makes a module of some source."""

    def make(name, code, **known):
        made = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made)
        vars(made).update(known)
        exec(compile(code, name, "exec"), vars(made))
        return made

    return make


def test_the_page_changes_two_files():
    assert list(BY_FILE) == ["pipeline/decoding_config.py", "jobs/generation_actor.py"]


def test_the_name_is_taken_and_others_are_not(module):
    settings = module("decoding_config_changed", changed("pipeline/decoding_config.py"))
    assert settings.DraftSettings().source == "pools"
    assert settings.DraftSettings(source="repeats").source == "repeats"
    with pytest.raises(ValidationError, match="'repeats'"):
        settings.DraftSettings(source="repeat")


def test_the_drafter_is_who_drafts(module):
    settings = module("decoding_config_changed", changed("pipeline/decoding_config.py"))
    step_two = module("step_two", textwrap.dedent(CODE))
    actor = module(
        "generation_actor_changed", changed("jobs/generation_actor.py"), Repeats=step_two.Repeats
    )
    config = load_config(ROOT / "conf/demo.yaml")
    own = config.model_copy(update={"drafts": settings.DraftSettings(source="repeats")})
    drafter = actor.make_drafter(own, step_two.engine, "strict", None, "")
    assert isinstance(drafter, step_two.Repeats)
    drafted, _ = step_two.texts(drafter)
    assert all(
        row.token_ids.tolist() == step_two.plain[key].token_ids.tolist()
        for key, row in drafted.items()
    )
    assert isinstance(actor.make_drafter(own, step_two.engine, "plain", None, ""), NoDraft)
    assert isinstance(actor.make_drafter(config, step_two.engine, "strict", None, ""), NoDraft)
