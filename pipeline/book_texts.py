"""Titles, authors and genres of Amazon's books as people write them.

The texts were cut out of web pages: entities and tags are left in many, and where the cut failed a
title is a script of the page.
"""

import html
import re
from typing import Any

LONGEST_TITLE = 500  # characters; what is longer is a text of the page

# With entities and tags. `html` refuses entities of more than 4,300 digits, so stay below.
_LONGEST_RAW = 8 * LONGEST_TITLE
# Every part ends where the next begins, so that a brace never closed takes no longer than another.
_SCRIPT = re.compile(
    r"\.getTime\(|\bfunction\s*\w*\(\w*\)\s*\{|\bvar\s+\w+\s*=|\bwindow\.\w+\s*[=(]"
    r"|\bdocument\.\w+\s*[=(]|<script|<style|\{[^{}:]*:[^{};]*;[^{}]*\}",
    re.IGNORECASE,
)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_AUTHOR_PAGE = re.compile(r"^Visit Amazon's (.*) Page$")


def title_of(text: str | None) -> str | None:
    """The title, or None if this is none: blank, far too long, or a script."""
    if text is None or len(text) > _LONGEST_RAW or _SCRIPT.search(text):
        return None
    title = _tidy(text)
    return title if 0 < len(title) <= LONGEST_TITLE else None


def author_of(brand: str | None) -> str | None:
    """The name, which the older files wrap as "Visit Amazon's Ann Example Page"."""
    name = title_of(brand)
    return None if name is None else _AUTHOR_PAGE.sub(r"\1", name)


def genre_of(categories: list[Any] | None) -> str | None:
    """The second level of the first path: the first is Books for all."""
    path = categories or []
    if path and isinstance(path[0], list):
        path = path[0]
    return title_of(path[1]) if len(path) > 1 else None


def _tidy(text: str) -> str:
    """Without entities (written twice in some) and tags, on one line."""
    return " ".join(_TAG.sub(" ", html.unescape(html.unescape(text))).split())
