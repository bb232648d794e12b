"""Characters of which a text has a part only, because it was cut between two of their tokens."""

HALF = "\N{REPLACEMENT CHARACTER}"  # what a part of a character is decoded to
_MOST = 3  # parts without the last: a character has four bytes at most, each a token at worst


def without_half_character(text: str) -> str:
    """A text that was cut, without what is left of its last character.

    What is broken elsewhere was written so, and stays.
    """
    broken = len(text) - len(text.rstrip(HALF))
    return text[: len(text) - min(broken, _MOST)]
