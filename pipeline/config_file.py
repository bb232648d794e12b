"""conf/*.yaml -> validated settings.

An unknown key, a wrong type or a value out of range ends the run before any work, with the key,
the nearest valid key and the allowed range.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from pipeline.config import RunConfig
from pipeline.config_schema import section_in
from pipeline.errors import ConfigError
from pipeline.locations import without_secrets


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as the number it is in YAML 1.2; PyYAML's 1.1 takes it for text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def load_config(path: Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a YAML file and apply `a.b=value` overrides (the value is parsed as YAML).

    Raises:
        ConfigError: the file, a key or a value is unusable; all problems are listed.
    """
    overrides = list(overrides)
    tree = _tree(path, overrides)
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(without_secrets(_complaint(path, error, overrides))) from None


def usable_config(path: Path, overrides: Iterable[str] = ()) -> tuple[RunConfig, set[str]] | None:
    """A config without the keys that are wrong, and these, as `section.key`.

    For who wants to look at the rest of what a run needs; None if nothing can be made of it.
    """
    try:
        tree = _tree(path, list(overrides))
    except ConfigError:
        return None
    places = _wrong_places(tree)
    for place in places:
        _remove(tree, place)
    try:
        return RunConfig.model_validate(tree), {".".join(map(str, place)) for place in places}
    except ValidationError:
        return None


def _wrong_places(tree: Mapping[str, Any]) -> list[tuple[int | str, ...]]:
    try:
        RunConfig.model_validate(tree)
    except ValidationError as error:
        return [problem["loc"] for problem in error.errors()]
    return []


def _remove(tree: dict[str, Any], place: Sequence[int | str]) -> None:
    node: Any = tree
    for key in place[:-1]:
        node = node.get(key) if isinstance(node, dict) else None
    if place and isinstance(node, dict):
        node.pop(place[-1], None)


def _tree(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """What a file and overrides say, not judged.

    Raises:
        ConfigError: the file, or an override, is no YAML that could be a config.
    """
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(f"cannot read config {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # no UTF-8, a 31st of June
        raise ConfigError(without_secrets(f"{path} is not valid YAML: {error}")) from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} must hold a mapping of sections, not {type(tree).__name__}")
    for override in overrides:
        _apply_override(tree, override)
    return tree


def _complaint(path: Path, error: ValidationError, overrides: Sequence[str]) -> str:
    """All problems, each with the --set that it comes from, if from one."""
    problems = error.errors()
    blamed = [[one for one in overrides if _is_to_blame(one, problem)] for problem in problems]
    lines = [
        f"  {_explain(problem)}" + "".join(f" (from --set {one})" for one in own)
        for problem, own in zip(problems, blamed, strict=True)
    ]
    what = "what --set gives" if all(blamed) else str(path)
    if any(blamed) and not all(blamed):
        what = f"{path} with what --set gives"
    return "\n".join([f"{what} cannot be used:", *lines])


def _is_to_blame(override: str, problem: Mapping[str, Any]) -> bool:
    """Whether an override set the value at fault, or one that a rule over a section names."""
    keys = override.partition("=")[0].strip().split(".")
    location = [str(part) for part in problem["loc"]]
    if location[: len(keys)] == keys:
        return True
    is_inside = keys[: len(location)] == location
    return is_inside and re.search(rf"\b{re.escape(keys[-1])}\b", problem["msg"]) is not None


def _apply_override(tree: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    override = without_secrets(override)
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set takes section.key=value, got {override!r}")
    node = tree
    for key in keys[:-1]:
        child = node.setdefault(key, {})
        if not isinstance(child, dict):
            raise ConfigError(f"--set {override}: {key} is a value, not a section")
        node = child
    try:
        node[keys[-1]] = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        message = without_secrets(f"--set {override}: the value is not valid YAML: {error}")
        raise ConfigError(message) from None


def _explain(problem: Mapping[str, Any]) -> str:
    """One pydantic error as one sentence: key, what was given, what is allowed."""
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(location[-1], _keys_of(location[:-1]), n=1, cutoff=0.0)
        where = ".".join([*location[:-1], near[0]]) if near else "no key"
        return f"{key}: unknown key; the nearest valid key is {where}"
    if problem["type"] == "missing":
        return f"{key}: missing; add it"
    message = problem["msg"].removeprefix("Value error, ")
    given = problem["input"]
    if isinstance(given, dict | BaseModel):
        return f"{key}: {message}" if key else message
    return f"{key}: {message}; got {given!r}{_nearest_choice(problem)}"


def _nearest_choice(problem: Mapping[str, Any]) -> str:
    """Of several names the one that was probably meant, if one is like what was given."""
    names = re.findall(r"'([^']*)'", problem.get("ctx", {}).get("expected", ""))
    if problem["type"] != "literal_error" or not isinstance(problem["input"], str):
        return ""
    near = difflib.get_close_matches(problem["input"], names, n=1)
    return f"; the nearest is {near[0]!r}" if near else ""


def _keys_of(location: list[str]) -> list[str]:
    """Valid keys of the section at `location`."""
    section: Any = RunConfig
    for name in location:
        field = section.model_fields.get(name)
        if field is None:
            return []
        section = section_in(field.annotation)
        if section is None:
            return []
    return list(section.model_fields)
