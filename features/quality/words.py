"""Words of a text as they are held against a catalog: small letters, whole words, years."""

import re
from collections.abc import Iterable, Sequence

YEARS = range(1900, 2031)  # what a number of four digits is read as, unless a catalog goes beyond
_BREAK = "/"  # instead of the title; no word
# Chinese, Japanese and Korean put no blanks between words: each letter is one.
_UNPARTED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff]")


def words_of(text: str) -> list[str]:
    """Words in lower case; a hyphen parts two."""
    plain = text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    if not plain.isascii():
        plain = _UNPARTED.sub(r" \g<0> ", plain)
    words = (word.strip("'") for word in re.findall(r"[\w']+", plain))
    return [word for word in words if word]


def without(words: Sequence[str], title: Sequence[str]) -> list[str]:
    """`words` with every occurrence of `title` replaced by a break."""
    words, title, kept, at = list(words), list(title), [], 0
    while at < len(words):
        is_title = words[at : at + 1] == title[:1] and words[at : at + len(title)] == title
        kept.append(_BREAK if is_title else words[at])
        at += len(title) if is_title else 1
    return kept


def years_in(words: Iterable[str], years: range = YEARS) -> set[int]:
    """Numbers of four digits that are among `years`; `1990s` is none."""
    numbers = (int(word) for word in words if re.fullmatch("[0-9]{4}", word))
    return {number for number in numbers if number in years}
