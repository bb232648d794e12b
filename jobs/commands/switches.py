"""How commands are read and shown: `--json` tells of wrong words too, help names no Python types.

Typer would say `--json <bool>`, and `TABLE... <list[str]>`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperCommand, TyperGroup

from jobs.cli import Ended
from jobs.commands.options import as_facts, print_json

_WRONG = 2  # exit code of a wrong word


class Command(TyperCommand):
    """A command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """As ever, with `--help`."""
        return _bare(super().get_params(ctx))

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **named: Any) -> Any:
        """Read the words of a command."""
        with _told_as_json(args):
            return super().make_context(info_name, args, *more, **named)


class Group(TyperGroup):
    """All commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """As ever, with `--help`."""
        return _bare(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command by its name."""
        with _told_as_json(args):
            return super().resolve_command(ctx, args)


def _bare(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.nargs != 1:  # its name says that there may be several
            param.display_type_rich = lambda ctx: None
    return params


@contextmanager
def _told_as_json(words: list[str]) -> Iterator[None]:
    """Whoever reads JSON reads also that a word is wrong."""
    is_asked = "--json" in words  # which reading takes away
    try:
        yield
    except Exception as error:
        if is_asked and hasattr(error, "format_message"):
            print_json(as_facts(Ended(_WRONG, error.format_message())))  # type: ignore[attr-defined]
        raise
