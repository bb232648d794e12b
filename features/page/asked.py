"""What the model was asked for each text of the explorer: made again, and checked by its hash.

Nothing stores prompts, so they are made by the code that made them; one whose hash is not the
row's is not what was asked, and is not shown. Prompts share most of their lines (the task, titles),
so each line stands once, and a prompt is a list of places among them.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
import re
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.prompts import Kind, Prompts, prompt_hash

log = logging.getLogger(__name__)

_KINDS: tuple[Kind, ...] = ("user", "item")
_MOST_CHARACTERS = 8_000_000  # of all lines: some four megabytes of page
_AT_ONCE = 1000
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_LONG = 160  # characters of a line that is cut behind its commas: a list may stand on one line
_BEHIND_COMMA = re.compile(r"(?<=[,;] )")


@dataclass
class Asked:
    """Prompts by their lines; None is a prompt that cannot be shown."""

    lines: list[str] = field(default_factory=list)
    prompts: list[list[int] | None] = field(default_factory=list)
    unlike: int = 0  # prompts that come out otherwise than they were asked
    no_room: int = 0


def asked_of(rows: pa.Table, prompts: Prompts) -> Asked:
    """The prompts of some rows of KNOWLEDGE (kind, entity_id, prompt_hash), in their order."""
    found: list[str | None] = [None] * rows.num_rows
    for kind in _KINDS:
        places = np.flatnonzero(pc.equal(rows["kind"], kind).to_numpy())
        ids = rows["entity_id"].take(pa.array(places)).combine_chunks()
        for start in range(0, len(places), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            for place, prompt in zip(
                places[some].tolist(), _made(prompts, kind, ids[some]), strict=True
            ):
                found[place] = prompt
    hashes = rows["prompt_hash"].to_pylist()
    return _packed(
        [
            text if text is not None and prompt_hash(text) == wanted else None
            for text, wanted in zip(found, hashes, strict=True)
        ]
    )


def _made(prompts: Prompts, kind: Kind, ids: pa.Array) -> list[str | None]:
    """None where wording that has changed since cannot be filled in."""
    try:
        return [prompt.text for prompt in prompts.take(kind, prompts.rows(kind, ids))]
    except DataError as error:
        log.warning("report: some texts are shown without what was asked: %s", error)
        return [None] * len(ids)


def _packed(texts: list[str | None]) -> Asked:
    asked, places, room = Asked(), {}, _MOST_CHARACTERS
    for text in texts:
        if text is None:
            asked.unlike += 1
            asked.prompts.append(None)
            continue
        lines = parts_of(text)
        room -= sum(len(line) for line in {*lines} if line not in places)
        if room < 0:
            asked.no_room += 1
            asked.prompts.append(None)
            continue
        asked.prompts.append([places.setdefault(line, len(places)) for line in lines])
    asked.lines = list(places)
    return asked


def parts_of(text: str) -> list[str]:
    """Lines of a text, and parts of those that are long; together they are the text."""
    parts: list[str] = []
    for line in _LINE.findall(text):
        parts += [line] if len(line) <= _LONG else filter(None, _BEHIND_COMMA.split(line))
    return parts
