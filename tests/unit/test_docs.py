"""The pages: their blocks run, their commands parse, and what they name is there."""

import ast
import importlib
import inspect
import re
import shlex
import sys
import textwrap
import types
from pathlib import Path
from typing import NamedTuple, get_type_hints

import pytest
import yaml
from typer.main import get_command

from features import frameworks
from jobs.command_line import app
from pipeline.config import RunConfig
from pipeline.config_file import load_config
from pipeline.config_schema import dotted_keys

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "pipeline/docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\S*)(?: ([^\n]*))?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
KINDS = {"python", "yaml", "sh", "console", "text", "dockerfile"}
NOT_RUN = "not run: "
MOST_NOT_RUN = 4
COMMANDS = get_command(app).commands
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
TREE = yaml.safe_load((ROOT / "conf/tables.yaml").read_text())
KEYS = set(dotted_keys(RunConfig))
SECTIONS = {key.rsplit(".", depth)[0] for key in KEYS for depth in range(1, key.count(".") + 1)}
OURS_TO_MAKE = {"conf/bookshop.yaml", "conf/mine.yaml", "conf/schema.json", "conf/prompts/brief"}
OURS_TO_MAKE |= {"features/frameworks/brief.py"}


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    kind: str
    note: str
    text: str

    def __str__(self):
        return f"{self.page.stem}:{self.line}"


def blocks_of(page):
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        indent, kind, note, body = match.groups(default="")
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page, line, kind, note, textwrap.dedent(body) if indent else body)


def prose_of(page):
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def codes_in(text):
    """What stands in backticks."""
    return [two or one for two, one in re.findall(r"``(.+?)``|`([^`\n]+)`", text)]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def of_kind(*kinds, run=True):
    return [one for one in BLOCKS if one.kind in kinds and run is not one.note.startswith(NOT_RUN)]


def commands_in(block):
    """Command lines of a block, one for each, as words."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.kind == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for line in whole_lines(lines):
        for part in re.split(r" && | \|\| ", line):
            if words := shlex.split(part, comments=True):
                yield words


def whole_lines(lines):
    """Lines, those together that a quotation goes on through."""
    begun = ""
    for line in lines:
        begun += line
        if begun.count("'") % 2 == 0 and begun.count('"') % 2 == 0:
            yield begun
            begun = ""


def commands_in_prose():
    for page in PAGES:
        for code in codes_in(prose_of(page)):
            if re.match(r"(laser|make) [a-z]", code) and "…" not in code and "..." not in code:
                yield page, code


EVERY_COMMAND = [
    pytest.param(words, id=f"{block}-{' '.join(words)[:40]}")
    for block in of_kind("sh", "console")
    for words in commands_in(block)
    if Path(words[0]).name in ("laser", "make")
] + [
    pytest.param(shlex.split(code.replace("COMMAND", "run")), id=f"{page.stem}-{code[:40]}")
    for page, code in commands_in_prose()
]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_says_what_it_is(block):
    assert block.kind in KINDS
    assert not block.note or block.note.startswith(NOT_RUN)
    assert "`" not in block.note  # or it is no fence


def test_few_blocks_are_not_run():
    assert len([one for one in BLOCKS if one.note]) <= MOST_NOT_RUN


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    """A folder with the project's configs; what a block registers is forgotten after it."""
    monkeypatch.chdir(tmp_path)
    Path("conf").symlink_to(ROOT / "conf")
    monkeypatch.setattr(frameworks, "REGISTRY", dict(frameworks.REGISTRY))
    return tmp_path


def execute(block, monkeypatch):
    module = types.ModuleType(f"block_{block.page.stem}_{block.line}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    code = "\n" * block.line + block.text  # so that a traceback names the line of the page
    exec(compile(code, str(block.page), "exec"), module.__dict__)


RUN_HERE = [
    block for block in of_kind("python") if not re.search("artifacts|data/bookshop", block.text)
]


@pytest.mark.parametrize("block", RUN_HERE, ids=str)
def test_python_runs(block, workshop, monkeypatch):
    execute(block, monkeypatch)


def test_what_is_run_elsewhere_needs_a_run():
    elsewhere = {block.page.stem for block in of_kind("python")} - {
        one.page.stem for one in RUN_HERE
    }
    assert elsewhere <= {"outputs", "tutorial"}  # test_outputs, test_docs_commands


@pytest.mark.parametrize("block", of_kind("python", run=False), ids=str)
def test_python_that_is_not_run_is_python(block):
    ast.parse(block.text)


def merged(base, over):
    both = dict(base)
    for key, value in over.items():
        nested = isinstance(value, dict) and isinstance(base.get(key), dict)
        both[key] = merged(base[key], value) if nested else value
    return both


@pytest.mark.parametrize("block", of_kind("yaml"), ids=str)
def test_configs_load(block, tmp_path):
    """A fragment belongs into a config of one's own."""
    tree = yaml.safe_load(block.text)
    whole = tree if "run" in tree else merged(TREE, tree)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(whole))
    load_config(file)


