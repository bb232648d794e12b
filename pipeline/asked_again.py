"""What entities of a run were asked: no dataset has it, so it is made again, one by one if need be.

A prompt that is made may still be another than the one that was asked: its hash tells.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import DataError
from pipeline.prompts import Kind, Prompts

GONE = "it is not in the catalog any more"
UNFILLED = "today's wording cannot be filled in for it"
_AT_ONCE = 1000


class Again(NamedTuple):
    """What an entity would be asked today; without a text, why it would not, and the error."""

    text: str | None
    why_not: str = ""
    error: str = ""


def asked_again(prompts: Prompts, kind: Kind, entity_ids: pa.Array) -> list[Again]:
    """For each entity, in order; one that cannot be asked takes nothing from the others."""
    places = prompts.places(kind, entity_ids)
    found = [Again(None, GONE)] * len(places)
    there = np.flatnonzero(pc.is_valid(places).to_numpy(zero_copy_only=False))
    rows = places.drop_null().to_numpy().astype(np.int64)
    for start in range(0, len(rows), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        for place, again in zip(there[some], _filled(prompts, kind, rows[some]), strict=True):
            found[place] = again
    return found


def _filled(prompts: Prompts, kind: Kind, rows: np.ndarray) -> list[Again]:
    try:
        return [Again(prompt.text) for prompt in prompts.take(kind, rows)]
    except DataError as error:
        if len(rows) == 1:
            return [Again(None, UNFILLED, str(error))]
    return [again for row in range(len(rows)) for again in _filled(prompts, kind, rows[row:][:1])]
