"""Lines of a file that are no rows: all are counted, the first few are shown."""

from pathlib import Path

from pipeline.errors import DataError

_EXAMPLES = 3
_SHOWN = 80  # characters of a line


class BadLines:
    """What was wrong with one file."""

    def __init__(self, file: Path, what: str) -> None:
        self._file = file
        self._what = what  # they are not
        self._count = 0
        self._examples: list[str] = []

    def add(self, text: str, number: int | None = None) -> None:
        """Note a line; its number counts from 1, where it is known."""
        self._count += 1
        if len(self._examples) < _EXAMPLES:
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
            self._examples.append((f"line {number}: " if number else "") + repr(shown))

    def require_none(self, origin: str) -> None:
        """Refuse the file if a line was noted; `origin` says how to get a good one.

        Raises:
            DataError: how many lines, and the first of them.
        """
        if self._count:
            raise DataError(
                f"{self._file}: lines that are not {self._what}: {self._count:,} "
                f"({'; '.join(self._examples)}); drop them, or get the file anew: {origin}"
            )
