"""Texts of catalogs and models on a terminal, which obeys some characters and shows the rest."""

import re

# Control characters but newline and tab; marks that turn the direction of what follows.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """`text`, each character that a terminal might obey spelled out, as `\\x1b`."""
    return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)
