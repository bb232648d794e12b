"""Numbers as people read them. What is missing or not a number reads "n/a"."""

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

MISSING = "n/a"
_LONGEST = 300  # characters of a title
_MINUS = "\N{MINUS SIGN}"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:s|min|h)\b)")
_PLURAL = re.compile(  # what reports count
    r"\b(answer|arm|dataset|group|interaction|item|line|model|row|text|token|user|vector|version|"
    r"wave)s\b"
)


def is_number(value: object) -> bool:
    """Whether `value` is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def count(value: float | None) -> str:
    """12345 -> 12,345; from ten million on, 12.3 M."""
    if value is None or not is_number(value):
        return MISSING
    return f"{value / 1e6:,.1f} M" if abs(value) >= 1e7 else f"{value:,.0f}"


def counted(value: float | None, words: str) -> str:
    """A number of things, `words` in the plural: 1 row, 2 rows, 1 entity by behaviour."""
    return f"{count(value)} {_singular(words) if value == 1 else words}"


def _singular(words: str) -> str:
    words = words.replace("means of their", "mean of its").replace("entities", "entity")
    return _PLURAL.sub(r"\1", words, count=1)


def clipped(title: str) -> str:
    """A title that takes a few lines at most, whatever stands in its cell."""
    return (
        title if len(title) <= _LONGEST else title[:_LONGEST].rstrip() + "\N{HORIZONTAL ELLIPSIS}"
    )


def decimal(value: float | None, digits: int = 2) -> str:
    """A fixed number of decimals."""
    return f"{value:,.{digits}f}" if value is not None and is_number(value) else MISSING


def significant(value: float | None, digits: int = 2) -> str:
    """The leading digits: 0.0123, 2.6e-6."""
    if value is None or not is_number(value):
        return MISSING
    return f"{value:.{digits}g}".replace("e-0", "e-")


def signed(value: float | None, digits: int = 4) -> str:
    """+0.0123, with a true minus sign where it is negative."""
    if value is None or not is_number(value):
        return MISSING
    return f"{value:+.{digits}f}".replace("-", _MINUS)


def percent(value: float | None) -> str:
    """A share: 0.532 -> 53 %, 0.032 -> 3.2 %; some is not none: 0.0001 -> under 0.1 %."""
    if value is None or not is_number(value):
        return MISSING
    if 0 < value < 0.0005:
        return "under 0.1 %"
    return f"{100 * value:.{0 if value == 0 or value >= 0.1 else 1}f} %"


def unbroken(text: str) -> str:
    """No line ends between a number and its unit."""
    return _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", text)


def times(value: float | None) -> str:
    """A ratio: 2.314 -> 2.31x."""
    return (
        f"{value:.2f}\N{MULTIPLICATION SIGN}" if value is not None and is_number(value) else MISSING
    )


def duration(seconds: float | None) -> str:
    """0.42 s, 42 s, 3 min 20 s, 2 h 05 min."""
    if seconds is None or not is_number(seconds):
        return MISSING
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def fact(value: object) -> str:
    """Any small JSON value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and is_number(value):
        return f"{value:,.4g}".replace("-", _MINUS)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(fact(entry) for entry in value) or "none"
    if value is None or isinstance(value, float):
        return MISSING
    return str(value)


def flat_facts(facts: Mapping[str, Any], limit: int) -> list[tuple[str, str]]:
    """The first `limit` scalar facts, nested names joined, as (name, text) pairs."""
    pairs: list[tuple[str, str]] = []
    for name, value in facts.items():
        words = name.replace("_", " ")
        if isinstance(value, Mapping):
            pairs += [(f"{words}: {key}", text) for key, text in flat_facts(value, limit)]
        elif not isinstance(value, list):
            pairs.append((words, fact(value)))
    return pairs[:limit]


def listed(names: Sequence[str]) -> str:
    """a, b and c; nothing of none."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def differences(plain: str, other: str) -> list[tuple[str, bool]]:
    """`other` in pieces of whole words, each marked True where it departs from `plain`."""
    words, before = (re.findall(r"\s*\S+", text) for text in (other, plain))
    matcher = difflib.SequenceMatcher(None, before, words, autojunk=False)
    pieces: list[tuple[str, bool]] = []
    for tag, _, _, start, stop in matcher.get_opcodes():
        text = "".join(words[start:stop])
        if tag == "equal" or not text:
            pieces.append((text, False))
        else:
            word = text.lstrip()
            pieces += [(text[: len(text) - len(word)], False), (word, True)]
    return [piece for piece in pieces if piece[0]]


def or_unknown(value: float | None, style: str = ".4f") -> str:
    """A number for the log, or that nobody knows it."""
    return "unknown" if value is None else format(value, style)
