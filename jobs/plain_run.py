"""The run whose texts are decoding's own, to hold others against: `plain_run` of the config."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from typing import Any

import pyarrow.compute as pc

from features.carry import why_not
from jobs.wave_names import knowledge_name
from jobs.waves import framework_of_knowledge
from pipeline.config import RunConfig
from pipeline.errors import DataError
from pipeline.knowledge import entities, is_among
from pipeline.runs import open_run
from pipeline.store import Store

_ASKED = ["kind", "entity_id", "prompt_hash"]
_DATASETS = ("knowledge", "features")
_EXACT = ("plain", "strict")  # rules under which a text is decoding's own
# What decides such a text besides the prompt; the last ones are of the section `generation`.
_WRITTEN_WITH = ("model", "tokenizer")
_GENERATION = (
    *("max_new_tokens", "min_new_tokens", "stop_strings"),
    *("repetition_penalty", "no_repeat_ngram"),
)


def require_plain_run(config: RunConfig) -> None:
    """Check that the run is there, if the config names one.

    Raises:
        DataError: it does not exist or has not finished.
    """
    if config.plain_run is None:
        return
    found = open_run(config.artifacts, config.plain_run)
    missing = [name for name in _DATASETS if found.manifest(name) is None]
    if missing:
        raise DataError(
            f"plain_run is {config.plain_run}, but {found.files.address} has no finished "
            f"{' and no finished '.join(missing)}; make that run first, or leave plain_run out"
        )


def open_plain_run(config: RunConfig, store: Store) -> Store | None:
    """The run that `plain_run` names, None if it names none. Looks at manifests only.

    Raises:
        DataError: it is not there, or its texts or vectors cannot be compared with those of
            `store`.
    """
    if config.plain_run is None:
        return None
    require_plain_run(config)
    plain = open_run(config.artifacts, config.plain_run)
    written_for = framework_of_knowledge(plain)
    if written_for not in ("", config.framework):
        raise _refusal(config, f"is of the framework {written_for}, this one of {config.framework}")
    ours, theirs = _writing(store), _writing(plain)
    differing = [name for name in ours if ours[name] != theirs[name]]
    if differing:
        names = ", ".join(sorted(differing))
        raise _refusal(config, f"was written with other settings than this one: {names}")
    if reason := why_not(plain, store.require("features").settings):
        raise _refusal(config, f"cannot be compared with this one: {reason}")
    return plain


def require_plain_texts(config: RunConfig, store: Store, plain: Store) -> None:
    """Check that `plain` tells of the same entities, asked the same, each in decoding's own words.

    Raises:
        DataError: it does not.
    """
    ours = store.read("knowledge", _ASKED)
    theirs = plain.read("knowledge", [*_ASKED, "rule"])
    same = pc.sum(is_among(theirs, ours)).as_py() or 0
    if not same == ours.num_rows == theirs.num_rows:
        missing = ours.filter(pc.invert(is_among(ours, theirs)))
        raise _refusal(
            config,
            f"has {theirs.num_rows} entities, and this one {ours.num_rows}; {missing.num_rows} of "
            f"these are not there, such as {missing['entity_id'][:3].to_pylist()}",
        )
    place = pc.index_in(entities(ours), value_set=entities(theirs))
    is_other = pc.not_equal(ours["prompt_hash"], theirs["prompt_hash"].take(place))
    asked_other = ours.filter(is_other)
    if asked_other.num_rows:
        some = asked_other["entity_id"][:3].to_pylist()
        words = f"was asked something else about {asked_other.num_rows} entities, such as {some}"
        raise _refusal(config, words)
    rules = set(pc.unique(theirs["rule"]).to_pylist()) - set(_EXACT)
    if rules:
        raise _refusal(config, f"has texts under the rule {', '.join(sorted(rules))}")


def versions_of(plain: Store | None) -> dict[str, str] | None:
    """What a dataset depends on that compares with a plain run; None without one."""
    return plain and {name: plain.require(name).version for name in _DATASETS}


def _refusal(config: RunConfig, reason: str) -> DataError:
    return DataError(
        f"plain_run is {config.plain_run}, which {reason}; name a run of the same entities under "
        "the rule strict, or leave plain_run out"
    )


def _writing(store: Store) -> dict[str, Any]:
    """The settings of a run's first wave that decide what greedy decoding writes."""
    first = store.manifest(knowledge_name(0))
    settings = first.settings if first else {}
    generation = settings.get("generation", {})
    return {name: settings.get(name) for name in _WRITTEN_WITH} | {
        f"generation.{name}": generation.get(name) for name in _GENERATION
    }