def parsed(words):
    """The parameters of a `laser` line."""
    name, *rest = words[1:]
    if name.startswith("--"):
        return {}
    command = COMMANDS[name]
    # What a person fills in is left out of prose: `laser refresh --previous`.
    context = command.make_context(name, rest, resilient_parsing=True)
    if "--previous" not in words or "--run" in words:
        command.make_context(name, rest) if rest else None
    return context.params


@pytest.mark.parametrize("words", EVERY_COMMAND)
def test_commands_are_ones(words):
    if words[0] == "make":
        words, given = words[1:], dict(re.findall(r"([A-Z]+)=(.*)", "\n".join(words)))
        targets = [word for word in words if "=" not in word]
        assert set(targets) <= TARGETS
        settings = re.findall(r"--set\s+(\S+)", given.get("ARGS", "").replace("'", ""))
        config = given.get("CONFIG")
    else:
        found = parsed(words)
        settings, config = found.get("settings") or [], found.get("config")
    known = config is not None and (ROOT / str(config)).is_file()
    file = ROOT / str(config) if known else ROOT / "conf/tables.yaml"
    whole = [one for one in settings if not re.search(r"[$<>.]{3}|\$", one)]
    load_config(file, whole)


def test_every_command_target_and_job_of_a_run_is_listed():
    page = (ROOT / "pipeline/docs/stages.md").read_text()
    told = {code.split()[1] for code in codes_in(page) if code.startswith("laser ")}
    assert told - {"COMMAND", "--install-completion"} == set(COMMANDS)
    made = {code.split()[1] for code in codes_in(page) if code.startswith("make ")}
    ours = {"help", "setup", "assets", "lock", "check", "fix", "clean"}
    assert {target for target in TARGETS - ours if not target.startswith("test")} <= made
    for job in re.findall(r"^\|[^|]*\|[^|]*\| `(\w+)` \|", page, re.MULTILINE):
        assert (ROOT / f"jobs/{job}.py").is_file(), job


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_jobs_are_ones(page):
    for name in re.findall(r"python -m jobs\.([a-z_]+)", page.read_text()):
        assert (ROOT / f"jobs/{name}.py").is_file(), name


