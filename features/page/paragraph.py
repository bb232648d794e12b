"""What the summary says about one question, and whether that is good."""

from collections.abc import Mapping
from typing import Any, NamedTuple

GOOD, BAD, OPEN = "good", "bad", "open"  # of a result: open is what nobody knows yet

Report = Mapping[str, Any]


class Paragraph(NamedTuple):
    """What is known about one question; the first sentence is the verdict."""

    topic: str
    state: str
    sentences: list[str]
