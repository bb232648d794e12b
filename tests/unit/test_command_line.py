"""`laser`: every command has words and an example, and hands on what it was given."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from jobs import cli
from jobs.command_line import app
from jobs.commands import running
from jobs.commands.options import asked
from jobs.commands.planned_store import PlannedStore, WouldWork
from jobs.commands.stages import COMMANDS
from pipeline.config_file import load_config
from pipeline.errors import CheckError
from pipeline.schemas import MADE_BY, SCHEMAS
from pipeline.store import Store

ROOT = Path(__file__).resolve().parents[2]
COMMAND = typer.main.get_command(app)
PROMISED = {
    *("run", "validate", "embed", "group", "pools", "generate", "encode", "check", "report"),
    *("refresh", "recommend", "bench", "plan", "status", "inspect"),
}


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree = {
        "run": "r",
        "artifacts": str(tmp_path / "artifacts"),
        "catalog": {"source": "movielens", "path": "x", "max_users": 7},
        "language_model": {"path": "x"},
        "encoder": {"path": "x"},
    }
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture
def job(monkeypatch):
    """What the job of any stage command was given; `job.error` is what it raises."""

    class Job(list):
        error: Exception | None = None

    calls = Job()

    class Module:
        @staticmethod
        def run(config, store):
            calls.append(config)
            sys.stdout.write("a table\n")
            if calls.error:
                raise calls.error

    monkeypatch.setattr(running, "import_module", lambda name: Module)
    monkeypatch.setattr(running, "require_before", lambda *_: None)
    return calls


def called(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_what_is_promised_is_there():
    assert not PROMISED - set(COMMAND.commands)


@pytest.mark.parametrize("name", sorted(COMMAND.commands))
def test_every_command_has_words_and_an_example_that_parses(name):
    shown = called(name, "--help")
    assert shown.exit_code == 0
    command = COMMAND.commands[name]
    assert command.help
    assert command.epilog
    words = command.epilog.removeprefix("Example: laser ").replace("'", "").split('"')
    parts = [piece for n, word in enumerate(words) for piece in ([word] if n % 2 else word.split())]
    assert parts[0] == name
    command.make_context(name, parts[1:])  # raises if an option is unknown


def test_settings_and_limit_reach_the_job(config, job):
    done = called("embed", "--config", config, "--set", "seed=3", "--limit", 20)
    assert done.exit_code == 0
    (given,) = job
    assert (given.run, given.seed) == ("r-limit-20", 3)
    assert (given.catalog.max_users, given.catalog.max_items) == (7, 20)  # never more than asked
    assert (config.parent / "artifacts" / "r-limit-20" / "run.log").is_file()
    assert given.comparison.rows_per_kind == 0  # a trial's few rows would say nothing of speed
    words = ("embed", "--config", config, "--set", "comparison.rows_per_kind=3", "--limit", 20)
    assert called(*words).exit_code == 0
    assert job[-1].comparison.rows_per_kind == 3


def test_a_refresh_is_a_run_with_a_past(config, job):
    words = ("refresh", "--config", config, "--run", "b", "--previous", "a")
    assert called(*words).exit_code == 3  # there is no run a
    assert not job
    assert called("refresh", "--config", config, "--run", "b").exit_code == 2
    assert called(*words[:-1], "").exit_code == 2  # no run is called so
    assert called(*words[:-1], "2026").exit_code == 3  # it might be


def test_a_config_is_named_from_where_one_stands(config, job):
    assert called("group", "--config", "r.yaml", "--limit", 3).exit_code == 0
    assert Path.cwd() == cli.ROOT


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_json_is_all_that_stdout_gets(config, job, command):
    job.error = CheckError("too little")
    done = called(command, "--config", config, "--json")
    told = json.loads(done.stdout)
    assert done.exit_code == told["exit_code"] == 5
    assert (told["command"], told["run"], told["error"]) == (command, "r", "too little")
    assert "a table" in done.stderr


def test_json_of_a_config_that_cannot_be_used_is_still_json(config):
    done = called("run", "--config", config, "--set", "seed=x", "--json")
    told = json.loads(done.stdout)
    assert done.exit_code == told["exit_code"] == 2
    assert "seed" in told["error"]
    assert "run" not in told


def test_a_wrong_limit_or_config_is_refused_before_anything(config, job):
    assert called("run", "--limit", 0).exit_code == 2
    done = called("run", "--config", config, "--set", "sed=1", "--limit", 5)
    assert done.exit_code == 2
    assert "nearest valid key is seed" in done.stderr
    assert not job
    assert not (config.parent / "artifacts").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("inspect",),
        ("validate", "--set", "seed=x"),
        ("run", "--dry-run", "--set", "seed=x"),
        ("plan", "--set", "seed=x"),
        ("run", "--limit", "5", "--set", "seed=x"),
        ("run", "--set", "artifacts=/proc/none"),
        ("validate", "--config", "nowhere.yaml"),
    ],
)
def test_whatever_is_refused_json_says_so(config, words):
    given = () if "--config" in words else ("--config", config)
    done = called(*words, *given, "--json")
    told = json.loads(done.stdout)
    assert done.exit_code == told["exit_code"]
    assert done.exit_code in (2, 3)
    assert told["error"]


def test_validate_tells_of_missing_models_and_tables_beside_a_wrong_setting(config):
    done = called("validate", "--config", config, "--set", "catalog.max_usrs=3", "--json")
    told = json.loads(done.stdout)
    assert done.exit_code == told["exit_code"] == 2
    first, *others = told["problems"]
    assert "catalog.max_usrs" in first
    assert "language_model.path" in "\n".join(others)


@pytest.mark.parametrize(
    "words",
    [
        ("nothing", "--json"),
        ("run", "--json", "--dryrun"),
        ("run", "--limit", "x", "--json"),
        ("refresh", "--json"),
        ("bench", "nothing", "--json"),
        ("init", "--json"),
        ("init", "none.csv", "two.csv", "--json"),
    ],
)
def test_wrong_words_are_told_as_json_too(words):
    done = called(*words)
    told = json.loads(done.stdout)
    assert done.exit_code == told["exit_code"] != 0
    assert told["error"]
    assert called(*(word for word in words if word != "--json")).stdout == ""


def test_a_config_is_proposed_as_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables = [ROOT / f"tests/bookshop/{name}.csv" for name in ("readers", "books", "ratings")]
    done = called("init", *tables, "--output", "own.yaml", "--json")
    told = json.loads(done.stdout)
    assert (told["exit_code"], told["config"]) == (0, "own.yaml")
    assert isinstance(told["doubts"], list)
    assert Path("own.yaml").is_file()


@pytest.mark.parametrize("words", [["schema"], ["--help"], ["run", "--help"]])
def test_whoever_reads_may_leave_before_the_end_of_any_answer(words):
    program = "import sys; sys.argv[0] = 'laser'; from jobs.command_line import main; main()"
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=ROOT, stdout=writes, stderr=subprocess.PIPE
    )
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_nobody_foresaw_is_told_as_json_too(config, monkeypatch):
    def boom(*_, **__):
        raise RuntimeError("odd")

    monkeypatch.setattr(cli, "execute", boom)
    done = called("embed", "--config", config, "--json")
    assert done.exit_code == 1
    assert "odd" in json.loads(done.stdout)["error"]


def test_a_store_that_is_only_looked_at_cannot_be_written(tmp_path):
    store = Store(tmp_path / "r")
    store.plan("x", {}).write_json("x.json", {}, 1)
    planned = PlannedStore(store)
    assert planned.plan("x", {}).is_done
    with pytest.raises(WouldWork, match="x: changed: `seed`"):
        planned.plan("x", {"seed": 2})
    with pytest.raises(WouldWork, match="y: not made yet"):
        planned.plan("y", {})
    with pytest.raises(WouldWork, match="x: is full of errors"):
        planned.set_aside("x", "is full of errors")
    store.plan("benchmark", {}).write_json("x.json", {}, 1)
    with pytest.raises(WouldWork, match="benchmark: measured anew"):
        planned.plan("benchmark", {})
    for work in (
        lambda: planned.files.write("a", b""),
        lambda: planned.files.remove(tmp_path / "r/x/x.json"),
        lambda: planned.plan("x", {}).write_json("x.json", {}, 2),
    ):
        with pytest.raises(WouldWork):
            work()
    assert (tmp_path / "r/x/x.json").is_file()


def test_logging_to_others_has_no_dry_run(config):
    assert called("log", "--config", config, "--dry-run").exit_code == 2


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--json",)])
def test_a_stage_of_an_empty_run_names_all_that_comes_first(config, words):
    done = called("check", "--config", config, *words)
    assert done.exit_code == 3
    for part in ("`laser catalog`, `laser embed`, `laser group`", "`laser run` does all of that"):
        assert part in done.stderr
    assert not (config.parent / "artifacts").exists()


@pytest.mark.parametrize("name", sorted(COMMAND.commands))
def test_help_shows_no_types_of_python(name):
    shown = called(name, "--help").stdout
    assert not re.search(r"<(bool|str|path|int|list.*)>", shown)


@pytest.mark.parametrize("name", sorted(COMMAND.commands))
def test_examples_set_what_can_be_set(name):
    words = shlex.split(COMMAND.commands[name].epilog.removeprefix("Example: laser "))
    given = COMMAND.commands[name].make_context(name, words[1:]).params
    config = ROOT / (given.get("config") or "conf/bench.yaml")
    load_config(config if config.exists() else ROOT / "conf/demo.yaml", given.get("settings") or [])


def test_status_of_no_run_names_those_that_are(config):
    done = called("status", "--config", config)
    assert done.exit_code == 3
    assert "no such run: r" in done.stderr


def test_the_schema_can_be_kept_in_a_file(tmp_path):
    assert json.loads(called("schema").stdout)["properties"]["run"]
    assert called("schema", "--output", tmp_path / "s.json").exit_code == 0
    assert called("schema", "--output", tmp_path / "s.json").exit_code == 2  # it stands there
    assert called("schema", "--output", tmp_path / "s.json", "--force").exit_code == 0
    assert called("schema", "--output", tmp_path / "no/s.json").exit_code == 2
    assert json.loads((tmp_path / "s.json").read_text())["properties"]["run"]


def test_a_config_without_limit_is_taken_as_it_is(config):
    assert asked(config, None) == (config, [])


def test_every_target_of_the_makefile_calls_a_command():
    rules = (ROOT / "Makefile").read_text()
    names = re.findall(r"\$\(LASER\) ([a-z-]+)", rules)
    assert len(names) > 20
    assert set(names) <= set(COMMAND.commands)


def test_every_dataset_is_made_by_a_command():
    assert not set(MADE_BY.values()) - set(COMMAND.commands)
    assert not set(SCHEMAS) - set(MADE_BY)


@pytest.mark.parametrize("package", ["pipeline", "features", "retrieval_pools", "jobs"])
def test_commands_that_messages_name_exist(package):
    texts = [path.read_text() for path in (ROOT / package).rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"`laser ([a-z-]+)", text)}
    assert not named - set(COMMAND.commands)
