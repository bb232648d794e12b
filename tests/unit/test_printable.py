"""Texts of catalogs and models are shown, and give a terminal no orders."""

from pathlib import Path

import typer
from typer.testing import CliRunner

from jobs.commands.options import Asked
from jobs.commands.running import look
from jobs.output import printable


def test_control_characters_are_spelled_out_and_letters_are_not():
    assert printable("a\x1b[2Jb\x9b\r\x00") == r"a\x1b[2Jb\x9b\r\x00"
    kept = "\u4e09\u56fd \u202e caf\u00e9\ta \\ b\n  next line"
    assert printable(kept) == kept


def test_what_a_look_shows_holds_none(monkeypatch):
    app = typer.Typer()
    monkeypatch.setattr("jobs.cli.show", lambda view, *_: _Ended(view(None, None)))

    @app.command()
    def show():
        look(lambda config, store: ({}, ["  | \x1b]0;title\x07"], 0), Asked(Path("x"), []), False)

    assert CliRunner().invoke(app).output == "  | \\x1b]0;title\\x07\n"


class _Ended:
    def __init__(self, code):
        self.code = code
