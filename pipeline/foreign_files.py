"""Files that cannot be read as a table as they are: spreadsheets, databases, other encodings.

`laser init`, `laser validate` and a run all say the same of them.
"""

import re
from pathlib import Path

from pipeline.encodings import by_iconv, is_utf8
from pipeline.errors import DataError

LOOKED_AT = 1 << 20  # bytes that tell what a file is
_KINDS = {
    ".xlsx": "a spreadsheet",
    ".xls": "a spreadsheet",
    ".ods": "a spreadsheet",
    ".json": "JSON",
    ".jsonl": "JSON",
    ".zip": "a packed folder",
    ".db": "a database",
    ".sqlite": "a database",
}
_STARTS = {
    b"PK\x03\x04": "a spreadsheet or a packed folder",
    b"\xd0\xcf\x11\xe0": "a spreadsheet",
    b"SQLite format 3\0": "a database",
    b"%PDF": "a PDF",
}
_PACKED, _PARQUET = b"\x1f\x8b", b"PAR1"
_FOR_SPREADSHEETS = re.compile(rb'(?:\xef\xbb\xbf)?"?(sep=[,;|\t])"?\r?\n', re.IGNORECASE)
_FEW_BROKEN = 0.01  # of the lines; see `pipeline.columns`


def require_table(file: Path, where: str, is_text: bool) -> None:
    """Refuse what is no table, by its name or by how it begins; `where` is for the message.

    `is_text` is what the name or a separator promises; a spreadsheet's name may be a text's, too.

    Raises:
        DataError: says what it is, and what to save it as.
    """
    with file.open("rb") as stream:
        start = stream.read(16)
    kind = next((kind for mark, kind in _STARTS.items() if start.startswith(mark)), None)
    if not (is_text and looks_like_text(file)):
        kind = _KINDS.get(file.suffix.lower(), kind)
    if kind:
        raise DataError(
            f"{where} is {kind}, no table that can be read; save it as CSV (UTF-8) or Parquet"
        )
    if not is_text:
        return
    if start.startswith(_PACKED) and file.suffix.lower() != ".gz":
        raise DataError(f"{where} is packed by gzip; call it {file.name}.gz")
    if start.startswith(_PARQUET):
        raise DataError(f"{where} is Parquet; call it {file.stem}.parquet, without a separator")


def looks_like_text(file: Path) -> bool:
    """Whether a file that is not called a text table is one."""
    with file.open("rb") as stream:
        start = stream.read(4096)
    return start[:4] != _PARQUET and b"\0" not in start and b"\n" in start


def require_header(start: bytes, file: Path, where: str) -> None:
    """Refuse a text whose first line is in another encoding, or no header.

    Raises:
        DataError: names the encoding, and the command that makes UTF-8 of it; or the line.
    """
    first = start.splitlines(keepends=True)[:1]  # with the end, as only the last may be cut
    if not all(map(is_utf8, first)):
        raise not_utf8(start, file, where)
    if found := _FOR_SPREADSHEETS.match(start):
        raise DataError(
            f"{where} begins with a line for spreadsheets, {found[1].decode()!r}; delete it"
        )


def one_column(name: str) -> str:
    """What to say of a text that nothing parts into columns, whose first line is `name`."""
    return (
        f"has one column only, {name!r}: begin it with the names of its columns, parted by a "
        "comma, a semicolon, a tab or |"
    )


def is_mostly_utf8(start: bytes) -> bool:
    """Whether at most a few lines are not UTF-8, as they may be: broken cells are mended."""
    if is_utf8(start):
        return True
    lines = start.splitlines(keepends=True)
    broken = sum(not is_utf8(line) for line in lines)
    return broken <= max(1.0, _FEW_BROKEN * len(lines))


def not_utf8(start: bytes, file: Path, where: str) -> DataError:
    """What to say of a text in another encoding, of which these are the first bytes."""
    return DataError(f"{where} is not UTF-8; {by_iconv(start, str(file))}")
