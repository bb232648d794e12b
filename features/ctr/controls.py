"""What the catalog says by itself, as text: the controls that an LLM has to beat.

Each is like a framework without an LLM: its templates, filled in, are what is encoded. Like
prompts they see the past only.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from pipeline.prompts import Prompts, prompt_hash
from pipeline.schemas import KINDS
from pipeline.templates import Domain, Templates

_NO_WORDS = Domain("user")
_USER_ATTRIBUTES = """{{ attributes | join(", ") }}"""
_USER_HISTORY = """\
{% for title, stars in history %}
{{ title }}, {{ stars }}
{% endfor %}
"""

_ITEM_FACTS = """\
{{ domain[:1] | upper }}{{ domain[1:] }}: {{ title or "untitled" }}
{% for attribute in attributes %}
{{ attribute }}
{% endfor %}
"""

TEMPLATES = {
    "raw_text": Templates(_USER_ATTRIBUTES, _ITEM_FACTS, {}, _NO_WORDS),
    "history": Templates(_USER_HISTORY, "{{ title }}", {}, _NO_WORDS),
}


def encoded(controls: Iterable[str]) -> list[str]:
    """Those of some controls of the check that an encoder reads."""
    return [name for name in controls if name in TEMPLATES]


def dataset_of(control: str) -> str:
    """Where the features of a control stand."""
    return f"controls/{control}/features"


def control_texts(prompts: Prompts, rows: int) -> Iterator[pa.Table]:
    """Blocks of at most `rows` rows of one kind, with the columns that features are made of.

    Users first; each kind in the order of the catalog.
    """
    for kind in KINDS:
        total = prompts.count(kind)
        for start in range(0, total, rows):
            told = prompts.take(kind, np.arange(start, min(start + rows, total)))
            texts = [prompt.text.strip() for prompt in told]
            yield pa.table(
                {
                    "kind": pa.repeat(kind, len(told)),
                    "entity_id": [prompt.entity_id for prompt in told],
                    "group_id": pa.repeat("", len(told)),
                    "prompt_hash": [prompt_hash(text) for text in texts],
                    "text": texts,
                    "asof": pa.repeat(prompts.asof, len(told)),
                    "source_events": [prompt.source_events for prompt in told],
                    "latest_source": [prompt.latest_source for prompt in told],
                    "error": pa.repeat("", len(told)),
                }
            )
