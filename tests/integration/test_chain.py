"""The whole chain on a small bookshop of our own, with a tiny random model, on a local Ray."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import run_all

pytestmark = [
    pytest.mark.ray,
    pytest.mark.assets,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # third parties warn as they please inside workers
]

SECRET = "Zyzzyva"  # see the bookshop in conftest.py


def modified(store):
    """When each stored file was last written."""
    always = {"run.log", "lock"}  # touched by every run
    kept = [p for p in store.root.rglob("*") if p.is_file() and p.name not in always]
    return {str(path): path.stat().st_mtime_ns for path in kept}


def test_every_entity_has_knowledge_and_a_vector(finished):
    knowledge, features = finished.read("knowledge"), finished.read("features")
    catalog = finished.read("users").num_rows + finished.read("items").num_rows
    assert knowledge.num_rows == features.num_rows == catalog == 79
    assert set(knowledge["error"].to_pylist()) == {""}
    assert set(knowledge["wave"].to_pylist()) == {0, 1, 2}
    rules = set(zip(knowledge["wave"].to_pylist(), knowledge["rule"].to_pylist(), strict=True))
    assert rules == {(0, "plain"), (1, "relaxed"), (2, "relaxed")}
    keys = knowledge["request_key"].to_pylist()
    assert len(set(keys)) == len(keys)


def test_drafts_come_from_pools_and_save_passes(finished):
    knowledge = finished.read("knowledge").to_pylist()
    later = [row for row in knowledge if row["wave"] > 0]
    accepted = np.array([row["accepted_by_source"] for row in later]).sum(0)
    assert accepted[2:].sum() > 0  # group and global
    tokens = sum(len(row["token_ids"]) for row in later)
    assert tokens > sum(row["forward_passes"] for row in later)
    plain = [row for row in knowledge if row["wave"] == 0]
    assert all(sum(row["drafted_by_source"]) == 0 for row in plain)


def test_every_token_says_where_it_came_from(finished):
    drafts = 0
    for row in finished.read("knowledge").to_pylist():
        origins = np.array(row["token_origins"], int)
        assert len(origins) == len(row["token_ids"])
        by_source = np.bincount(origins % 16, minlength=6)[1:]
        lost = np.array(row["accepted_by_source"]) - by_source  # a stop token is no output
        assert lost.min() >= 0
        assert lost.sum() <= (row["finish_reason"] == "stop")
        assert (origins >= 16).sum() == row["relaxed_tokens"]
        for by in ("chance", "depth"):
            assert sum(row[f"drafted_by_{by}"]) == sum(row["drafted_by_source"])
            assert sum(row[f"accepted_by_{by}"]) == sum(row["accepted_by_source"])
        drafts += by_source.sum()
    assert drafts > 0


def test_nothing_from_the_test_window_is_in_a_users_text_inputs(finished, config_file, prompts_of):
    """Books that were first read later stand in no user's prompt."""
    from pipeline.config_file import load_config

    prompts = prompts_of(load_config(config_file), finished)
    users = [prompt for (kind, _), prompt in prompts.items() if kind == "user"]
    assert len(users) == 40
    assert not any(SECRET in prompt.text for prompt in users)
    titles = [prompt.text for (kind, _), prompt in prompts.items() if kind == "item"]
    assert sum(SECRET in text for text in titles) == 3  # the canary was there to be found


def test_a_second_run_does_nothing_and_says_so(finished, config_file):
    before = modified(finished)
    log_size = (finished.root / "run.log").stat().st_size
    assert "engines at work" in (finished.root / "run.log").read_text()
    assert run_all.main(["--config", str(config_file)]) == 0
    assert modified(finished) == before
    said = (finished.root / "run.log").read_text()[log_size:]
    for name in (
        "catalog",
        "embeddings",
        "groups",
        "knowledge",
        "comparison",
        "features",
        "quality",
        "ctr",
    ):
        assert f"{name}: up to date" in said


def test_a_killed_wave_goes_on_with_the_missing_rows_only(finished, config_file):
    """As if the process had died after the first block of wave 2."""
    from jobs import generate_knowledge

    folder = finished.path("waves/2/knowledge")
    manifest = json.loads((folder / "manifest.json").read_text())
    first, *others = sorted(folder.glob("part-*.parquet"))
    assert others, "the wave needs several blocks for this test"
    kept = pq.read_table(first)
    for part in others:
        part.unlink()
    (folder / "building.json").write_text(json.dumps({"fingerprint": manifest["fingerprint"]}))
    (folder / "manifest.json").unlink()
    assert generate_knowledge.main(["--config", str(config_file)]) == 0
    again = finished.read("waves/2/knowledge")
    assert again.num_rows == manifest["num_rows"]
    assert pq.read_table(first) == kept
    steps = finished.require("waves/2/knowledge").facts["steps"]
    assert steps["rows_written"] == again.num_rows - kept.num_rows
    assert len(set(again["request_key"].to_pylist())) == again.num_rows


