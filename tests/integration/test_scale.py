"""benchmark_scale at sizes that take seconds: nothing is lost, and nothing is quadratic."""

import json

import pytest
import yaml

from jobs import benchmark_scale
from jobs.benchmark_scale import TARGETS

SMALL_GROUPS, LARGE_GROUPS, TEXTS = 4, 32, 40
QUADRATIC = LARGE_GROUPS // SMALL_GROUPS  # what a unit would cost more, in every stage
GENEROUS = QUADRATIC / 1.6  # other work on the machine moves the times of so small sizes


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale")
    tree = {
        "run": "scale",
        "artifacts": str(folder / "artifacts"),
        "catalog": {"source": "movielens", "path": "unused"},
        "language_model": {"path": "unused"},
        "encoder": {"path": "unused"},
        "embeddings": {"dim": 8, "layers": 2, "batch_size": 64},
        "scale": {
            "text_tokens": 64,
            "texts_per_group": TEXTS,
            "pool_groups": [SMALL_GROUPS, LARGE_GROUPS],
            "lookup_tokens": [20_000, 160_000],
            "edges": [10_000, 80_000],
            "entities": [4_000, 32_000],
            "clusters": 32,
            "prompt_users": [500, 4_000],
            "knowledge_rows": [500],
        },
    }
    path = folder / "scale.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture(scope="module")
def done(config_file):
    assert benchmark_scale.main(["--config", str(config_file)]) == 0
    result = config_file.parent / "artifacts/scale/scale/scale.json"
    return json.loads(result.read_text())


def of_stage(done, stage):
    return [cost for cost in done["costs"] if cost["stage"] == stage]


def test_every_text_is_in_a_pool_at_every_size(done):
    small, large = of_stage(done, "pools")
    assert small["facts"]["documents"] == SMALL_GROUPS * TEXTS
    assert large["facts"]["documents"] == LARGE_GROUPS * TEXTS
    assert large["units"] == LARGE_GROUPS * TEXTS * 64
    assert large["facts"]["groups"] == LARGE_GROUPS


def test_no_stage_costs_a_unit_much_more_at_the_larger_size(done):
    ratios = {name: value for name, value in done["totals"].items() if name.endswith("_ratio")}
    assert len(ratios) == 10
    assert not {name: ratio for name, ratio in ratios.items() if ratio > GENEROUS}


def test_costs_are_those_of_the_work_done(done):
    for cost in done["costs"]:
        assert cost["seconds"] > 0
        assert cost["microseconds_per_unit"] == pytest.approx(
            cost["core_seconds"] / cost["units"] * 1e6
        )
        assert cost["peak_mib"] > 10
    assert {cost["bytes_per_unit"] is None for cost in of_stage(done, "pools")} == {False}
    assert of_stage(done, "pools")[1]["bytes_per_unit"] < 16
    assert of_stage(done, "kmeans")[1]["facts"]["groups"] == 32


def test_stages_left_out_are_not_measured_and_the_last_line_is_json(config_file, capsys):
    arguments = ["--set", "run=part", "--set", "scale.stages=[kmeans]"]
    assert benchmark_scale.main(["--config", str(config_file), *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    last = json.loads(lines[-1])
    assert last["kmeans_ratio"] > 0
    unmeasured = {target.name for target in TARGETS} - {"kmeans_ratio"}
    assert {name for name, value in last.items() if value is None} == unmeasured
    assert sum("not measured" in line for line in lines) == len(unmeasured)


def test_texts_that_fall_out_of_a_pool_are_an_error(config_file):
    arguments = ["--set", "run=short", "--set", "scale.stages=[pools]"]
    arguments += ["--set", "pools.max_bytes=16384"]
    assert benchmark_scale.main(["--config", str(config_file), *arguments]) == 3
    log = (config_file.parent / "artifacts/short/run.log").read_text()
    assert "160 texts of 64 tokens were made, the pools hold" in log
    assert "raise pools.max_bytes" in log


def test_generation_is_looked_at_process_by_process(done):
    (cost,) = of_stage(done, "knowledge")
    assert cost["units"] == 500
    assert cost["facts"]["driver_mib"] > 100
    assert cost["facts"]["actor_mib"] > 100
    assert cost["facts"]["store_mib"] < 8  # blocks are small, so nothing of them is there
    assert cost["core_seconds"] > 1
