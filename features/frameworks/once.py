"""ONCE (Liu et al., WSDM'24, arXiv 2305.06566), its part for closed models (GENRE).

A user is asked for at most five words of interest, which are all that is encoded; an item for a
neutral description. Invented items for users with short histories, GENRE's third prompt, and
fine-tuned encoders (DIRE) are left out. The adaptor is one MLP, and there is no further loss.
"""

import re

from torch import Tensor, nn

from features.frameworks.framework import Framework, Reading, whole_text

MOST_WORDS = 5
_MOST_CHARS, _MOST_PARTS = 40, 4  # of a word of interest, which may be a short phrase
_MOST_ALONE = 2  # parts of one that stands alone: "The viewer likes drama" is a sentence

_SEPARATOR = re.compile(r"[,;\n]")
# "Interests:", "Here are five words of the viewer:"; but "Star Wars: A New Hope" is a title. What
# stands alone on its line is a label whatever it says.
_LABEL = re.compile(
    r"^(?:[^,;\n]{0,60}:[ \t\r*]*\n|"
    r"[^,;:\n]{0,40}\b(?:interests?|words?|genres?|themes?|styles?|answer|list)\b[^,;:\n]{0,40}:)\s*",
    re.IGNORECASE,
)
_REFUSALS = frozenset(
    {
        *("none", "n/a", "unknown", "not known", "not available", "no interests"),
        *("nothing", "nothing is known", "i cannot say", "i don't know", "i do not know"),
    }
)
_BULLET = re.compile(r"^(?:[-*\u2022]\s*|\(?\d{1,2}[.)]\s*)?(?:and\s+)?", re.IGNORECASE)


def read_interests(kind: str, answer: str) -> Reading:
    """The words of interest, comma by comma; of an item the whole description.

    A label before them, numbers and bullets, quotes and a full stop are taken off, as is a
    paragraph that follows a list; repeated words count once. More than `MOST_WORDS`, a part that is
    a sentence, or one that says that nothing is known, is malformed.
    """
    if kind != "user":
        return whole_text(kind, answer)
    listed = _LABEL.sub("", answer.strip())
    for block, fewest in ((listed.partition("\n\n")[0], 2), (listed, 1)):
        parts = [_bare(part) for part in _SEPARATOR.split(block)]
        words = list({part.casefold(): part for part in parts if part}.values())
        most_parts = _MOST_ALONE if len(words) == 1 else _MOST_PARTS
        is_list = fewest <= len(words) <= MOST_WORDS
        if is_list and all(_is_interest(word, most_parts) for word in words):
            return Reading(", ".join(words), False)
    return Reading(answer, True)


def _bare(part: str) -> str:
    return _BULLET.sub("", part.strip()).strip(" \t\r\"'`*.![]")


def _is_interest(word: str, most_parts: int) -> bool:
    is_word = any(character.isalpha() for character in word) and ":" not in word
    is_short = len(word) <= _MOST_CHARS and len(word.split()) <= most_parts
    return is_word and is_short and word.casefold() not in _REFUSALS


class MlpAdaptor(nn.Module):
    """One hidden layer for users and items alike: 128-32 for dim 32, as in LASER's code."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))

    def forward(self, kind: str, vectors: Tensor) -> Tensor:
        """Adapt (entities, width) vectors to (entities, dim)."""
        return self.layers(vectors)


FRAMEWORK = Framework(
    "once",
    MlpAdaptor,
    learning="MLP 1",
    read=read_interests,
    reading="interests 3",
)
