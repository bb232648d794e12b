"""The log of a remote run: lines of this job, behind those of earlier jobs, from time to time."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.repeating import repeating
from pipeline.errors import UserError
from pipeline.mirrored_files import MirroredFiles
from pipeline.store import Store

log = logging.getLogger("jobs.remote_log")

RUN_LOG = "run.log"
PERIOD = 30.0  # s between two uploads


@contextmanager
def log_uploaded(store: Store, offset: int) -> Iterator[None]:
    """Upload the log of a remote run every `PERIOD` seconds and at the end.

    Only who holds the lease may; `offset` is where the lines of this job begin, in bytes.
    """
    files = store.files
    if not isinstance(files, MirroredFiles):
        yield
        return
    upload = _Upload(files, store.root / RUN_LOG, offset)
    try:
        with repeating(upload, PERIOD):
            yield
    finally:
        upload()


class _Upload:
    def __init__(self, files: MirroredFiles, file: Path, offset: int) -> None:
        self._files, self._file, self._offset = files, file, offset
        self._earlier = files.read(RUN_LOG) or b""
        self._latest = b""

    def __call__(self) -> None:
        """Put the whole log, if there are new lines."""
        try:
            lines = self._file.read_bytes()[self._offset :]
            if lines == self._latest:
                return
            self._files.mirror.write(RUN_LOG, self._earlier + lines)
            self._latest = lines
        except (UserError, OSError) as error:  # the log must not end the job
            log.warning("%s is not uploaded: %s", RUN_LOG, error)
