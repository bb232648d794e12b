"""What a dry run says is what the run then does, and it writes nothing."""

import hashlib
import json
import shutil

import pytest
from typer.testing import CliRunner

from jobs import build_catalog, group_entities, run_all, train_embeddings
from jobs.command_line import app
from jobs.commands import durations
from jobs.commands.dry_run import lines
from jobs.commands.stages import COMMANDS
from jobs.commands.step_costs import are_costs_known
from jobs.run_all import STAGES
from pipeline.config_file import load_config

pytestmark = [pytest.mark.ray, pytest.mark.assets]


@pytest.fixture
def done(config_file, finished):
    """The finished run, whatever other tests have made of it meanwhile."""
    assert run_all.main(["--config", str(config_file)]) == 0
    return finished


def told(config_file, *words):
    answer = CliRunner().invoke(
        app, ["run", "--config", str(config_file), "--dry-run", "--json", *words]
    )
    assert answer.exit_code == 0, answer.output
    facts = json.loads(answer.stdout)
    return facts, {stage["stage"]: stage["state"] for stage in facts["stages"]}


def files_in(folder):
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_of_a_new_run_every_stage_is_to_be_made_and_no_folder_appears(config_file):
    facts, states = told(config_file, "--set", "run=never")
    assert facts["rows"] == {"users": 40, "items": 39, "interactions": 1400}
    assert facts["texts"] == 79
    assert list(states) == list(STAGES)
    assert "up to date" not in states.values()
    assert all(stage["seconds"] is not None for stage in facts["stages"])
    assert facts["exit_code"] == 0
    assert not (config_file.parent / "artifacts" / "never").exists()


def test_stages_that_are_made_are_up_to_date_until_what_they_depend_on_changes(config_file):
    run = ["--set", "run=dry"]
    for stage in (build_catalog, train_embeddings, group_entities):
        assert stage.main(["--config", str(config_file), *run]) == 0
    root = config_file.parent / "artifacts" / "dry"
    before = files_in(root)
    _, states = told(config_file, *run)
    assert [states[name] for name in STAGES[:3]] == ["up to date"] * 3
    assert "not made yet" in states["generate_knowledge"]
    assert states["encode_features"] == "after generate_knowledge"
    _, states = told(config_file, *run, "--set", "embeddings.dim=4")
    assert states["build_catalog"] == "up to date"
    assert states["train_embeddings"] == "embeddings: changed: `embeddings`"
    assert states["group_entities"] == "after train_embeddings"
    assert files_in(root) == before


def test_a_run_that_is_done_has_nothing_to_do_and_times_others(config_file, done):
    before = files_in(done.root)
    facts, states = told(config_file)
    assert set(states.values()) == {"up to date"}
    assert sum(stage["seconds"] for stage in facts["stages"]) == 0
    _, states = told(config_file, "--set", "ctr.seeds=3")
    assert states["check_ctr"].startswith("fits: changed: `ctr`")
    assert states["measure_quality"] == "up to date"
    assert states["write_report"] == "after check_ctr"
    facts, _ = told(config_file, "--set", "generation.max_new_tokens=24")
    by_stage = {stage["stage"]: stage for stage in facts["stages"]}
    assert by_stage["generate_knowledge"]["by"] == "run bookshop"
    spent = sum(
        done.require(name).seconds
        for name in [*done.require("knowledge").inputs, "knowledge"]
        if name.startswith(("waves", "knowledge"))
    )
    assert by_stage["generate_knowledge"]["seconds"] == pytest.approx(2 * spent)
    assert files_in(done.root) == before


@pytest.mark.parametrize("command", [one.name for one in COMMANDS])
def test_no_command_writes_anything_in_a_dry_run(config_file, done, command):
    before = files_in(done.root)
    answer = CliRunner().invoke(app, [command, "--config", str(config_file), "--dry-run", "--json"])
    assert answer.exit_code in (0, 3), answer.output  # 3: what a stage reads has not been made
    assert json.loads(answer.stdout)["exit_code"] == answer.exit_code
    assert files_in(done.root) == before


def test_a_missed_threshold_is_told_and_hides_nothing(config_file, done):
    words = ["run", "--config", str(config_file), "--dry-run", "--json"]
    answer = CliRunner().invoke(app, [*words, "--set", "ctr.min_auc_gain=0.9"])
    facts = json.loads(answer.stdout)
    assert answer.exit_code == facts["exit_code"] == 5
    by_stage = {stage["stage"]: stage for stage in facts["stages"]}
    assert by_stage["check_ctr"]["state"].startswith("up to date; ctr.min_auc_gain is 0.9")
    assert by_stage["check_ctr"]["is_done"]
    assert by_stage["measure_quality"]["state"] == "up to date"


def test_a_refresh_says_what_it_keeps(config_file, done):
    """As many as the refresh itself says it carries over: see test_refresh."""
    words = ["refresh", "--config", str(config_file), "--previous", "bookshop", "--run", "next"]
    same = json.loads(CliRunner().invoke(app, [*words, "--dry-run", "--json"]).stdout)
    assert same["refreshed"] == {"kept": 79, "changed": 0, "new": 0}
    shown = ["--set", "prompts.history_limit=2", "--dry-run", "--json"]
    less = json.loads(CliRunner().invoke(app, [*words, *shown]).stdout)
    assert less["refreshed"]["kept"] == 39  # items are asked the same
    assert less["refreshed"]["changed"] == 40
    by_stage = {one["stage"]: one for one in less["stages"]}
    everything = {one["stage"]: one for one in told(config_file, "--set", "run=all")[0]["stages"]}
    ratio = by_stage["generate_knowledge"]["seconds"] / everything["generate_knowledge"]["seconds"]
    assert ratio == pytest.approx(40 / 79)
    wrong = CliRunner().invoke(app, [*words, "--dry-run", "--previous", "nobody"])
    assert wrong.exit_code == 3
    assert "nobody" in wrong.stderr


