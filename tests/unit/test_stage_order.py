"""What must be made before a stage: all of it is named at once, in order."""

from importlib.util import find_spec

import pytest
import yaml

from jobs.commands.stages import COMMANDS
from jobs.run_all import STAGES
from jobs.stage_order import MEASURES, NEEDS, WRITES, missing_before, require_before
from pipeline.config_file import load_config
from pipeline.errors import DataError
from pipeline.schemas import MADE_BY
from pipeline.store import Store


@pytest.fixture
def config(tmp_path):
    tree = {
        "run": "r",
        "artifacts": str(tmp_path),
        "catalog": {"source": "movielens", "path": "x"},
        "language_model": {"path": "x"},
        "encoder": {"path": "x"},
    }
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(tree))
    return lambda *overrides: load_config(path, overrides)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "r")


def make(store, *names):
    for name in names:
        store.plan(name, {}).write_json("x.json", {}, 3)


def test_of_an_empty_run_everything_before_is_named_in_order(config, store):
    with pytest.raises(DataError) as error:
        require_before("encode_features", config(), store)
    said = str(error.value)
    assert said.endswith(
        "has no interactions, embeddings, groups and knowledge yet; run `laser catalog`, "
        "`laser embed`, `laser group` and `laser generate` first, in this order; `laser run` does "
        "all of that, and what comes after"
    )


def test_what_is_made_is_not_asked_for(config, store):
    make(store, "interactions", "embeddings")
    assert missing_before("check_ctr", config(), store) == [
        *("group_entities", "generate_knowledge", "encode_features"),
    ]
    make(store, "groups")
    require_before("generate_knowledge", config(), store)
    with pytest.raises(DataError, match=r"has no knowledge yet; run `laser generate` first$"):
        require_before("encode_features", config(), store)


def test_a_report_does_without_measurements(config, store):
    make(store, "interactions", "embeddings", "groups", "knowledge", "features")
    require_before("write_report", config(), store)
    assert missing_before("log_run", config(), store) == ["write_report"]


def test_lists_need_texts_only_where_ids_are_made_from_them(config, store):
    behaviour = ["build_catalog", "train_embeddings", "assign_semantic_ids"]
    titles = config("semantic_ids.content=raw_text")
    assert missing_before("train_recommender", titles, store) == behaviour
    others = config("semantic_ids.content=raw_text", "semantic_ids.from_run=old")
    assert missing_before("train_recommender", others, store) == [behaviour[0], behaviour[2]]
    texts = config("semantic_ids.content=knowledge")
    assert "encode_features" in missing_before("assign_semantic_ids", texts, store)
    with pytest.raises(DataError, match="`laser recommend` does all of that"):
        require_before("align_drafter", titles, store)


@pytest.mark.parametrize("stage", ["run_all", "recommend", "build_catalog", *MEASURES])
def test_what_makes_all_that_it_needs_lacks_nothing(config, store, stage):
    require_before(stage, config(), store)


def test_every_stage_stands_below_what_it_is_made_from():
    order = list(NEEDS)
    assert all(order.index(need) < order.index(one) for one in NEEDS for need in NEEDS[one])
    assert set(STAGES) <= set(WRITES) <= set(NEEDS)
    assert {one.module for one in COMMANDS} <= {*NEEDS, "run_all", "recommend"}
    commands = {one.module: one.name for one in COMMANDS} | {"recommend_items": "recommend"}
    assert {name: commands[one] for one, name in WRITES.items()}.items() <= MADE_BY.items()
    assert all(find_spec(f"jobs.{one}") for one in (*NEEDS, *MEASURES))