def slugs(page):
    """Anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.strip().replace(" ", "-") for title in kept}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), target
        assert not anchor or anchor in slugs(there), target


def test_every_page_is_linked_from_the_entrance():
    linked = set(re.findall(r"\]\((pipeline/docs/[^)#]+)", PAGES[0].read_text()))
    pages = {page.relative_to(ROOT).as_posix() for page in PAGES[1:]}
    pictures = {picture for picture in linked if picture.endswith(".png")}
    assert linked - pictures == pages
    assert all((ROOT / picture).is_file() for picture in pictures)


FILE = re.compile(r"^(pipeline|jobs|features|retrieval_pools|conf|tests|\.ci)/[\w./*-]+$")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_pages_name_is_there(page):
    for code in codes_in(prose_of(page)):
        name = code.removesuffix("/")
        if FILE.match(name) and name not in OURS_TO_MAKE:
            assert list(ROOT.glob(name)), name
        if key := re.match(r"^([a-z_]+(?:\.[a-z0-9_]+)+)(?:[:= ].*)?$", code):
            section = key[1].partition(".")[0]
            if section in RunConfig.model_fields and not is_module(key[1]):
                assert key[1] in KEYS | SECTIONS, code


def is_module(name):
    """`features.frameworks` is a package, `pipeline.docs` none of the config."""
    return (ROOT / name.replace(".", "/")).exists() or name.endswith(
        (".py", ".json", ".jsonl", ".log")
    )


def test_exit_codes_are_those_of_the_code():
    page = (ROOT / "pipeline/docs/operations.md").read_text()
    table = page.partition("## Exit codes")[2].partition("##")[0]
    told = {
        int(code)
        for cell in re.findall(r"^\| ([\d, ]+) \|", table, re.M)
        for code in cell.split(",")
    }
    from jobs.show_status import UNFINISHED
    from pipeline import errors

    ours = {
        one.exit_code
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, errors.UserError)
    }
    assert told == {0, UNFINISHED, 130, 143} | ours


def messages():
    """All text constants of the program, with … for what an f-string puts in."""
    for package in ("pipeline", "jobs", "features", "retrieval_pools"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "…"
                        for part in node.values
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield re.sub(r"%[-.\d]*[a-z%]", "…", node.value)
    yield (ROOT / "Makefile").read_text()


def test_messages_are_quoted_as_they_are():
    """First cells of the tables of troubleshooting that quote a message."""
    known = [" ".join(one.split()) for one in messages()]
    page = prose_of(ROOT / "pipeline/docs/troubleshooting.md")
    quoted = [
        code
        for cell in re.findall(r"^\| (.+?) \| ", page, re.MULTILINE)
        for code in codes_in(cell)
        if len(code) > 30 and " " in code
    ]
    assert len(quoted) > 35
    strange = [message for message in quoted if not any(map(quotes(message).search, known))]
    assert not strange


def quotes(message):
    """What finds a message whose … may be anything."""
    parts = [part.strip() for part in message.split("…") if len(part.strip()) > 3]
    return re.compile(".*?".join(map(re.escape, parts)))


def test_what_may_be_called_is_documented_and_typed():
    page = (ROOT / "pipeline/docs/api.md").read_text()
    names = re.findall(r"`((?:pipeline|retrieval_pools|jobs)\.[a-z_.]+\.\w+)`", page)
    assert len(names) > 15
    for name in names:
        module, _, attribute = name.rpartition(".")
        one = getattr(importlib.import_module(module), attribute)
        assert inspect.getdoc(one), name
        public = [one] if inspect.isfunction(one) else list(vars(one).values())
        for function in public:
            if inspect.isfunction(function) and not function.__name__.startswith("_"):
                assert inspect.getdoc(function), f"{name}.{function.__name__}"
                hints = get_type_hints(function)
                missing = set(inspect.signature(function).parameters) - {"self", *hints}
                assert not missing, f"{name}.{function.__name__}"
                assert "return" in hints


def test_the_job_on_kubernetes_is_one():
    job = yaml.safe_load((ROOT / "conf/kubernetes/rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[0] == "laser"
    assert words[1] in COMMANDS
    cluster = job["spec"]["rayClusterSpec"]
    lock = (ROOT / "requirements.lock").read_text()
    assert f"\nray=={cluster['rayVersion']}\n" in lock
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    containers = [one for group in groups for one in group["template"]["spec"]["containers"]]
    page = (ROOT / "pipeline/docs/operations.md").read_text()
    (image,) = {one["image"] for one in containers}
    assert f"docker build -t {image} ." in page
    (secret,) = {one["envFrom"][0]["secretRef"]["name"] for one in containers}
    assert f"create secret generic {secret} " in page
    assert all(group["rayStartParams"] is not None for group in groups)
    assert all(one["resources"]["requests"] == one["resources"]["limits"] for one in containers)


def test_the_sample_of_airflow_calls_commands_that_are_there():
    (block,) = [one for one in of_kind("python", run=False) if "airflow" in one.text]
    texts = [
        node.value
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.Constant) and ".venv/bin/laser" in str(node.value)
    ]
    assert len(texts) == 2
    for text in texts:
        (call,) = [part for part in text.split("&&") if ".venv/bin/laser" in part]
        assert shlex.split(call)[1] in COMMANDS
    # A run started by hand has no logical date, and with it none of what is made from it.
    assert not re.search(r"\{\{ *(ds|ts|data_interval|logical_date)", block.text)


def test_decisions_are_dated_and_some_say_no():
    log = PAGES[0].read_text().partition("## Decisions")[2]
    assert "\n## " not in log  # the last section: the entrance is no log
    entries = re.findall(r"^\*\*(\d{4}-\d\d-\d\d) (\(negative\) )?.+\*\*$", log, re.MULTILINE)
    assert len(entries) > 30
    assert sorted((date for date, _ in entries), reverse=True) == [date for date, _ in entries]
    assert len([no for _, no in entries if no]) > 5


def test_the_first_screen_starts_a_newcomer():
    screen = "\n".join(PAGES[0].read_text().splitlines()[:30])
    for wanted in ("make run", "two minutes", "4 GB", "some four", "laser init", "tutorial"):
        assert wanted in " ".join(screen.split()), wanted
