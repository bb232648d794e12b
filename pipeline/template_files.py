"""A folder with a framework's wording -> `Templates`, checked before any work.

    user.jinja    what is asked about a user
    item.jinja    what is asked about an item
    domains.yaml  the words of the domains

Whoever edits them needs no code; every mistake is named with its file and line. `conf/prompts/` has
those of the frameworks.
"""

import difflib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from jinja2 import TemplateSyntaxError, meta, nodes
from pydantic import Field, ValidationError

from pipeline.errors import ConfigError
from pipeline.settings import Settings
from pipeline.templates import ENVIRONMENT, Domain, Templates, line_of

Kind = Literal["user", "item"]

_WORDS = ("domain", "person", "factors", "attributes")
_NAMES = {"user": (*_WORDS, "history", "categories"), "item": (*_WORDS, "title")}
_OTHER_DOMAIN = "thing"
# Two entities that have no letter in common where their texts begin, and one of whom nothing is
# known; the values are those that `pipeline.prompts` gives.
_EXAMPLES: Mapping[Kind, tuple[dict[str, Any], ...]] = {
    "user": (
        {
            "attributes": ["age 30", "town Oslo"],
            "history": [("Alpha", "5 stars"), ("Beta", "1 star")],
            "categories": ["Drama", ""],
        },
        {"attributes": ["home Rome"], "history": [("Zeta", "2 stars")], "categories": ["War"]},
        {"attributes": [], "history": [], "categories": []},
    ),
    "item": (
        {"title": "Alpha", "attributes": ["year: 1995", "genre: Drama"]},
        {"title": "Zeta", "attributes": ["maker: Smith"]},
        {"title": "", "attributes": []},
    ),
}


_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")  # where Python shows an object that it has no words for


class _Words(Settings):
    person: Annotated[str, Field(min_length=1)]
    factors: str = ""


class _Domains(Settings):
    domains: dict[str, _Words] = {}  # noqa: RUF012 (pydantic copies it)
    general: _Words


def load_templates(folder: Path) -> Templates:
    """Read and check the wording in `folder`.

    Raises:
        ConfigError: a file is missing or cannot be used; it is named, with the line.
    """
    general, domains = _read_domains(folder / "domains.yaml")
    user, item = (_read(folder / f"{kind}.jinja").removesuffix("\n") for kind in ("user", "item"))
    templates = Templates(user, item, domains, general, folder)
    for kind in ("user", "item"):
        _check(templates, kind)
    return templates


def late_tasks(templates: Templates, domain: str) -> list[str]:
    """What to say of templates that put the entity before most of what all prompts share.

    The engine computes a shared beginning once, so that this wording costs time in every row.
    """
    said = []
    for kind in ("user", "item"):
        one, other, bare = _tried(templates, kind, domain)
        shared = _shared_start(one, other)
        if 2 * shared < len(bare):
            said.append(
                f"{templates.file(kind)}: all prompts share their first {shared} characters only, "
                f"of about {len(bare)} that are the same in all of them; put the task first and "
                f"the {kind} last, since a shared beginning is computed once"
            )
    return said


def _check(templates: Templates, kind: Kind) -> None:
    """Refuse a template that some entity could not be asked about with."""
    text = templates.user if kind == "user" else templates.item
    file = templates.file(kind)
    tree = _parsed(templates, kind)
    _require_no_other_file(tree, file)
    _require_known_names(tree, kind, file)
    for domain in (*templates.domains, _OTHER_DOMAIN):
        tried = _tried(templates, kind, domain)
        if found := next(filter(None, map(_ADDRESS.search, tried)), None):
            raise ConfigError(
                f"{file}: it writes {found[0]!r} into a prompt, a place in memory that is another "
                "in every run; did you forget `| join(', ')` or a pair of parentheses?"
            )
        if not all(asked.strip() for asked in tried):
            raise ConfigError(
                f"{file}, line {_first_line(text)}: it makes an empty prompt of some {kind}s, for "
                f"the domain {domain}; write what to ask also where nothing is known"
            )


