"""What a framework is: what it encodes of answers, and how a CTR model takes the vectors in.

How it asks stands in `conf/prompts/<name>/`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import nn


class Reading(NamedTuple):
    """An answer of the LLM as it is encoded."""

    text: str
    is_malformed: bool  # not what was asked for, so `text` is the whole answer


Read = Callable[[str, str], Reading]  # of kind and answer, which is not blank; it never raises


def whole_text(kind: str, answer: str) -> Reading:
    """Free text, all of which is knowledge."""
    return Reading(answer, False)


@dataclass(frozen=True)
class Framework:
    """One way to use knowledge.

    `adaptor(width, dim)` makes a module that maps (kind, (entities, width) vectors) to
    (entities, dim). `auxiliary(dim, embedding_dim)` makes one that maps kind, adapted vectors
    (entities, dim), the CTR model's own vectors of the same entities (entities, embedding_dim) and
    the number of each of these vectors (entities,), which several entities may share, to a loss,
    which is added to the CTR model's with `auxiliary_weight`.
    """

    name: str
    adaptor: Callable[[int, int], "nn.Module"]
    learning: str  # names adaptor and loss: under another name the CTR check is made anew
    read: Read = whole_text
    reading: str = ""  # names the way of reading: under another name features are made anew
    auxiliary: Callable[[int, int], "nn.Module"] | None = None
    auxiliary_weight: float = 0.0
