"""The schema accepts what the program accepts, and says what the comments say."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from pipeline.config import RunConfig
from pipeline.config_schema import dotted_keys, json_schema, meanings, values_of
from pipeline.settings import Settings

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "conf").glob("*.yaml"))


class Inner(Settings):
    """A section."""

    first: int = 1  # said beside it
    # Said above it,
    # in two lines.
    second: str = "a # that is none"

    third: tuple[int, ...] = (
        1,  # inside
    )
    fourth: int = 4


class Outer(Settings):
    """Holds it."""

    inner: Inner | None = None  # or none


def test_comments_become_meanings():
    assert meanings(Inner) == {
        "first": "said beside it",
        "second": "Said above it, in two lines.",
        "third": "inside",
    }


def test_keys_are_dotted_down_to_values():
    keys = dotted_keys(Outer)
    assert list(keys) == ["inner.first", "inner.second", "inner.third", "inner.fourth"]
    assert keys["inner.fourth"] == ""
    assert "generation.relaxed.top_k" in dotted_keys(RunConfig)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("generation.rule", ["strict", "relaxed", "sampled"]),
        ("groups.user_groups", ["auto"]),
        ("catalog.positive_rating", ["null"]),
        ("drafts.sources", ["[previous]", "[own]", "[group]", "[global]"]),
        ("seed", []),
        ("generation", []),
        ("generation.relaxed.nothing", []),
        ("nothing.at.all", []),
    ],
)
def test_values_are_those_that_can_be_listed(key, values):
    assert values_of(RunConfig, key) == values


def test_descriptions_stand_at_their_settings():
    schema = json_schema(Outer)
    assert schema["properties"]["inner"]["description"] == "or none"
    assert schema["$defs"]["Inner"]["properties"]["first"]["description"] == "said beside it"
    json.dumps(schema, allow_nan=False)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_shipped_config_is_valid_by_it(path):
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema(RunConfig))


def test_an_unknown_key_is_invalid_by_it():
    tree = yaml.safe_load(CONFIGS[0].read_text()) | {"generatoin": {}}
    with pytest.raises(jsonschema.ValidationError, match="generatoin"):
        jsonschema.validate(tree, json_schema(RunConfig))


def test_every_setting_has_a_meaning():
    """What `laser schema` and the shell's completion say of it; none is self-evident so far."""
    assert [key for key, meaning in dotted_keys(RunConfig).items() if not meaning] == []
