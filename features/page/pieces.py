"""What each token of a text says, as a piece of that text.

A character of several tokens (byte-level vocabularies spread many a Chinese one over two or three)
is one piece of all of them. Pieces put together are always the whole text.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.half_characters import HALF

Decode = Callable[[np.ndarray], str]

RELAXED = 16  # added to the origin of a token that was accepted although not the first choice


class Piece(NamedTuple):
    """Some characters of a text, and the tokens that say them."""

    text: str
    tokens: int


class Splitter:
    """Splits texts by their tokens; what a token says is asked once, whatever text it stands in."""

    def __init__(self, decode: Decode) -> None:
        """`decode` turns token ids into all that they say."""
        self._decode = decode
        self._said: dict[int, str] = {}
        self._anchor: int | None = None  # a token to put in front: some vocabularies trim the first
        self._anchor_text = ""

    def split(self, token_ids: Sequence[int]) -> list[Piece]:
        """The pieces of one text; together they hold all of its characters and tokens."""
        whole = self._text(token_ids)
        pieces: list[Piece] = []
        first = start = 0  # of what has no piece yet: the token, and the character
        for end in range(1, len(token_ids) + 1):
            said = self._say(token_ids[first:end], is_start=first == 0)
            if said and not said.endswith(HALF) and whole.startswith(said, start):
                pieces.append(Piece(said, end - first))
                first, start = end, start + len(said)
        left = Piece(whole[start:], len(token_ids) - first)
        if left.tokens and not left.text and pieces:  # the last tokens say nothing
            return [*pieces[:-1], Piece(pieces[-1].text, pieces[-1].tokens + left.tokens)]
        return [*pieces, left] if left.tokens or left.text else pieces

    def _say(self, token_ids: Sequence[int], is_start: bool) -> str:
        """What tokens say behind others, or at the start of a text."""
        if is_start:
            said = self._text(token_ids)
            if self._anchor is None and said.strip() and not said.endswith(HALF):
                self._anchor, self._anchor_text = token_ids[-1], self._text(token_ids[-1:])
            return said
        if len(token_ids) > 1:
            return self._behind_anchor(token_ids)
        token = token_ids[0]
        if token not in self._said:
            self._said[token] = self._behind_anchor(token_ids)
        return self._said[token]

    def _behind_anchor(self, token_ids: Sequence[int]) -> str:
        if self._anchor is None:
            return self._text(token_ids)
        both = self._text([self._anchor, *token_ids])
        return both.removeprefix(self._anchor_text)

    def _text(self, token_ids: Sequence[int]) -> str:
        return self._decode(np.array(token_ids, np.int32))


def origin_of(origins: Sequence[int]) -> int:
    """Of a piece of several tokens: the first draft among them, and relaxed if any of them was."""
    source = next((one % RELAXED for one in origins if one % RELAXED), 0)
    return source + (RELAXED if max(origins) >= RELAXED else 0)
