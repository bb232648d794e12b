"""The wording of a framework's prompts; `pipeline.prompts` fills it in.

The constant part of a prompt (task and factors) comes first and is the same for all prompts of a
kind, so that the engine computes it once; the entity comes last. `pipeline.template_files` reads
the wording from a folder.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jinja2 import StrictUndefined, Template, Undefined, pass_context
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment


@pass_context  # or jinja would call it for constants when it compiles, where no line is known
def _printed(_: Any, value: Any) -> Any:
    """What stands in double braces: a word or a number, and nothing that only Python can show."""
    if isinstance(value, str | int | float | Undefined):  # the last has an error of its own
        return value
    raise TypeError(
        f"what is to be written is no text but a {type(value).__name__}; did you forget "
        "`| join(', ')` or a pair of parentheses?"
    )


# What is rendered twice must be the same twice, so nothing random is to be had.
ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_printed
)
del ENVIRONMENT.filters["random"], ENVIRONMENT.globals["lipsum"]

# Comments before any wording, but for one that says what becomes of the blanks behind it.
_HEAD = re.compile(r"\A(?:\{#(?:(?!#\}).)*(?<![-+])#\}\n?)+", re.DOTALL)


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
    folder: Path | None = None  # that they were read from

    @property
    def hash(self) -> str:
        """Identity of the wording: changes with the templates and the words, and nothing else.

        A comment at the top of a template is no wording.
        """
        domains = ", ".join(f"{name!r}: {_spelled(words)}" for name, words in self.domains.items())
        texts = [_HEAD.sub("", text) for text in (self.user, self.item)]
        parts = [*texts, f"{{{domains}}}", _spelled(self.general)]
        return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]

    def words(self, domain: str) -> Domain:
        """The words of a domain by its name."""
        return self.domains.get(domain.lower(), self.general)

    def compiled(self, kind: Literal["user", "item"]) -> Template:
        """What renders the prompts of a kind.

        Raises:
            TemplateSyntaxError: the text is no template.
        """
        text = self.user if kind == "user" else self.item
        code = ENVIRONMENT.compile(text, name=kind, filename=self.file(kind))
        return Template.from_code(ENVIRONMENT, code, ENVIRONMENT.make_globals(None))

    def uses(self, kind: Literal["user", "item"], name: str) -> bool:
        """Whether the wording of a kind asks for what it is given under a name."""
        text = self.user if kind == "user" else self.item
        return name in find_undeclared_variables(ENVIRONMENT.parse(text))

    def file(self, kind: str) -> str:
        """Where the template of a kind stands, for people."""
        return f"{self.folder}/{kind}.jinja" if self.folder else f"<{kind} template>"


def line_of(error: BaseException, file: str) -> int | None:
    """The line of a template that an exception of its rendering comes from."""
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == file:
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


def _spelled(words: Domain) -> str:
    """As the hashes of the first runs have it, so that their knowledge stays current."""
    return f"_Domain(person={words.person!r}, factors={words.factors!r})"
