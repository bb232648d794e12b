"""What a text that is not UTF-8 may be, told by its bytes, and how to make UTF-8 of it."""

import re

_MARKS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}  # what a file begins with
_RUN = re.compile(rb"[\x80-\xff]+")
_LONGEST_LATIN_RUN = 1.5  # mean bytes: accents stand alone between letters
_MANY = 0.6  # of all characters that are not ASCII
_COMMON_HANZI = (0xB0, 0xD7)  # first bytes of the 3,755 commonest in GB2312


def is_utf8(data: bytes) -> bool:
    """Whether bytes are UTF-8; the last character may be cut off."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.end == len(data) and error.reason == "unexpected end of data"
    return b"\0" not in data


def likely_encoding(data: bytes) -> str | None:
    """A name that `iconv -f` takes for bytes that are not UTF-8; None if nothing fits."""
    if data[:2] in _MARKS:
        return _MARKS[data[:2]]
    if b"\0" in data:
        return "UTF-16LE" if data[1::2].count(0) > data[::2].count(0) else "UTF-16BE"
    runs = _RUN.findall(data)
    if sum(map(len, runs)) <= _LONGEST_LATIN_RUN * len(runs):
        return "CP1252" if re.search(rb"[\x80-\x9f]", data) else "LATIN1"
    tests = {"GB18030": _is_chinese, "SHIFT_JIS": _is_japanese, "CP1251": _is_cyrillic}
    return next((name for name, fits in tests.items() if fits(data, name)), None)


def by_iconv(data: bytes, file: str = "FILE") -> str:
    """The command that makes UTF-8 of a file with such bytes, in words for an error."""
    encoding = likely_encoding(data)
    line = f"iconv -f {encoding or 'ENCODING'} -t UTF-8 {file} > NEW_FILE"
    if encoding is None:
        return f"find out what it is in, and write it anew by `{line}`"
    return f"it seems to be {encoding}: write it anew by `{line}`"


def _is_chinese(data: bytes, encoding: str) -> bool:
    low, high = _COMMON_HANZI
    pairs = [character.encode(encoding) for character in _letters(data, encoding)]
    common = sum(len(pair) == 2 and low <= pair[0] <= high for pair in pairs)
    return common > _MANY * max(len(pairs), 1)


def _is_japanese(data: bytes, encoding: str) -> bool:
    letters = _letters(data, encoding)
    return any("\u3040" <= letter <= "\u30ff" for letter in letters)


def _is_cyrillic(data: bytes, encoding: str) -> bool:
    letters = _letters(data, encoding)
    found = sum("\u0400" <= letter <= "\u045f" for letter in letters)
    return found > _MANY * max(len(letters), 1)


def _letters(data: bytes, encoding: str) -> str:
    """Characters that are not ASCII; none where much cannot be decoded."""
    text = data.decode(encoding, "replace")
    letters = "".join(character for character in text if ord(character) > 127)
    return "" if letters.count("\ufffd") > 0.1 * len(letters) else letters.replace("\ufffd", "")
