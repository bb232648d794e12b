"""`laser`: every command has words and an example, and hands on what it was given."""

import json
import re
import sys
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from jobs import cli
from jobs.command_line import app
from jobs.commands import running
from jobs.commands.options import asked, complete_config, complete_setting
from jobs.commands.planned_store import PlannedStore, WouldWork
from jobs.commands.stages import COMMANDS
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


def test_a_refresh_is_a_run_with_a_past(config, job):
    words = ("refresh", "--config", config, "--run", "b", "--previous", "a")
    assert called(*words).exit_code == 3  # there is no run a
    assert not job
    assert called("refresh", "--config", config, "--run", "b").exit_code == 2


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


def test_what_nobody_foresaw_is_told_as_json_too(config, monkeypatch):
    def boom(*_):
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


def test_shells_complete_configs_and_settings(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert "conf/demo.yaml" in list(complete_config("conf/d"))
    found = dict(complete_setting("catalog.positive"))
    assert list(found) == ["catalog.positive_rating="]
    assert "label = rating >= positive_rating" in found["catalog.positive_rating="]


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
