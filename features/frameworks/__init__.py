"""Frameworks by the name that `framework` in a config gives them.

One is a file and a line here, and its wording in `conf/prompts/<name>/`. A file is loaded when its
framework is asked for, since adaptors load torch.
"""

import difflib
from functools import cache
from importlib import import_module
from pathlib import Path

from features.frameworks.framework import Framework
from pipeline.config import PromptSettings, RunConfig
from pipeline.errors import ConfigError
from pipeline.template_files import load_templates
from pipeline.templates import Templates

REGISTRY = {
    "kar": "features.frameworks.kar",
    "trawl": "features.frameworks.trawl",
    "once": "features.frameworks.once",
    "rlmrec": "features.frameworks.rlmrec",
}
PROMPTS = Path(__file__).resolve().parents[2] / "conf" / "prompts"  # a folder of each framework


def framework_named(name: str) -> Framework:
    """The framework that a config names.

    Raises:
        ConfigError: there is none of that name.
    """
    require_framework(name)
    return import_module(REGISTRY[name]).FRAMEWORK


def templates_of(config: RunConfig) -> Templates:
    """The wording of a run: its framework's, or the user's own, as it is when first asked for.

    Raises:
        ConfigError: there is none, or it cannot be used.
    """
    return templates_for(config.framework, config.prompts)


def templates_for(framework: str, settings: PromptSettings) -> Templates:
    """As `templates_of`, where there is no whole config yet."""
    return _templates_in(settings.templates or PROMPTS / framework)


def shipped_templates(name: str) -> Templates:
    """The wording that a framework comes with.

    Raises:
        ConfigError: see `load_templates`.
    """
    return _templates_in(PROMPTS / name)


@cache  # what is edited meanwhile must not change the wording in the midst of a run
def _templates_in(folder: Path) -> Templates:
    return load_templates(folder)


def require_framework(name: str) -> None:
    """Check that there is a framework of that name, without loading it.

    Raises:
        ConfigError: there is none; the nearest name is given.
    """
    if name not in REGISTRY:
        [near] = difflib.get_close_matches(name, REGISTRY, n=1, cutoff=0.0)
        raise ConfigError(
            f"framework: {name!r} is none of {', '.join(REGISTRY)}; the nearest is {near}"
        )