def test_what_a_run_leaves_out_is_not_to_be_made(config_file, done):
    _, states = told(config_file, "--set", "comparison.rows_per_kind=0")
    assert states["compare_decoding"] == "left out: comparison.rows_per_kind is 0"
    assert states["encode_features"] == "up to date"
    columns = "catalog.tables.interactions.columns={user_id: card, item_id: isbn, timestamp: when}"
    without = ("--set", "catalog.positive_rating=null", "--set", columns)  # all is made anew
    _, states = told(config_file, *without)
    assert states["check_ctr"].startswith("left out: without ratings")
    assert states["encode_features"] == "after generate_knowledge"


def test_what_a_run_would_refuse_at_once_is_refused(config_file):
    words = ["run", "--config", str(config_file), "--dry-run", "--json", "--set", "run=never"]
    answer = CliRunner().invoke(app, [*words, "--set", "encoder.path=/nowhere"])
    assert answer.exit_code == 3
    assert "/nowhere" in json.loads(answer.stdout)["error"]


def test_tables_that_cannot_be_used_are_refused_as_the_run_would(config_file):
    words = ["run", "--config", str(config_file), "--dry-run", "--set", "run=none"]
    words += ["--set", "catalog.tables.users.path=nowhere.csv"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 3
    assert "nowhere.csv" in answer.stderr


def test_the_model_is_read_once_however_many_runs_there_are(config_file, done, monkeypatch):
    config = load_config(config_file, ["run=other"])
    read = []
    fingerprint = durations.model_fingerprint
    monkeypatch.setattr(
        durations, "model_fingerprint", lambda model: read.append(model) or fingerprint(model)
    )
    copy = done.root.with_name("copied")
    shutil.copytree(done.root, copy)
    size = durations.Size(1, 1, 1, 1, 1)
    assert durations.estimates(config, size)["generate_knowledge"].source.startswith("run ")
    shutil.rmtree(copy)
    assert len(read) == 1


def test_step_costs_are_told_of_until_a_run_has_measured_them(config_file, done):
    assert are_costs_known(load_config(config_file))
    other = load_config(config_file, ["engine.batch_rows=5"])
    assert not are_costs_known(other)
    facts, _ = told(config_file, "--set", "run=never", "--set", "engine.batch_rows=5")
    assert facts["measures_step_costs"]
    assert any("step costs measured" in line for line in lines(facts))
    assert not told(config_file, "--set", "run=never")[0]["measures_step_costs"]
    assert not told(config_file)[0]["measures_step_costs"]  # nothing is to be decoded


def test_durations_are_told_as_the_report_tells_them(config_file, done):
    facts, _ = told(config_file, "--set", "run=never")
    by_stage = {one["stage"]: one for one in facts["stages"]}
    by_stage["generate_knowledge"]["seconds"] = 4000.0
    assert any("1 h 06 min" in line for line in lines(facts) if "generate_knowledge" in line)


AUC = ("--set", "run=check", "--set", "auc.protocols=[per_user_prefix]")
AUC = (*AUC, "--set", "auc.sliced={}", "--set", "auc.frameworks={kar: 12}")


def test_the_check_of_frameworks_tells_each_of_its_runs(config_file, done):
    """The strict run is not made, so the relaxed one cannot be compared with it yet."""
    before = files_in(done.root)
    words = ["auc", "--config", str(config_file), "--dry-run", *AUC]
    answer = CliRunner().invoke(app, [*words, "--json"])
    assert answer.exit_code == 0, answer.output
    facts = json.loads(answer.stdout)
    strict, relaxed = facts["runs"]
    assert (strict["run"], relaxed["run"]) == (
        "check-per_user_prefix-kar-strict",
        "check-per_user_prefix-kar-relaxed",
    )
    assert facts["texts"] == strict["texts"] + relaxed["texts"] == 158
    assert not any(stage["is_done"] for run in facts["runs"] for stage in run["stages"])
    assert not (done.root.parent / strict["run"]).exists()
    printed = CliRunner().invoke(app, words).stdout
    assert "2 runs, 158 texts" in printed
    assert "build_catalog: users: not made yet" in printed
    assert "nothing was written" in printed
    wrong = CliRunner().invoke(app, [*words, "--set", "encoder.path=/nowhere"])
    assert wrong.exit_code == 3
    assert files_in(done.root) == before


def test_a_measurement_that_was_made_is_not_made_in_a_dry_run(config_file):
    words = ["bench", "decoding", "--config", str(config_file), "--dry-run", "--json"]
    answer = CliRunner().invoke(app, [*words, "--set", "run=measures"])
    assert answer.exit_code == 0, answer.output
    (stage,) = json.loads(answer.stdout)["stages"]
    assert stage["state"] == "users: not made yet"
