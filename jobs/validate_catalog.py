"""What a run would stumble over, and what its catalog is like: all at once, before a night.

    python -m jobs.validate_catalog --config conf/demo.yaml

Looks only; writes nothing. Exit codes: 0 a run can start (also with warnings), 2 or 3 it cannot.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs import cli
from jobs.build_catalog import NO_PAST, require_likes
from jobs.catalog_numbers import numbers_of
from jobs.catalog_trial import quiet
from jobs.catalog_warnings import warnings_of
from jobs.preflight import complaints
from jobs.prompt_lengths import length_warnings, prompt_lengths
from jobs.terminal_text import printable
from jobs.unread_titles import unread_titles
from pipeline.catalog import Catalog, make_catalog
from pipeline.config import RunConfig
from pipeline.config_file import usable_config
from pipeline.errors import ConfigError, DataError, ModelError, UnusableCatalog, UserError
from pipeline.readers import read_raw
from pipeline.store import Store
from pipeline.validation import validate
from pipeline.withdrawn import withdrawn_ids

_AFTER = "splits, groups and prompts"
_MODELS = {"language_model", "encoder"}
_OF_FILES = ("catalog.tables", "catalog.source", "catalog.path")  # which say where the tables are


def run(config: RunConfig, store: Store) -> int:
    """Print what there is to know; return an exit code."""
    facts = facts_of(config)
    for line in lines(facts):
        print(line)
    return facts["exit_code"]


def facts_of(config: RunConfig) -> dict[str, Any]:
    """Everything that is wrong, everything worth a warning, and what the catalog is like.

    `problems` would end a run, `warnings` would not; `tables`, `splits` and `prompts` are missing
    where no catalog can be made. `not_looked_at` is what can only be seen once they are mended.
    """
    problems = [*complaints(config), *_of_withdrawn(config)]
    has_model = not any(isinstance(problem, ModelError) for problem in problems)
    warnings: list[str] = []
    unseen = [] if has_model else ["what the models are like"]
    catalog = catalog_of(config, problems, warnings, unseen)
    facts: dict[str, Any] = {"run": config.run}
    if catalog:
        facts |= numbers_of(catalog, config)
        problems += _unknown_groups(facts["tables"], config)
        warnings += warnings_of(facts, config)
        unread = unread_titles(catalog.items["title"], config.language_model)
        warnings += [unread] if unread else []
        try:
            facts["prompts"] = prompt_lengths(catalog, config, has_model)
        except ModelError as error:  # its files are there, but no tokenizer among them
            problems.append(error)
            facts["prompts"] = prompt_lengths(catalog, config, False)
        warnings += length_warnings(facts["prompts"], config)
    return facts | verdict_of(problems, warnings, unseen)


def _of_withdrawn(config: RunConfig) -> Iterator[UserError]:
    """What is wrong with the table of items that are recommended to nobody, if one is named."""
    try:
        if config.recommendation.withdrawn is not None:
            withdrawn_ids(config.recommendation.withdrawn)
    except UserError as error:
        yield error


def verdict_of(
    problems: Sequence[UserError], warnings: Sequence[str], unseen: Sequence[str]
) -> dict[str, Any]:
    """What is wrong, each once; what may be; and what was not looked at."""
    said = list(dict.fromkeys(map(str, problems)))
    parts = [one for one in said for other in said if one is not other and one in other]
    return {
        "problems": [one for one in said if one not in parts],
        "warnings": list(warnings),
        "not_looked_at": list(unseen),
        "exit_code": problems[0].exit_code if problems else 0,
    }


def catalog_of(
    config: RunConfig, problems: list[UserError], warnings: list[str], unseen: list[str]
) -> Catalog | None:
    """The catalog as a run would make it; of one that is refused, as far as its rows can be used.

    What is wrong with it is added to `problems`, or to `warnings` where it is left out; what could
    not be looked at to `unseen`.
    """
    settings, left_out, is_refused = config.catalog, [], False
    try:
        raw = read_raw(settings)
    except UserError as error:
        problems.append(error)
        unseen += ["the rows of the tables", _AFTER]
        return None
    try:
        validate(raw, settings.timestamp_unit)
    except UnusableCatalog as error:
        is_refused = settings.unusable_rows == "refuse"
        if is_refused:
            problems.append(error)
        else:
            left_out = _left_out(error)
    all_usable = {"unusable_rows": "drop", "max_unusable_share": 1.0}
    usable = settings.model_copy(update=all_usable) if is_refused else settings
    try:
        with quiet():
            catalog = make_catalog(raw, usable)
        require_likes(catalog, settings)
    except DataError as error:
        is_unusable = isinstance(error, UnusableCatalog)  # then nothing is left out
        warnings += [] if is_unusable else left_out
        if not (is_refused and is_unusable):
            problems.append(error)
        unseen.append(_AFTER)
        return None
    warnings += left_out
    return catalog


def _left_out(error: UnusableCatalog) -> list[str]:
    """The kinds of rows that a run goes on without."""
    pairs = zip(error.found, error.examples, strict=True)
    return [f"left out: {found}" + f" ({some})" * bool(some) for found, some in pairs]


def broken_config_facts(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """As `facts_of`, of a config that is wrong itself; {} if it is not.

    Tables and models are looked at where their own sections are right.
    """
    path = cli.located(path)
    try:
        cli.read_config(path, overrides)
    except ConfigError as error:
        problems: list[UserError] = [error]
    else:
        return {}
    unseen, found = [], usable_config(path, overrides)
    if found is None:
        return verdict_of(problems, [], ["tables and models"])
    config, wrong = found
    sections = {key.split(".")[0] for key in wrong}
    has_files = not any(key.startswith(_OF_FILES) for key in wrong)
    problems += complaints(config, but_for=sections - ({"catalog"} if has_files else set()))
    if "catalog" in sections:
        unseen = ["the rows of the tables" if has_files else "the tables", _AFTER]
    elif catalog_of(config, problems, [], unseen):
        unseen = [_AFTER]
    return verdict_of(problems, [], [*(sorted(sections & _MODELS)), *unseen])


def _unknown_groups(tables: Mapping[str, Any], config: RunConfig) -> Iterator[ConfigError]:
    """Attributes to group by that no entity has."""
    for kind in ("user", "item"):
        known = tables[f"{kind}s"]["attributes_missing_share"]
        names = getattr(config.groups, f"{kind}_attributes")
        unknown = [name for name in names if name not in known]
        if unknown:
            yield ConfigError(
                f"groups.{kind}_attributes: no {kind} has {', '.join(unknown)}; the catalog has "
                f"{', '.join(sorted(known)) or 'none'}"
            )


def lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The facts for a terminal."""
    return map(printable, _lines(facts))


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    if "tables" in facts:
        yield from _table_lines(facts["tables"])
        yield from _split_lines(facts)
        yield from _prompt_lines(facts["prompts"])
    yield from (f"warning: {warning}" for warning in facts["warnings"])
    yield from (f"error: {problem}" for problem in facts["problems"])
    errors, warnings = len(facts["problems"]), len(facts["warnings"])
    unseen = " and ".join(facts["not_looked_at"])
    more = f", then {unseen} can be looked at" if unseen else ""
    verdict = f"{errors} to be mended{more}" if errors else f"run {facts['run']} can start"
    yield f"{verdict}; {warnings} warning{'' if warnings == 1 else 's'}"


