"""Titles in letters that a language model has hardly any tokens for, so that it hardly reads them.

A tokenizer spells such letters by their bytes. `laser init`, `laser validate` and the log of a run
say so in the same words.
"""

import unicodedata

import pyarrow as pa

from pipeline.decoding_config import LanguageModelSettings
from pipeline.errors import ModelError

_SAMPLE = 1_000  # titles
_LOOKED_AT = 200  # characters of a title; a longer one would speak for all others
_MANY = 0.1  # of the letters
_READ = 2.0  # bytes of a token; a letter beyond Latin has two or three

_REMEDY = "set language_model.path to one that knows the language, and encoder.path too"


def unread_titles(titles: pa.Array | pa.ChunkedArray, model: LanguageModelSettings) -> str:
    """A warning about titles that the model cannot read; "" if it reads them."""
    known = titles.drop_null()[:: max(len(titles) // _SAMPLE, 1)].to_pylist()
    some = [title[:_LOOKED_AT] for title in known]
    foreign = [_beyond_latin(title) for title in some]
    letters = sum(len(text) - text.count(" ") for text in foreign)
    if letters <= _MANY * sum(map(str.isalpha, "".join(some))):
        return ""
    tokens = _tokens(foreign, model)
    if tokens is None:
        return (
            "titles are not in Latin letters, which small English models hardly read; whether "
            f"{model.path} does cannot be seen, as it cannot be loaded; if not, {_REMEDY}"
        )
    if sum(len(text.encode()) for text in foreign) >= _READ * tokens:
        return ""
    return (
        "titles are in letters that the language model has hardly any tokens for, and hardly "
        f"reads: {model.path} takes {tokens / letters:.1f} tokens a letter; " + _REMEDY
    )


def _beyond_latin(text: str) -> str:
    """What of a text is written in other letters, with blanks where it had something else."""
    return " ".join("".join(letter if _is_foreign(letter) else " " for letter in text).split())


def _is_foreign(letter: str) -> bool:
    return letter.isalpha() and not unicodedata.name(letter, "").startswith("LATIN ")


def _tokens(texts: list[str], model: LanguageModelSettings) -> int | None:
    """Tokens of all texts; None if the model's tokenizer is not at hand."""
    from pipeline.language_model import (  # torch takes seconds to import
        quick_tokenizer,
        require_model_files,
    )

    try:
        require_model_files(model, "language_model")
        tokenizer = quick_tokenizer(model)
    except ModelError:
        return None
    return sum(len(tokenizer.encode_exactly(text)) for text in texts if text)
