"""What knowledge is worth, framework by framework: relaxed texts against plainly decoded ones.

    python -m jobs.check_auc --config conf/auc.yaml

For every protocol and framework there are two runs, `<run>-<protocol>-<framework>-strict` and
`-relaxed`. Strict text is plain decoding's, token for token, and so is ReSD's, which verifies
strictly as well: it has no run of its own. The relaxed run has the check, with the strict run's
texts as an arm, and a report. What is done is skipped, so the same command goes on after a kill.
"""

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from features.ctr.arms import BASE
from features.ctr.verdict import answers
from features.formats import or_unknown
from jobs import cli
from jobs.preflight import check_inputs
from pipeline.config import RunConfig
from pipeline.errors import CheckError, PartialError, UserError
from pipeline.runs import open_run
from pipeline.store import Store

log = logging.getLogger("jobs.check_auc")

RESULT, TABLE = "auc.json", "auc.md"
_TEXTS = ("build_catalog", "train_embeddings", "group_entities", "generate_knowledge")
_STRICT_STAGES = (*_TEXTS, "compare_decoding", "encode_features")
# Error rows and missed thresholds are in the report; the code says so at the end.
_GO_ON = (0, PartialError.exit_code, CheckError.exit_code)
_RELAXED_STAGES = (*_TEXTS, "encode_features", "measure_quality", "check_ctr", "write_report")


class Part(NamedTuple):
    """One protocol and framework, on the whole catalog or a slice of it."""

    protocol: str
    framework: str
    tokens: int  # that a text may have
    is_sliced: bool

    def run(self, config: RunConfig, rule: str) -> str:
        """Name of the run with that rule."""
        place = f"{self.protocol}-slice" if self.is_sliced else self.protocol
        return f"{config.run}-{place}-{self.framework}-{rule}"

    def overrides(self, config: RunConfig, rule: str) -> list[str]:
        """What makes the run's config of the common one."""
        settings = {
            "run": self.run(config, rule),
            "catalog.split.protocol": self.protocol,
            "framework": self.framework,
            "generation.rule": rule,
            "generation.max_new_tokens": self.tokens,
        }
        if rule == "relaxed":
            settings["plain_run"] = self.run(config, "strict")
        if self.is_sliced:
            settings["catalog.max_users"] = config.auc.slice_users
            settings["catalog.max_items"] = config.auc.slice_items
        return ["{}={}".format(*item) for item in settings.items()]


def parts(config: RunConfig) -> Iterator[Part]:
    """What is checked, in order."""
    for protocol in config.auc.protocols:
        for framework, tokens in config.auc.frameworks.items():
            yield Part(protocol, framework, tokens, is_sliced=False)
        for framework, tokens in config.auc.sliced.items():
            yield Part(protocol, framework, tokens, is_sliced=True)


def run(config: RunConfig, store: Store) -> None:
    """Write the dataset `auc` from the checks of all parts."""
    checks = {
        part: open_run(config.artifacts, part.run(config, "relaxed")) for part in parts(config)
    }
    versions = {made.root.name: made.require("ctr").version for made in checks.values()}
    plan = store.plan("auc", {"checks": versions})
    if plan.is_done:
        log.info("auc: up to date, %d checks", store.require("auc").num_rows)
        return
    results = [
        {**part._asdict(), "run": made.root.name, **made.require("ctr").facts}
        for part, made in checks.items()
    ]
    table = "\n".join(table_of(results))
    for line in table.splitlines():
        log.info("%s", line)

    def fill(folder: Path) -> None:
        (folder / RESULT).write_text(json.dumps(results, indent=2), encoding="utf-8")
        (folder / TABLE).write_text(table + "\n", encoding="utf-8")

    plan.write_files(fill, num_rows=len(results))
    for result in results:
        for model, told in result["models"].items():
            for answer in answers(told):
                log.info("auc: %s, %s: %s", result["run"], model, answer)


def table_of(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A Markdown table: AUC of the base arm, and what every other arm gains, with its interval."""
    models = [model for result in results for model in result["models"].values()]
    arms = list(dict.fromkeys(arm for model in models for arm in model["gains"]))
    yield "| " + " | ".join(["protocol", "framework", "model", BASE, *arms]) + " |"
    yield "|---" * (len(arms) + 4) + "|"
    for result in results:
        for name, model in result["models"].items():
            gains = [_gain(model["gains"].get(arm)) for arm in arms]
            base = or_unknown(model["arms"][BASE]["auc"], ".4f")
            framework = result["framework"] + (" (slice)" if result["is_sliced"] else "")
            yield f"| {' | '.join([result['protocol'], framework, name, base, *gains])} |"


def _gain(gain: Mapping[str, Any] | None) -> str:
    if gain is None:
        return ""
    middle, low, high = (or_unknown(gain[name], "+.4f") for name in ("auc", "low", "high"))
    return middle if gain["auc"] is None else f"{middle} ({low} to {high})"


def runs_of(
    config: RunConfig, path: Path, overrides: Sequence[str]
) -> list[tuple[list[str], Sequence[str]]]:
    """Of every run, in order: the settings that make its config, and its stages.

    Raises:
        UserError: an input of any of them cannot be used.
    """
    for part in parts(config):  # found now, not after hours
        check_inputs(cli.read_config(path, [*overrides, *part.overrides(config, "strict")]))
    rules = (("strict", _STRICT_STAGES), ("relaxed", _RELAXED_STAGES))
    return [
        ([*overrides, *part.overrides(config, rule)], stages)
        for part in parts(config)
        for rule, stages in rules
    ]


def check(path: Path, overrides: Sequence[str] = ()) -> cli.Ended:
    """Run all stages of all parts, each in its own run, and then the table."""
    try:
        runs = runs_of(cli.read_config(path, overrides), path, overrides)
    except UserError as error:
        return cli.refused(error)
    ends = []
    for settings, stages in runs:
        for stage in stages:
            ends.append(cli.execute(import_module(f"jobs.{stage}").run, path, settings))
            if ends[-1].code not in _GO_ON:
                return ends[-1]
    ends.append(cli.execute(run, path, overrides))
    return ends[-1] if ends[-1].code else max(ends)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    asked = cli.arguments_parser(__doc__).parse_args(argv)
    return check(asked.config, asked.set).code


if __name__ == "__main__":
    sys.exit(main())