def _table_lines(tables: Mapping[str, Any]) -> Iterator[str]:
    for name in ("users", "items"):
        table = tables[name]
        silent = f"{table['without_interactions']:,} without interactions"
        untitled = f", {table['without_title']:,} without a title" if name == "items" else ""
        yield f"{name:<13} {table['rows']:>9,} rows, {silent}{untitled}"
        for attribute, share in table["attributes_missing_share"].items():
            yield f"  {attribute}: {share:.1%} missing"
    log = tables["interactions"]
    rated = "ratings {least:g} to {most:g}".format(**log["ratings"]) if log["ratings"] else ""
    yield (
        f"{'interactions':<13} {log['rows']:>9,} rows, {log['likes'] / log['rows']:.0%} likes, "
        f"{rated or 'no ratings'}, {log['first_day']} to {log['last_day']}"
    )


def _split_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'split':<13} {'rows':>9} {'users':>9} {'items':>9} {'likes':>6}"
    for name, part in facts["splits"].items():
        counts = " ".join(f"{part[key]:>9,}" for key in ("rows", "users", "items"))
        yield f"  {name:<11} {counts} {part['likes'] / max(part['rows'], 1):>6.0%}"
    yield f"  {facts[NO_PAST]:.1%} of the test rows are of users without a past"


def _prompt_lines(prompts: Mapping[str, Any]) -> Iterator[str]:
    for kind, text in prompts["examples"].items():
        yield f"a prompt of {'a user' if kind == 'user' else 'an item'}:"
        yield from (f"  | {line}" for line in text.splitlines())
    longest = ", ".join(f"{kind} {tokens:,}" for kind, tokens in prompts["longest"].items())
    yield (
        f"longest of {prompts['measured']} long prompts, in tokens by {prompts['counted_by']}: "
        f"{longest}; prompts.max_tokens is {prompts['limit']:,}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    arguments = cli.arguments_parser(__doc__).parse_args(argv)
    if facts := broken_config_facts(arguments.config, arguments.set):
        print("\n".join(lines(facts)))
        return facts["exit_code"]
    return cli.show(run, arguments.config, arguments.set, must_exist=False).code


if __name__ == "__main__":
    sys.exit(main())
