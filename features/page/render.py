"""The page of a report, from templates, styles and scripts that all end up in the one file."""

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from features import draft_figures, figures, formats
from features.page.about_gain import how_to_compare, lossless_in_words
from features.page.explorer import Explorer
from features.page.older import as_today
from features.page.summary import lost_rows, paragraphs
from features.quality import table

_FOLDER = Path(__file__).parent


def render(report: Mapping[str, Any], explorer: Explorer | None = None) -> str:
    """One HTML page; it loads nothing from anywhere.

    `report` is what `features.report.summarise` makes, or an older report.json.
    """
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = ["count", "counted", "decimal", "significant", "signed", "percent", "times"]
    names += ["duration", "fact", "unbroken"]
    environment.filters |= {name: getattr(formats, name) for name in names}
    environment.filters["commands"] = _commands
    report = as_today(report)
    summary = paragraphs(report)
    told = {part.topic: part for part in summary}
    return environment.get_template("page.html").render(
        **report,
        explorer=explorer,
        summary=summary,
        states={topic: part.state for topic, part in told.items()},
        lost_rows=lost_rows(report["left_out"]),
        gain_verdict=told["CTR gain"].sentences[0].rstrip("."),
        lossless_in_words=partial(lossless_in_words, report=report),
        how_to_compare=how_to_compare(report),
        figures=figures,
        draft_figures=draft_figures,
        quality_table=table,
        flat_facts=formats.flat_facts,
        differences=formats.differences,
        pretty=_pretty,
        as_yaml=_as_yaml,
        file_of_page=_file_of_page,
    )


def _file_of_page(name: str) -> Markup:
    """A style or a script, as it stands."""
    return Markup((_FOLDER / name).read_text(encoding="utf-8"))


def _commands(text: str) -> Markup:
    """A text with what stands in backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _as_yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
