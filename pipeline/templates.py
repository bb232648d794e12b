"""The wording of a framework's prompts; `pipeline.prompts` fills it in.

The constant part of a prompt (task and factors) comes first and is the same for all prompts of a
kind, so that the engine computes it once; the entity comes last.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jinja2 import Environment, StrictUndefined, Template

# What most frameworks show of an entity, in the midst of their templates.
USER_FACTS = """\
{% if attributes or not history %}
{{ person | capitalize }}: {{ attributes | join(", ") or "nothing is known" }}
{% endif %}
{% if history %}
Ratings by the {{ person }}, oldest first:
{% for title, stars in history %}
{{ title }}, {{ stars }}
{% endfor %}
{% endif %}
"""
ITEM_FACTS = """\
{{ domain[:1] | upper }}{{ domain[1:] }}: {{ title or "untitled" }}
{% for attribute in attributes %}
{{ attribute }}
{% endfor %}
"""

_ENVIRONMENT = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@dataclass(frozen=True)
class Domain:
    """Words for the items of a domain and for who uses them."""

    person: str  # what a user is called
    factors: str = ""  # what matters about an item, comma by comma


@dataclass(frozen=True)
class Templates:
    """Two Jinja templates, and the words of the domains that a framework knows.

    Both get `domain` (what an item is called), `person`, `factors` and `attributes` (lines); `user`
    also `history`, the latest events as (title, stars), oldest first, and their `categories`, a
    word each or ""; `item` also `title`. Another name is an error.
    """

    user: str
    item: str
    domains: Mapping[str, Domain]
    general: Domain  # of any other domain

    @property
    def hash(self) -> str:
        """Identity of the wording: changes with the templates and the words, and nothing else."""
        domains = ", ".join(f"{name!r}: {_spelled(words)}" for name, words in self.domains.items())
        parts = [self.user, self.item, f"{{{domains}}}", _spelled(self.general)]
        return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]

    def words(self, domain: str) -> Domain:
        """The words of a domain by its name."""
        return self.domains.get(domain.lower(), self.general)

    def compiled(self, kind: Literal["user", "item"]) -> Template:
        """What renders the prompts of a kind."""
        return _ENVIRONMENT.from_string(self.user if kind == "user" else self.item)


def _spelled(words: Domain) -> str:
    """As the hashes of the first runs have it, so that their knowledge stays current."""
    return f"_Domain(person={words.person!r}, factors={words.factors!r})"
