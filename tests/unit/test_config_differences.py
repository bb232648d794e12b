"""The config of a page against what the datasets of the run were made with."""

from pathlib import Path

import pytest

from features.config_differences import config_differences
from pipeline.config_file import load_config

DEMO = Path(__file__).parents[2] / "conf" / "demo.yaml"


def config(*overrides):
    return load_config(DEMO, list(overrides)).model_dump(mode="json")


def made_with(*overrides):
    """Some datasets as their jobs describe them."""
    tree = config(*overrides)
    left_out = ("block_rows", "max_error_share")
    generation = {key: one for key, one in tree["generation"].items() if key not in left_out}
    wave = {"generation": generation, "templates": "0123", "model": "4567", "earlier": "89"}
    wave |= {"draft_nodes": tree["engine"]["draft_nodes"], "sources": tree["drafts"]["sources"]}
    return [
        {"dataset": name, "settings": settings}
        for name, settings in {
            "users": {"catalog": tree["catalog"], "files": [{"path": "x"}]},
            "groups": {"groups": tree["groups"], "seed": tree["seed"]},
            "waves/0/knowledge": wave,
            "waves/1/knowledge": wave | {"drafts": {"model": "a hash", "tokens": 4}},
            "features": {"weights": "0123", "max_tokens": tree["encoder"]["max_tokens"]},
        }.items()
    ]


def test_the_config_of_the_run_differs_in_nothing():
    assert config_differences(config() | {"templates": "0123"}, made_with()) == []


def test_controls_of_the_check_have_a_wording_of_their_own():
    of_control = {"templates": "of raw text", "max_tokens": 64}
    control = {"dataset": "controls/raw_text/features", "settings": of_control}
    found = config_differences(config() | {"templates": "0123"}, [*made_with(), control])
    assert [one["setting"] for one in found] == ["encoder.max_tokens"]


@pytest.mark.parametrize(
    ("override", "setting", "before", "now", "datasets"),
    [
        (
            "generation.rule=strict", "generation.rule", "relaxed", "strict",
            "waves/0/knowledge, waves/1/knowledge",
        ),
        (
            "generation.relaxed.floor=0.2", "generation.relaxed.floor", "0.1", "0.2",
            "waves/0/knowledge, waves/1/knowledge",
        ),
        (
            "engine.draft_nodes=9", "engine.draft_nodes", "32", "9",
            "waves/0/knowledge, waves/1/knowledge",
        ),
        ("encoder.max_tokens=64", "encoder.max_tokens", "256", "64", "features"),
        ("seed=7", "seed", "2026", "7", "groups"),
        ("catalog.max_users=7", "catalog.max_users", "100", "7", "users"),
        ("groups.user_attributes=[age]", "groups.user_attributes", '["occupation", "gender"]',
         '["age"]', "groups"),
    ],
)  # fmt: skip
def test_another_setting_is_named_with_both_values(override, setting, before, now, datasets):
    words = {"setting": setting, "made_with": before, "config": now, "datasets": datasets}
    found = config_differences(config(override) | {"templates": "0123"}, made_with())
    assert found == [words]


def test_what_texts_do_not_depend_on_may_differ():
    other = config("generation.block_rows=7", "run=another", "artifacts=elsewhere")
    assert config_differences(other, made_with()) == []


def test_a_setting_that_stands_in_a_config_only_where_it_is_set_is_seen_both_ways():
    """Without it the config or the manifest has no such key."""
    hidden = "catalog.split.cold_items=0.2"
    [now] = config_differences(config(hidden), made_with())
    assert (now["setting"], now["made_with"], now["config"]) == (hidden[:24], "not set", "0.2")
    [before] = config_differences(config(), made_with(hidden))
    assert (before["made_with"], before["config"]) == ("0.2", "not set")


def test_another_wording_is_another_config():
    [found] = config_differences(config() | {"templates": "abcd"}, made_with())
    assert (found["setting"], found["config"]) == ("templates", "abcd")
