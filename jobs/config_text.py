"""A proposed config as YAML, with what was seen beside every line."""

import json
import re
import textwrap
from collections.abc import Sequence

import yaml

from pipeline.table_choice import Choice
from pipeline.table_guess import Attributes

_LONGEST = 160  # characters of a comment beside a line; a longer one stands above it
_WRAP = textwrap.TextWrapper(_LONGEST, break_on_hyphens=False, break_long_words=False)
_CONTROL = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]+")
_PLAIN = re.compile(r"([^\W\d]|[./](?=\w))[\w./-]*")


class ConfigText:
    """Lines of YAML; `doubts` collects those that the writer is not sure of."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self.doubts: list[str] = []

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"

    def remark(self, text: str, depth: int = 0) -> None:
        """Lines that are only a comment."""
        for line in _WRAP.wrap(_one_line(text)):
            self._lines.append(f"{'  ' * depth}# {line}")

    def doubt(self, text: str, doubt: str, depth: int) -> None:
        """A remark that a person should look at."""
        self.remark(f"check: {text}: {doubt}", depth)
        self.doubts.append(f"{_one_line(text)}: {_one_line(doubt)}")

    def section(self, name: str, depth: int = 0, seen: str = "") -> None:
        """The name of what follows, deeper."""
        if not depth:
            self._lines.append("")
        self._put(f"{'  ' * depth}{name}:", seen, depth)

    def value(
        self, name: str, value: str | float | None, depth: int, seen: str = "", doubt: str = ""
    ) -> None:
        """One setting."""
        self._add(f"{name}: {scalar(value)}", depth, seen, doubt)

    def choice(self, name: str, choice: Choice, depth: int) -> None:
        """A setting that names a column."""
        self.value(name, choice.column, depth, choice.seen, choice.doubt)

    def names(self, name: str, names: Sequence[str], depth: int, seen: str = "") -> None:
        """A setting that lists names."""
        listed = ", ".join(map(scalar, names))
        self._put(f"{'  ' * depth}{name}: [{listed}]", seen, depth)

    def attributes(self, attributes: Attributes, depth: int) -> None:
        """The attributes of an entity, and below what is left out."""
        if attributes.kept:
            self.section("attributes", depth)
        for choice in attributes.kept:
            self._add(f"- {scalar(choice.column)}", depth + 1, choice.seen, choice.doubt)
        for choice in attributes.left_out:
            self.remark(f"left out: {choice.column}, {choice.seen}", depth + bool(attributes.kept))

    def _add(self, line: str, depth: int, seen: str, doubt: str) -> None:
        told = "; ".join(part for part in (doubt and f"check: {doubt}", seen) if part)
        self._put("  " * depth + line, told, depth)
        if doubt:
            self.doubts.append(f"{_one_line(line)}: {_one_line(doubt)}")

    def _put(self, line: str, told: str, depth: int) -> None:
        """A line with a comment beside it, or above where that is long."""
        told = _one_line(told)
        if len(told) > _LONGEST:
            self.remark(told, depth)
            told = ""
        self._lines.append(f"{line}  # {told}" if told else line)


def scalar(value: str | float | None) -> str:
    """A value that YAML reads back as it is."""
    if value is None:
        return "null"
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and _reads_back(value):
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return quoted if _reads_back(quoted, value) else json.dumps(value)


def _reads_back(text: str, value: str | None = None) -> bool:
    try:
        return yaml.safe_load(text) == (text if value is None else value)
    except yaml.YAMLError:
        return False


def _one_line(text: str) -> str:
    line = _CONTROL.sub(" ", text).strip()
    return "".join(character for character in line if character.isprintable())
