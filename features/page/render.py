"""The page of a report, from templates, styles and scripts that all end up in the one file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from features import draft_figures, figures, formats
from features.page.explorer import Explorer
from features.page.older import as_today
from features.page.summary import paragraphs
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
    names = "count", "decimal", "significant", "signed", "percent", "times", "duration", "fact"
    environment.filters |= {name: getattr(formats, name) for name in names}
    report = as_today(report)
    return environment.get_template("page.html").render(
        **report,
        explorer=explorer,
        summary=paragraphs(report),
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


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _as_yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