def _parsed(templates: Templates, kind: Kind) -> nodes.Template:
    """A template as it was read.

    Raises:
        ConfigError: it is none.
    """
    file = templates.file(kind)
    try:
        templates.compiled(kind)
        return ENVIRONMENT.parse(
            templates.user if kind == "user" else templates.item, filename=file
        )
    except TemplateSyntaxError as error:
        raise ConfigError(f"{file}, line {error.lineno}: {error.message}") from None
    except (RecursionError, MemoryError, SyntaxError):  # of the compilers of Jinja and Python
        raise ConfigError(f"{file}: an expression is nested too deep; write it in steps") from None


def _require_no_other_file(tree: nodes.Template, file: str) -> None:
    kinds = (nodes.Include, nodes.Extends, nodes.Import, nodes.FromImport)
    for node in tree.find_all(kinds):
        raise ConfigError(f"{file}, line {node.lineno}: a template cannot use another file")


def _require_known_names(tree: nodes.Template, kind: Kind, file: str) -> None:
    names = _NAMES[kind]
    unknown = meta.find_undeclared_variables(tree) - {*names, *ENVIRONMENT.globals}
    for node in tree.find_all(nodes.Name):
        if node.name in unknown:
            near = difflib.get_close_matches(node.name, names, n=1)
            nearest = f"; the nearest is {near[0]}" if near else ""
            raise ConfigError(
                f"{file}, line {node.lineno}: {node.name!r} is unknown; about {_an(kind)} there "
                f"are {', '.join(names)}{nearest}"
            )


def _tried(templates: Templates, kind: Kind, domain: str) -> list[str]:
    """Prompts about the examples.

    Raises:
        ConfigError: there is one that cannot be written.
    """
    template, words = templates.compiled(kind), templates.words(domain)
    common = {"domain": domain, "person": words.person, "factors": words.factors}
    try:
        return [template.render(**common, **example) for example in _EXAMPLES[kind]]
    except Exception as error:  # of any expression that somebody wrote
        file = templates.file(kind)
        raise ConfigError(
            f"{file}, line {line_of(error, file)}: it cannot be filled in for every {kind}: {error}"
        ) from None


def _read_domains(path: Path) -> tuple[Domain, dict[str, Domain]]:
    """The words of any domain, and of those with words of their own."""
    try:
        tree = yaml.safe_load(_read(path))
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date that there is not, say
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    try:
        found = _Domains.model_validate(tree)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc'])) or 'the file'}: {problem['msg']}"
            for problem in error.errors()
        ]
        raise ConfigError(f"{path}: {'; '.join(problems)}; see conf/prompts/kar/") from None
    domains = {name.lower(): _domain(words) for name, words in found.domains.items()}
    if len(domains) < len(found.domains):
        names = Counter(name.lower() for name in found.domains)
        twice = ", ".join(name for name, times in names.items() if times > 1)
        raise ConfigError(f"{path}: domains: {twice} is spelled in two ways; keep one of them")
    return _domain(found.general), domains


def _domain(words: _Words) -> Domain:
    return Domain(words.person, words.factors)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # an editor may have marked it as UTF-8
    except FileNotFoundError:
        raise ConfigError(
            f"{path} is missing; copy it from conf/prompts/, from the folder of the framework"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}") from None


def _shared_start(one: str, other: str) -> int:
    """Characters that two texts begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _first_line(text: str) -> int:
    """Number of the first line behind the comments at the top."""
    opening = len(text) - len(text.lstrip())
    while text.startswith("{#", opening) and "#}" in text[opening:]:
        opening = text.index("#}", opening) + 2
        opening += len(text[opening:]) - len(text[opening:].lstrip())
    return text.count("\n", 0, opening) + 1


def _an(kind: Kind) -> str:
    return "an item" if kind == "item" else "a user"
