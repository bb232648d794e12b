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

from pipeline.asked_again import Again, asked_again
from pipeline.prompts import Kind, Prompts, prompt_hash

log = logging.getLogger(__name__)

_KINDS: tuple[Kind, ...] = ("user", "item")
_MOST_CHARACTERS = 8_000_000  # of all lines: some four megabytes of page
_UNLIKE = "made again, it comes out otherwise: the catalog, the wording or settings have changed"
_NO_ROOM = "this page has no room for all prompts"
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_LONG = 160  # characters of a line that is cut behind its commas: a list may stand on one line
_BEHIND_COMMA = re.compile(r"(?<=[,;] )")


@dataclass
class Asked:
    """Prompts by their lines; None is a prompt that cannot be shown, and says why."""

    lines: list[str] = field(default_factory=list)
    prompts: list[list[int] | None] = field(default_factory=list)
    why_not: list[str] = field(default_factory=list)  # "" of what is shown


def asked_of(rows: pa.Table, prompts: Prompts) -> Asked:
    """The prompts of some rows of KNOWLEDGE (kind, entity_id, prompt_hash), in their order."""
    found = [Again(None)] * rows.num_rows
    for kind in _KINDS:
        places = np.flatnonzero(pc.equal(rows["kind"], kind).to_numpy())
        ids = rows["entity_id"].take(pa.array(places)).combine_chunks()
        for place, again in zip(places.tolist(), asked_again(prompts, kind, ids), strict=True):
            found[place] = again
    if failed := [one.error for one in found if one.error]:
        told = "report: %d texts are shown without what was asked: %s"
        log.warning(told, len(failed), failed[0])
    hashes = rows["prompt_hash"].to_pylist()
    return _packed([_if_same(*one) for one in zip(found, hashes, strict=True)])


def _if_same(again: Again, wanted: str) -> Again:
    if again.text is None or prompt_hash(again.text) == wanted:
        return again
    return Again(None, _UNLIKE)


def _packed(found: list[Again]) -> Asked:
    asked, places, room = Asked(), {}, _MOST_CHARACTERS
    for text, why_not, _ in found:
        lines = parts_of(text or "")
        size = sum(len(line) for line in {*lines} if line not in places)
        if text is None or size > room:
            asked.prompts.append(None)
            asked.why_not.append(why_not or _NO_ROOM)
            continue
        room -= size
        asked.prompts.append([places.setdefault(line, len(places)) for line in lines])
        asked.why_not.append("")
    asked.lines = list(places)
    return asked


def parts_of(text: str) -> list[str]:
    """Lines of a text, and parts of those that are long; together they are the text."""
    parts: list[str] = []
    for line in _LINE.findall(text):
        parts += [line] if len(line) <= _LONG else filter(None, _BEHIND_COMMA.split(line))
    return parts
