"""What a title may hold must not move a reader's cursor."""

from jobs import inspect_entity, validate_catalog
from jobs.terminal_text import printable

ODD = "Heat\x1b[2J\x9b31m\u202e\r"


def test_what_a_terminal_would_obey_is_replaced_and_all_else_stays():
    assert printable(ODD) == "Heat\ufffd[2J\ufffd31m\ufffd\ufffd"
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
