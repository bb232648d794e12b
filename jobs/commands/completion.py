"""What a shell completes words to: quickly, without loading a model, and never with an error."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec

import pyarrow.compute as pc
import typer
from typer import _completion_shared

from features.frameworks import REGISTRY
from jobs.cli import ROOT, located
from pipeline.config import RunConfig
from pipeline.config_file import load_config
from pipeline.config_schema import dotted_keys, values_of
from pipeline.locations import is_remote
from pipeline.runs import open_run, runs_in
from pipeline.schemas import KINDS
from pipeline.store import Store

CONFIGS = Path("conf")
_NAME_RUNS = ("plain_run", "refresh.previous", "semantic_ids.from_run", "recommender.from_run")
_MOST = 200  # ids that are offered at once
# As typer's own, but: words are as the shell's user sees them (bash ends them at = and :), and no
# blank comes behind `key=` and `user/`. The answer is that for fish, which splits the line itself.
_BASH = """
%(complete_func)s() {
    local line="${COMP_LINE:0:COMP_POINT}" current="${COMP_WORDS[COMP_CWORD]}" value meaning
    local word="${line##*[[:space:]]}"
    [[ $current == [=:] ]] && current=""
    local before="${word%%"$current"}"
    COMPREPLY=()
    while IFS=$'\\t' read -r value meaning; do
        [[ -n $value ]] && printf -v value '%%q' "${value#"$before"}" && COMPREPLY+=("$value")
    done < <(env %(autocomplete_var)s=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \\
        _TYPER_COMPLETE_ARGS="$line" "$1" 2>/dev/null)
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=/] ]] && compopt -o nospace
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""
_completion_shared._completion_scripts["bash"] = _BASH  # typer has no public place for it

# zsh evaluates what it is offered, after an escaping that these get through.
_HARMFUL = re.compile(r'[\\`$"\x00-\x1f\x7f]')

_P = ParamSpec("_P")
Words = Iterable[str | tuple[str, str]]


def _quiet(complete: Callable[_P, Words]) -> Callable[_P, list[str | tuple[str, str]]]:
    """Nothing is offered where something is wrong: the command itself will say what.

    Nor is a name that a shell might take for a program.
    """

    @functools.wraps(complete)
    def offered(*words: _P.args, **named: _P.kwargs) -> list[str | tuple[str, str]]:
        try:
            found = list(complete(*words, **named))
        except Exception:  # whatever a half-written config or a broken run brings
            return []
        return [
            one for one in found if not _HARMFUL.search(one if isinstance(one, str) else one[0])
        ]

    return offered


@_quiet
def complete_config(incomplete: str) -> Words:
    """Configs beside the demo's."""
    return map(str, sorted(CONFIGS.glob("*.yaml")))


@_quiet
def complete_setting(ctx: typer.Context, incomplete: str) -> Words:
    """Dotted keys with what each means; behind `key=` the values that it may have."""
    key, equals, _ = incomplete.partition("=")
    if equals:
        return [f"{key}={value}" for value in _values(ctx, key)]
    return [(f"{name}=", meaning) for name, meaning in dotted_keys(RunConfig).items()]


@_quiet
def complete_run(ctx: typer.Context, incomplete: str) -> Words:
    """Runs in the artifacts of the config."""
    return _runs(ctx)


@_quiet
def complete_group(ctx: typer.Context, incomplete: str) -> Words:
    """Groups of the run."""
    groups = _store(ctx).read("groups", ["group_id"])["group_id"]
    return sorted(set(groups.unique().to_pylist()))


@_quiet
def complete_entity(ctx: typer.Context, incomplete: str) -> Words:
    """Users and items of the run."""
    kind, slash, name = incomplete.partition("/")
    if not slash:
        return [f"{one}/" for one in KINDS]
    ids = _store(ctx).read(f"{kind}s", [f"{kind}_id"])[f"{kind}_id"]
    some = ids.filter(pc.starts_with(ids, name)).slice(0, _MOST)
    return [f"{kind}/{one}" for one in some.to_pylist()]


def _values(ctx: typer.Context, key: str) -> Iterable[str]:
    if key in _NAME_RUNS:
        return _runs(ctx)
    if key == "plan.accelerator":
        from pipeline.forecast.accelerators import ACCELERATORS

        return ACCELERATORS
    return REGISTRY if key == "framework" else values_of(RunConfig, key)


def _config(ctx: typer.Context) -> RunConfig:
    """What has been said so far; an object store is not asked while somebody types."""
    given: dict[str, Any] = ctx.params
    config = load_config(located(given["config"]), given.get("settings") or [])
    if is_remote(config.artifacts):
        raise LookupError("not while somebody types")
    return config.model_copy(update={"artifacts": ROOT / config.artifacts})


def _runs(ctx: typer.Context) -> list[str]:
    return runs_in(_config(ctx).artifacts)


def _store(ctx: typer.Context) -> Store:
    config = _config(ctx)
    return open_run(config.artifacts, config.run)
