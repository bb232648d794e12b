"""A column that was chosen, with what was seen of it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """A column, and what was seen of it; a doubt if another is as likely."""

    column: str
    seen: str
    doubt: str = ""


def rivals(names: Sequence[str], why: str = "") -> str:
    """A doubt: it could be another."""
    if not names:
        return why
    listed = ", ".join(names[:3])
    return f"could also be {listed}" + (f"; {why}" if why else "")
