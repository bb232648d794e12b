"""The summary as a table for the report: what was measured, of whom, and how to read it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from features import formats

Part = Mapping[str, Any]


class Column(NamedTuple):
    """Texts of one kind, and how near they are to plain ones; of plain texts that is empty."""

    heading: str
    texts: Part
    similarity: Part


class Line(NamedTuple):
    """One figure in every column."""

    name: str
    values: list[str]
    reading: str


def columns(kinds: Mapping[str, Part]) -> list[Column]:
    """The kinds that have rows, each with its plain texts beside it if they were given."""
    found: list[Column] = []
    for kind, summary in kinds.items():
        if not summary["texts"]["rows"]:
            continue
        found.append(Column(f"{kind}s", summary["texts"], summary["similarity"] or {}))
        if summary["plain"]:
            found.append(Column(f"{kind}s, plain", summary["plain"], {}))
    return found


def lines(kinds: Mapping[str, Part]) -> list[Line]:
    """Every figure that some column has."""
    shown = columns(kinds)
    every = [
        Line(name, [_shown(show, column) for column in shown], reading)
        for name, show, reading in _FIGURES
    ]
    return [line for line in [*every, *_attribute_lines(shown)] if any(line.values)]


def notes(kinds: Mapping[str, Part]) -> list[str]:
    """Which attributes texts were held against, and which were not, and why."""
    said = []
    for kind, summary in kinds.items():
        facts = summary["texts"].get("catalog", {})
        if not summary["texts"]["rows"] or not facts:
            continue
        checked = [_spelled(name) for name, fact in facts.items() if "skipped" not in fact]
        by_reason: dict[str, list[str]] = {}
        for name, fact in facts.items():
            if "skipped" in fact:
                by_reason.setdefault(fact["skipped"], []).append(_spelled(name))
        reasons = [f"{formats.listed(names)} ({why})" for why, names in by_reason.items()]
        said.append(
            f"Of the {kind}s in the catalog, texts were held against "
            f"{formats.listed(checked) or 'nothing'}"
            + (f"; not against {', '.join(reasons)}" if reasons else "")
        )
    return said


def _shown(show: Callable[[Column], str | None], column: Column) -> str:
    try:
        value = show(column)
    except KeyError:  # users have no title, plain texts no nearness
        return ""
    return "" if value in (None, formats.MISSING) else value


def _share(key: str) -> Callable[[Column], str]:
    return lambda column: formats.percent(column.texts[key])


def _near(key: str) -> Callable[[Column], str]:
    return lambda column: formats.percent(column.similarity[key])


def _beside(key: str) -> Callable[[Column], str]:
    def show(column: Column) -> str:
        chance = formats.decimal(column.similarity[f"{key}_to_another"])
        return f"{formats.decimal(column.similarity[key])} (another row: {chance})"

    return show


def _attribute_lines(shown: Sequence[Column]) -> list[Line]:
    """Two figures of each attribute that lists names, and one of each that is a year."""
    facts = dict.fromkeys(
        (name, fact["kind"])  # users and items may call two things the same
        for column in shown
        for name, fact in column.texts.get("catalog", {}).items()
        if "skipped" not in fact
    )
    found: list[Line] = []
    for name, kind in facts:
        for words, show, reading in _FIGURES_OF[kind]:
            values = [_shown(_of_attribute(name, kind, show), column) for column in shown]
            found.append(Line(f"{_spelled(name).capitalize()}: {words}", values, reading))
    return found


def _of_attribute(
    name: str, kind: str, show: Callable[[Part], str | None]
) -> Callable[[Column], str | None]:
    def shown(column: Column) -> str | None:
        fact = column.texts["catalog"][name]
        return show(fact) if fact.get("kind") == kind else None

    return shown


def _of_names(key: str) -> Callable[[Part], str | None]:
    def show(names: Part) -> str | None:
        if names[key] is None:
            return None
        chance = formats.percent(names[f"{key}_by_chance"])
        return f"{formats.percent(names[key])} (chance: {chance})"

    return show


def _year(year: Part) -> str:
    named = f"{formats.count(year['naming'])} of {formats.count(year['texts'])} name one"
    chance = formats.percent(year["right_by_chance"])
    return f"{formats.percent(year['right'])} (chance: {chance}; {named})"


def _spelled(attribute: str) -> str:
    """As prompts show it."""
    return attribute.replace("_", " ")


_FIGURES: list[tuple[str, Callable[[Column], str | None], str]] = [
    (
        "Texts",
        lambda column: formats.count(column.texts["texts"]),
        "Rows with a usable text; all below is about these.",
    ),
    (
        "Tokens per text",
        lambda column: formats.decimal(column.texts["tokens_per_text"], 1),
        "Relaxed texts should not be much longer or shorter than plain ones.",
    ),
    (
        "Cut at the limit",
        _share("cut_share"),
        "They stop in the middle of a sentence; a higher generation.max_new_tokens mends it.",
    ),
    (
        "Nats lost per token",
        lambda column: formats.significant(column.texts["nats_per_token"]),
        "Log-probability that relaxed tokens gave up; 0 for plain and strict texts.",
    ),
    (
        "Relaxed tokens",
        _share("relaxed_share"),
        "Tokens that were not the model's first choice.",
    ),
    (
        "Texts that loop",
        _share("looping_share"),
        "Some eight tokens in a row come twice; more than in plain texts is relaxation's doing.",
    ),
    (
        "Distinct runs of three",
        _share("distinct_trigram_share"),
        "Of all three tokens in a row; 100 % says nothing twice inside a text.",
    ),
    (
        "Malformed",
        _share("malformed_share"),
        "Answers not in the form that the framework asks for; they are encoded whole.",
    ),
    (
        "Tokens from pools",
        _share("pool_share"),
        "Accepted drafts of the group's and the global pool; under strict the text is the same.",
    ),
    (
        "Shared with another text",
        _share("shared_share"),
        "Eight tokens in a row that another text of the kind has too; plain decoding repeats stock "
        "phrases as well, and what goes beyond it was copied.",
    ),
    (
        "Identical to plain",
        _near("identical"),
        "Of rows that were asked the same in both runs; the rest is what relaxation changed.",
    ),
    (
        "Without a relaxed token",
        _near("never_relaxed"),
        "Of the same rows; these are identical by rule, others only by luck.",
    ),
    (
        "Edit similarity to plain",
        _beside("edit_similarity"),
        "1 is the same tokens; the plain text of another row of the kind says what chance gives.",
    ),
    (
        "Cosine to plain",
        _beside("cosine"),
        "Of the encoded vectors, which are what a CTR model sees; near the other row's cosine, "
        "nothing of the entity is left.",
    ),
]

_FIGURES_OF: dict[str, list[tuple[str, Callable[[Part], str | None], str]]] = {
    "year": [
        (
            "the one named is right",
            _year,
            "Of texts that name a year. The prompt shows it, so this is about keeping to the "
            "prompt, not about knowing.",
        ),
    ],
    "names": [
        (
            "what is named is right",
            _of_names("precision"),
            "Of the catalog's words that a text names, those that are true of its own user or "
            "item, which the prompt shows.",
        ),
        (
            "what is right is named",
            _of_names("recall"),
            "Of what the catalog says, the share that the text names; chance is the same texts "
            "held against others.",
        ),
    ],
}
