"""Standard output whose reader may leave: `make status | head -1` is no failure of the job."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Print as ever inside the block; what nobody reads any more is dropped."""
    patient = _Patient(sys.stdout)
    with redirect_stdout(patient):
        try:
            yield
        finally:
            patient.flush()  # here, not where the interpreter ends: it would complain


class _Patient(io.TextIOBase):
    """A stream that goes nowhere once its pipe is broken."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return not self._stream.closed and self._stream.isatty()

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._stream.encoding

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())  # what is buffered still has to go somewhere
            os.close(nowhere)