def test_rows_that_nobody_asks_for_any_more_do_not_block_a_resumed_wave(finished, config_file):
    """As if the chat template had put another date into every prompt since the kill."""
    from jobs import generate_knowledge

    folder = finished.path("waves/2/knowledge")
    manifest = json.loads((folder / "manifest.json").read_text())
    part = min(folder.glob("part-*.parquet"))
    old = pq.read_table(part)
    keys = pa.array([f"old-{key}" for key in old["request_key"].to_pylist()])
    index = old.schema.get_field_index("request_key")
    pq.write_table(old.set_column(index, "request_key", keys), part)
    (folder / "building.json").write_text(json.dumps({"fingerprint": manifest["fingerprint"]}))
    (folder / "manifest.json").unlink()
    assert generate_knowledge.main(["--config", str(config_file)]) == 0
    again = finished.read("waves/2/knowledge")
    assert again.num_rows == manifest["num_rows"]
    assert not any(key.startswith("old-") for key in again["request_key"].to_pylist())


def test_the_report_is_there_for_people_and_programs(finished):
    report = json.loads((finished.path("report") / "report.json").read_text())
    assert report
    page = (finished.path("report") / "report.html").read_text()
    assert "bookshop" in page
    comparison = json.loads((finished.path("comparison") / "comparison.json").read_text())
    arms = {(arm["arm"], arm["kind"]): arm for arm in comparison["arms"]}
    assert arms["plain", "all"]["tokens_per_forward"] == pytest.approx(1.0)
    assert arms["strict", "all"]["new_tokens"] == arms["plain", "all"]["new_tokens"]
    assert arms["strict", "all"]["rows_unlike_plain"] == 0
    assert [one for one in comparison["divergences"] if one["arm"] == "strict"] == []
    assert [step["step"] for step in report["waterfall"]] == [
        "plain", "group pool", "+ own text", "+ global pool", "+ tree", "+ draft budget",
        "+ relaxed (k 5, p 0)",
    ]  # fmt: skip
    speeds = [step["tokens_per_second"] for step in report["waterfall"]]
    assert min(speeds) > 0.0
    assert speeds[0] == arms["plain", "all"]["tokens_per_second"]
    assert speeds[-1] == arms["relaxed", "all"]["tokens_per_second"]
    assert report["waterfall"][0]["ratio_to_plain"] == 1.0
    assert len({(arm["arm"], arm["kind"]) for arm in comparison["arms"]}) == 12  # none of its own


def test_the_report_knows_the_time_of_every_wave(finished):
    report = json.loads((finished.path("report") / "report.json").read_text())
    waves = report["steps"]["by_wave"]
    assert [wave["wave"] for wave in waves] == [0, 1, 2]
    for wave in waves:
        own = [row for row in report["acceptance"]["waves"] if row["wave"] == wave["wave"]]
        assert wave["rows_timed"] == wave["rows"] == sum(row["rows"] for row in own)
        assert 1.0 <= wave["rows_per_step"] <= 4.0
        assert all(seconds > 0.0 for seconds in wave["seconds_by_part"].values())
        passes = sum(row["forward_passes"] for row in own)  # each is a row of a step
        assert wave["steps"] * wave["rows_per_step"] >= passes - 1e-6
    [rule] = report["calibration"]["by_rule"]
    assert rule["rule"] == "relaxed"
    assert sum(group["rows"] for group in report["acceptance"]["by_group"]) == 79


def test_exit_codes_can_be_trusted(config_file, tmp_path, capsys):
    assert run_all.main(["--config", str(tmp_path / "none.yaml")]) == 2
    assert run_all.main(["--config", str(config_file), "--set", "ctr.seed=3"]) == 2
    assert "nearest valid key is ctr.seeds" in capsys.readouterr().err
    missing = ["--set", "catalog.tables.users.path=nowhere.csv", "--set", "run=other"]
    assert run_all.main(["--config", str(config_file), *missing]) == 3
    assert "nowhere.csv" in capsys.readouterr().err


def test_the_benchmark_measures_every_arm_on_rows_that_no_pool_holds(finished, config_file, capsys):
    from jobs import benchmark_decoding

    small = ["benchmark.batch_sizes=[1,4]", "benchmark.rows=2", "benchmark.blocks=1"]
    settings = [part for one in [*small, "benchmark.max_new_tokens=10"] for part in ("--set", one)]
    assert benchmark_decoding.main(["--config", str(config_file), *settings]) == 0
    last = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert last["strict_rows_unlike_plain"] == 0
    assert last["strict_to_plain_at_batch_1"] > 0.0
    assert last["overhead_share_at_batch_16"] is None
    stored = json.loads((finished.path("benchmark") / "benchmark.json").read_text())
    arms = {(arm["batch"], arm["arm"], arm["kind"]): arm for arm in stored["arms"]}
    names = {"transformers.generate", "plain", "resd", "published", "strict", "relaxed", "budget"}
    kinds = {"user", "item", "all"}
    assert {key for key in arms if key[0] == 4} == {
        (4, arm, kind) for arm in names for kind in kinds
    }
    assert (1, "prompt_lookup", "all") in arms
    assert arms[4, "resd", "all"]["rows_unlike_plain"] == 0
    assert arms[1, "plain", "all"]["tokens_per_forward"] == pytest.approx(1.0)
    assert arms[1, "published", "all"]["step"]["packed_tokens"] > 1.0
