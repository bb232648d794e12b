"""What Tab offers: in bash itself, from the run of the config, and never an error."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from typer._completion_shared import get_completion_script
from typer.testing import CliRunner

from jobs.command_line import app
from jobs.commands import completion
from pipeline.schemas import GROUPS, USERS
from pipeline.store import Store

ROOT = Path(__file__).resolve().parents[2]
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


@pytest.fixture
def config(tmp_path):
    """A config whose run has groups and users, beside two other runs."""
    tree = {
        "run": "r",
        "artifacts": str(tmp_path / "artifacts"),
        "catalog": {"source": "movielens", "path": "x"},
        "language_model": {"path": "x"},
        "encoder": {"path": "x"},
    }
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(tree))
    store = Store(tmp_path / "artifacts" / "r")
    row = {"route": "attribute", "distance": 0.0, "representative": True}
    groups = [("user", "1", "user/collab-0"), ("user", "2", "user/attr-x"), ("item", "1", "item/a")]
    rows = [
        row | dict(zip(("kind", "entity_id", "group_id"), group, strict=True)) for group in groups
    ]
    store.plan("groups", {}).write(pa.Table.from_pylist(rows, schema=GROUPS))
    users = [{"user_id": name, "attributes": []} for name in ("1", "12", "2")]
    store.plan("users", {}).write(pa.Table.from_pylist(users, schema=USERS))
    for name in ("monday", "tuesday"):
        (tmp_path / "artifacts" / name).mkdir()
        (tmp_path / "artifacts" / name / "run.json").write_text('{"previous": null}')
    return path


def offered(line, monkeypatch):
    """What a shell is told that splits no words itself."""
    monkeypatch.chdir(ROOT)
    asks = {"_LASER_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    asks["COLUMNS"] = "10000"  # as `main` has it
    env = asks | {"_TYPER_COMPLETE_ARGS": f"laser {line}"}
    answer = CliRunner().invoke(app, [], prog_name="laser", env=env)
    assert answer.stderr == ""
    return [word.partition("\t")[0] for word in answer.stdout.splitlines() if word]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("inspect --config {} --group ", ["item/a", "user/attr-x", "user/collab-0"]),
        ("inspect --config {} --group user/c", ["user/collab-0"]),
        ("inspect --config {} --entity ", ["user/", "item/"]),
        ("inspect --config {} --entity user/1", ["user/1", "user/12"]),
        ("refresh --config {} --previous ", ["monday", "r", "tuesday"]),
        ("refresh --config {} --previous monday --run t", ["tuesday"]),
        ("check --config {} --set plain_run=m", ["plain_run=monday"]),
        ("run --set generation.ru", ["generation.rule="]),
        (
            "run --set generation.rule=",
            [f"generation.rule={rule}" for rule in ("strict", "relaxed", "sampled")],
        ),
        ("run -s framework=tr", ["framework=trawl"]),
        ("run --set drafts.sources=[g", ["drafts.sources=[group]", "drafts.sources=[global]"]),
        ("run --set catalog.positive_rating=", ["catalog.positive_rating=null"]),
        ("plan --set plan.accelerator=h2", ["plan.accelerator=h200"]),
        ("run --config conf/dem", ["conf/demo.yaml"]),
        ("bench --config conf/dem", ["conf/demo.yaml"]),
        ("bench dr", ["drafts"]),
        ("run --set seed=", []),
        ("run --set nothing.of.the.kind=", []),
    ],
)
def test_what_is_offered(line, words, config, monkeypatch):
    assert offered(line.format(config), monkeypatch) == words


@pytest.mark.parametrize(
    "line",
    [
        "inspect --config nowhere.yaml --group ",
        "inspect --config {} --set run=none --group ",
        "inspect --config {} --set seed=x --entity item/",
        "inspect --config {} --set artifacts=s3://bucket/x --group ",
        "inspect --config {} --entity planet/",
    ],
)
def test_what_is_wrong_offers_nothing_and_says_nothing(line, config, monkeypatch):
    assert offered(line.format(config), monkeypatch) == []


def test_a_name_that_a_shell_might_run_is_not_offered(config, monkeypatch):
    names = [
        "good",
        "item/Children's",
        "x\\$(touch owned)",
        "`id`",
        "$HOME",
        'a"b',
        "a\nb",
        "\x1b[2J",
    ]
    monkeypatch.setattr(completion, "_runs", lambda ctx: names)
    line = f"refresh --config {config} --previous "
    assert offered(line, monkeypatch) == ["good", "item/Children's"]


BASH = r"""
compopt() { printf 'compopt %s\n' "$*"; }
COMP_POINT=${#COMP_LINE} COMP_CWORD=$(($# - 1)) COMP_WORDS=("$@")
_laser_completion "$LASER"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def in_bash(tmp_path):
    """What bash puts in the place of the last of its words, which it ends at = and : as well."""
    laser = tmp_path / "laser"
    laser.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from jobs.command_line import main\nmain()\n"
    )
    laser.chmod(0o755)
    names = {"prog_name": "laser", "complete_var": "_LASER_COMPLETE", "shell": "bash"}
    script = get_completion_script(**names)

    def complete(line, *words):
        done = subprocess.run(
            ["bash", "--norc", "-c", script + BASH, "bash", *words],
            cwd=ROOT,
            env=os.environ | {"COMP_LINE": line, "LASER": str(laser)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    return complete


@needs_bash
def test_bash_ends_words_at_equals_signs_and_sets_no_blank_behind_one(in_bash, config):
    run = ("laser", "run", "--set")
    line = "laser run --set generation.ru"
    assert in_bash(line, *run, "generation.ru") == ["compopt -o nospace", "generation.rule="]
    line = "laser run --set generation.rule="
    assert in_bash(line, *run, "generation.rule", "=") == ["strict", "relaxed", "sampled"]
    line = "laser run --set generation.rule=st"
    assert in_bash(line, *run, "generation.rule", "=", "st") == ["strict"]
    line = f"laser inspect --config {config} --text 'a b' --entity us"
    words = ("laser", "inspect", "--config", str(config), "--text", "'a b'", "--entity", "us")
    assert in_bash(line, *words) == ["compopt -o nospace", "user/"]


@needs_bash
def test_bash_gets_words_that_it_does_not_expand(in_bash):
    line = "laser run --set drafts.sources="
    found = in_bash(line, "laser", "run", "--set", "drafts.sources", "=")
    assert r"\[group\]" in found


def test_tab_loads_no_model(config):
    """Nothing that takes seconds, whatever is completed."""
    code = (
        "import sys\nsys.argv = ['laser']\nfrom jobs.command_line import main\n"
        "try:\n    main()\nexcept SystemExit:\n"
        "    print([one for one in ('torch', 'ray', 'transformers', 'numba', 'sklearn') "
        "if one in sys.modules])"
    )
    asks = {"_LASER_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    line = f"laser inspect --config {config} --group "
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | asks | {"_TYPER_COMPLETE_ARGS": line},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "user/collab-0" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
