"""The project's shape: import names, what an import loads, sizes, and the Makefile's targets."""

import ast
import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipeline", "retrieval_pools", "features", "jobs")
MOST_FUNCTION_LINES = 60
MOST_FILE_LINES = 300
COMMANDS = {
    "catalog": "catalog",
    "embeddings": "embed",
    "groups": "group",
    "knowledge": "generate",
    "features": "encode",
    "quality": "quality",
    "semantic-ids": "semantic-ids",
    "recommend": "recommend",
    "align-drafter": "align-drafter",
    "retriever": "retriever",
    "ctr": "check",
    "comparison": "compare",
    "export": "export",
    "report": "report",
    "plan": "plan",
    "plan-profile": "bench drafts",
    "run": "run",
}
MAKEFILE = (ROOT / "Makefile").read_text()
RULES = dict(re.findall(r"^([a-z][a-z-]*):[^=\n]*\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE))
PHONY = set(re.findall(r"[a-z][a-z-]*", MAKEFILE.split(".PHONY:")[1].split("\n\n")[0]))


def source_files():
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("name", PACKAGES)
def test_import_name_means_this_checkout(name):
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin, f"{name} is a bare namespace directory"
    assert Path(spec.origin).is_relative_to(ROOT / name)
    assert set(packages_distributions().get(name, [])) <= {"laser-knowledge"}


def test_no_test_folder_is_a_package_or_named_like_one():
    folders = [path for path in (ROOT / "tests").rglob("*") if path.is_dir()]
    assert not list((ROOT / "tests").rglob("__init__.py"))
    assert not [folder for folder in folders if folder.name in PACKAGES]


@pytest.mark.parametrize(
    "modules",
    [
        "pipeline, retrieval_pools, features",
        "jobs.run_all",
        "jobs.command_line",
    ],  # a run reads the config before all else
)
def test_what_is_imported_first_loads_no_heavy_library(modules):
    code = (
        f"import sys, {modules}\n"
        "print([name for name in ('torch', 'ray', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_functions_are_short():
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines"
        for path in source_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > MOST_FUNCTION_LINES
    ]
    assert not long


def test_files_are_short_and_say_what_they_are_for():
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in source_files()}
    assert len(texts) > len(PACKAGES)
    assert not [name for name, text in texts.items() if len(text.splitlines()) > MOST_FILE_LINES]
    assert not [name for name, text in texts.items() if not ast.get_docstring(ast.parse(text))]


def test_every_target_is_phony_and_documented():
    assert {*COMMANDS, "help", "setup", "assets", "test", "test-gpu", "check", "fix"} <= set(RULES)
    assert set(RULES) == PHONY
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(re.findall(r"^  ([a-z-]+)", listed.stdout, re.MULTILINE)) == set(RULES)


@pytest.mark.parametrize(("target", "command"), COMMANDS.items())
def test_stage_target_runs_its_command(target, command):
    assert f"$(LASER) {command} $(OPTIONS)" in RULES[target]


def make_status(*variables):
    """What `make status` gives Python, an argument a line; nothing is installed for it."""
    is_made = ["-o", ".venv/.installed", "-o", ".cache/assets/.unpacked"]
    command = ["make", "-s", "status", "LASER=printf '%s\\n'", *is_made, *variables]
    ours = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "ARGS", "CONFIG")  # of `make test` itself
    return subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name not in ours},
    )


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("ARGS=--set benchmark.batch_sizes=[1,16]", ["--set", "benchmark.batch_sizes=[1,16]"]),
        (
            'ARGS=--group g --text "They don\'t; also"',
            ["--group", "g", "--text", "They don't; also"],
        ),
        ("ARGS=--set 'artifacts=s3://b/f?a=1&b=2'", ["--set", "artifacts=s3://b/f?a=1&b=2"]),
    ],
)
def test_args_reach_the_job_as_the_shell_reads_them(variable, words):
    assert make_status(variable).stdout.splitlines()[-len(words) :] == words


@pytest.mark.parametrize("sign", "&;|<>`")
def test_what_the_shell_would_not_pass_on_is_refused(sign):
    done = make_status(f"ARGS=--set artifacts=s3://b/f?a=1{sign}b=2")
    assert done.returncode == 2
    assert f"ARGS has {sign} outside quotes" in done.stderr
    assert not done.stdout


def test_a_config_is_one_word_whatever_its_name():
    assert make_status("CONFIG=conf/it's a & b.yaml").stdout.splitlines()[-1] == (
        "conf/it's a & b.yaml"
    )


def test_lock_pins_everything_without_naming_a_place():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9._-]+==[A-Za-z0-9.]+", pin) for pin in pins)
    assert "torch==2.13.0" in pins
    assert not [pin for pin in pins if pin.startswith("nvidia")]
