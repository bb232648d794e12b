"""Errors a user can act on. Each names the file, row or key at fault and the remedy.

`exit_code` is what a job returns to its scheduler; 0 means done.
"""

import errno
from collections.abc import Sequence


def is_no_room(error: Exception) -> bool:
    """Whether a disk of this machine is full: none of our errors, but the user's to mend."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class UserError(ValueError):
    """Something outside the program is wrong; the message says what to change."""

    exit_code = 1


class ConfigError(UserError):
    """A setting is unknown, of the wrong type or out of range."""

    exit_code = 2


class DataError(UserError):
    """An input table, asset or stored dataset is missing, damaged or inconsistent."""

    exit_code = 3


class UnusableCatalog(DataError):
    """Tables were read, and hold rows that no run can use."""

    def __init__(
        self, message: str, found: Sequence[str] = (), examples: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.found = list(found)  # each kind of such rows with its count, as they are left out
        self.examples = list(examples)  # of each


class ModelError(UserError):
    """A language model or encoder cannot be used as configured."""

    exit_code = 3


class WorkerError(UserError):
    """Processes that hold a model end again and again; what was finished is stored."""

    exit_code = 1


class PartialError(UserError):
    """More rows failed than the config tolerates; the good rows are stored."""

    exit_code = 4


class CheckError(UserError):
    """The CTR check missed the threshold set in the config; the report is stored."""

    exit_code = 5
