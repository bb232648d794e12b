"""Frameworks by the name that `framework` in a config gives them; one is a file and a line here.

A file is loaded when its framework is asked for, since adaptors load torch.
"""

import difflib
from importlib import import_module

from features.frameworks.framework import Framework
from pipeline.errors import ConfigError

REGISTRY = {
    "kar": "features.frameworks.kar",
    "trawl": "features.frameworks.trawl",
    "once": "features.frameworks.once",
    "rlmrec": "features.frameworks.rlmrec",
}


def framework_named(name: str) -> Framework:
    """The framework that a config names.

    Raises:
        ConfigError: there is none of that name.
    """
    require_framework(name)
    return import_module(REGISTRY[name]).FRAMEWORK


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
