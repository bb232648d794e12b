"""The tutorial is followed, step by step, with a tiny model; what it shows is what there is."""

import re
import shlex
import shutil
import sys
import types
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from jobs.command_line import app

pytestmark = [pytest.mark.ray, pytest.mark.assets]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "pipeline/docs"
FENCE = re.compile(r"^```(\S+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALLER = {  # a random model of byte-level tokens, and less of everything
    "language_model.gguf_file": "null",
    "prompts.max_tokens": "1500",
    "engine.max_length": "1600",
    "engine.draft_nodes": "8",
    "generation.max_new_tokens": "8",
    "generation.waves": "1",
    "comparison.rows_per_kind": "0",
    "ctr.models": "[din]",
    "ctr.controls": "[zeros]",
    "ctr.seeds": "2",
    "ctr.max_epochs": "1",
    "ctr.bootstrap": "100",
}
# By the tokenizer of another model, by a clock, or shown of a run that is not done.
VARIES = re.compile(
    r"longest of|^in all|^\s*\w+_\w+\s+[\d.]+ (s|min)\s|^jobs.run_all"
    r"|is writing it|\d{4}-\d\d-\d\dT\d\d|^comparison -|^last line"
)


def lines_of(text):
    """Lines that say something, without the white space that varies."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip(" .|")]


class Reader:
    """Somebody who follows the page in a folder of their own."""

    def __init__(self, folder, model, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        self.config = folder / "conf/bookshop.yaml"
        given = SMALLER | {"artifacts": folder / "artifacts", "language_model.path": model}
        self.settings = [
            part for key, value in given.items() for part in ("--set", f"{key}={value}")
        ]

    def runs(self, line):
        """What a line of the page prints."""
        words = [word.replace("conf/bookshop.yaml", str(self.config)) for word in shlex.split(line)]
        for ours in ("data/bookshop", "conf/schema.json"):
            words = [word.replace(ours, f"{self.folder}/{ours}") for word in words]
        assert words[0] == "laser", line
        settings = self.settings if "--config" in words else []
        done = CliRunner().invoke(app, [*words[1:], *settings])
        assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
        return done.output + self.log()

    def log(self):
        """The logs of all runs so far."""
        logs = sorted(self.folder.glob("artifacts/*/run.log"), key=lambda log: log.stat().st_mtime)
        return "\n".join(
            re.sub(r"^\d\d:\d\d:\d\d ", "", log.read_text(), flags=re.M) for log in logs
        )

    def writes(self, code, name):
        """Python of the page, in its folder."""
        self.monkeypatch.chdir(self.folder)
        module = types.ModuleType(name)
        self.monkeypatch.setitem(sys.modules, name, module)
        exec(compile(code, name, "exec"), module.__dict__)
        self.monkeypatch.chdir(ROOT)


@pytest.fixture
def reader(tmp_path, tiny_llm, monkeypatch):
    shutil.copytree(ROOT / "tests/bookshop", tmp_path / "data/bookshop")
    monkeypatch.setenv("COLUMNS", "200")
    return Reader(tmp_path, tiny_llm, monkeypatch)


@pytest.mark.timeout(600)
def test_the_tutorial_does_what_it_says(reader):
    blocks = FENCE.findall((DOCS / "tutorial.md").read_text())
    output, followed = "", 0
    for number, (kind, text) in enumerate(blocks):
        if kind == "yaml":  # what `laser init` has written, shortened
            shown = yaml.safe_load(text.replace("data/bookshop", f"{reader.folder}/data/bookshop"))
            assert is_part(shown, yaml.safe_load(reader.config.read_text()))
        elif kind == "python":
            reader.writes(text, f"tutorial_{number}")
        elif kind == "text":
            assert " ".join(text.split()).partition(":")[2].strip() in " ".join(
                output.split()
            ).replace(str(reader.folder) + "/", "")
        elif kind in ("sh", "console"):
            for line, shown in lines_with_output(kind, text):
                if line.startswith("laser"):
                    output = reader.runs(line)
                    followed += 1
                    require_shown(shown, output.replace(str(reader.folder) + "/", ""))
    assert followed >= 6
    assert (reader.folder / "artifacts/tuesday/report/report.html").is_file()


def is_part(some, whole):
    """Whether every value of a tree is in another one."""
    if isinstance(some, dict):
        return all(key in whole and is_part(value, whole[key]) for key, value in some.items())
    return some == whole


def lines_with_output(kind, text):
    """Commands, each with what is shown below it."""
    if kind == "sh":
        return [(line, "") for line in text.splitlines()]
    commands = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(line, shown) for line, _, shown in (one.partition("\n") for one in commands)]


def require_shown(shown, output):
    """Every line that the page shows is there, up to what is left out of it."""
    there = "\n".join(lines_of(output))
    for line in lines_of(shown):
        if not VARIES.search(line):
            assert line.partition(" ...")[0] in there, f"{line!r} is not in\n{output}"


def test_outputs_open_as_the_page_says(finished, tmp_path, monkeypatch):
    """Also tried on made-up rows, in test_outputs; here on those of a run."""
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts/demo").symlink_to(finished.root)
    monkeypatch.chdir(tmp_path)
    for kind, text in FENCE.findall((DOCS / "api.md").read_text()):
        if kind == "python" and "artifacts" in text:
            Path("conf").symlink_to(ROOT / "conf")
            exec(compile(text, "api.md", "exec"), {})
            break
    else:
        pytest.fail("api.md opens no run")
