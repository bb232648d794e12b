"""The settings as JSON Schema, for editors, and as dotted keys, for shells.

What a setting means is written once, as the comment beside it in `pipeline/*config.py`; here the
comments become the schema's descriptions.
"""

import ast
import inspect
import io
import sys
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel


def json_schema(config: type[BaseModel]) -> dict[str, Any]:
    """JSON Schema (2020-12) of a config file."""
    schema = config.model_json_schema()
    definitions = {config.__name__: schema} | schema.get("$defs", {})
    for section in [config, *_sections(config)]:
        properties = definitions[section.__name__]["properties"]
        for name, meaning in meanings(section).items():
            properties[name]["description"] = meaning
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def dotted_keys(config: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Every setting that holds a value, as `section.key`, with what it means."""
    known, found = meanings(config), {}
    for name, field in config.model_fields.items():
        section = section_in(field.annotation)
        if section is None:
            found[prefix + name] = known.get(name, "")
        else:
            found |= dotted_keys(section, f"{prefix}{name}.")
    return found


def values_of(config: type[BaseModel], key: str) -> list[str]:
    """What a setting may be, as it is written in YAML, where that can be listed; else nothing."""
    *sections, name = key.split(".")
    for section in sections:
        field = config.model_fields.get(section)
        inner = section_in(field.annotation) if field else None
        if inner is None:
            return []
        config = inner
    field = config.model_fields.get(name)
    return list(_values(field.annotation)) if field else []


def _values(annotation: Any) -> Iterator[str]:
    """Of names, switches and `auto`; of a list each by itself."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation is bool:
        yield from ("true", "false")
    elif annotation is NoneType:
        yield "null"
    elif origin is Literal:
        yield from map(str, inner)
    elif origin is list:
        yield from (f"[{value}]" for value in _values(inner[0]))
    elif origin is Annotated:
        yield from _values(inner[0])
    elif origin in (Union, UnionType):
        for one in inner:
            yield from _values(one)


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The section in `X` or `X | None`."""
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _sections(config: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """All sections in a section, at any depth, each once."""
    found: dict[str, type[BaseModel]] = {}
    for field in config.model_fields.values():
        if (section := section_in(field.annotation)) is not None:
            found |= {one.__name__: one for one in [section, *_sections(section)]}
    yield from found.values()


def meanings(section: type[BaseModel]) -> Mapping[str, str]:
    """The comment of each setting of a section: in its line, or in the lines above it."""
    comments, classes = _read(section.__module__)
    found = {}
    for node in classes[section.__name__].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            said = [*_above(comments, node.lineno), *_inside(comments, node)]
            if said:
                found[node.target.id] = " ".join(said)
    return found


@cache  # a shell waits for all sections; to read a file once for each of them takes too long
def _read(module: str) -> tuple[dict[int, tuple[str, bool]], dict[str, ast.ClassDef]]:
    """Comments by line, each with whether it fills its line; and classes by name."""
    source = inspect.getsource(sys.modules[module])
    comments = {
        token.start[0]: (token.string.lstrip("# "), token.line.lstrip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    return comments, classes


def _above(comments: Mapping[int, tuple[str, bool]], line: int) -> list[str]:
    """Comments that fill the lines right above a line."""
    said: list[str] = []
    while (comment := comments.get(line := line - 1)) is not None and comment[1]:
        said.insert(0, comment[0])
    return said


def _inside(comments: Mapping[int, tuple[str, bool]], node: ast.AnnAssign) -> list[str]:
    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return [comments[line][0] for line in lines if line in comments]
