"""What a title may hold must not move a reader's cursor."""

from pathlib import Path

import typer
from typer.testing import CliRunner

from jobs import inspect_entity, validate_catalog
from jobs.commands.options import Asked
from jobs.commands.running import look
from jobs.terminal_text import printable

ODD = "Heat\x1b[2J\x9b31m\u202e\r"


def test_what_a_terminal_would_obey_is_spelled_out_and_all_else_stays():
    assert printable(ODD) == r"Heat\x1b[2J\x9b31m\u202e\r"
    assert printable("a\tb\n\u7535 \u00e9 \U0001f3ac") == "a\tb\n\u7535 \u00e9 \U0001f3ac"


def test_texts_of_a_catalog_reach_the_terminal_without_control_characters():
    facts = {
        **{"entity": f"item/{ODD}", "run": "r", "group": ODD, "title": ODD, "vector": None},
        **{"prompt": ODD, "prompt_tokens": 3, "source_events": 0, "error": "", "wave": 1},
        **{"rule": "plain", "tokens": 1, "forward_passes": 1, "finish_reason": "stop"},
        **{"text": ODD, "by_source": {"nobody": 1}, "relaxed_tokens": 0, "pieces": []},
    }
    checked = {"run": "r", "warnings": [ODD], "problems": [], "not_looked_at": []}
    for told in (inspect_entity.lines(facts), validate_catalog.lines(checked)):
        whole = "".join(told)
        assert "Heat" in whole
        assert not {"\x1b", "\x9b", "\u202e", "\r"} & set(whole)


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
