"""All datasets of a run -> report.json for dashboards and report.html for people.

    python -m jobs.write_report --config conf/demo.yaml

Sections whose dataset has not been made yet (`comparison`, `quality`, `ctr`) say which job
makes it.
"""

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from features import formats
from features.config_differences import config_differences
from features.frameworks import templates_of
from features.page.explorer import Explorer, pack
from features.page.pieces import Decode
from features.page.render import render
from features.provenance import OPTIONAL, REQUIRED, language_model_of
from features.report import summarise
from jobs import cli
from jobs.left_out import why_no_check, why_no_comparison
from jobs.unread_titles import unread_titles
from jobs.wave_names import knowledge_name
from jobs.waves import open_prompts_of
from pipeline.config import RunConfig
from pipeline.errors import DataError, ModelError
from pipeline.parts import read_batches
from pipeline.prompts import Prompts
from pipeline.schemas import KNOWLEDGE
from pipeline.store import Store

log = logging.getLogger("jobs.write_report")


def run(config: RunConfig, store: Store) -> str:
    """Make `report`; return where it is, which a person wants to read last.

    Raises:
        DataError: a dataset that the report needs is missing, damaged or out of date.
    """
    for name in REQUIRED:
        if store.manifest(name) is not None and not store.is_consistent(name):
            raise DataError(
                f"{store.files.address}/{name} was made from older inputs; run its job again"
            )
    made = [name for name in OPTIONAL if store.is_consistent(name)]
    for name in set(OPTIONAL) - set(made):
        if store.manifest(name) is not None:
            log.info(
                "report: %s was made from older inputs and is left out; run its job again", name
            )
    previous = config.refresh.previous
    reason = "" if "comparison" in made else why_no_comparison(config, store)
    shown = config.model_dump(mode="json")
    wording = {"templates": templates_of(config).hash}
    settings = {"previous": previous, "no_comparison": reason, "config": shown} | wording
    settings["page"] = 2  # what it shows: a page that shows less is old
    plan = store.plan("report", settings, inputs=[*REQUIRED, *made])
    place = f"report: {store.files.address}/report/report.html"
    if plan.is_done:
        log.info("report: up to date")
        return place
    no_check = "" if "ctr" in made else why_no_check(config)
    report = summarise(store, previous, reason) | {"no_check": no_check, "config": shown}
    report["language_model"] = language_model_of(report)
    titles = store.read("items", ["title"])["title"]
    report["unread_titles"] = unread_titles(titles, config.language_model)
    report["config_differences"] = config_differences(shown | wording, report["datasets"])
    if others := dict.fromkeys(one["setting"] for one in report["config_differences"]):
        told = "report: the run was made with another config: %s; its page tells"
        log.warning(told, ", ".join(others))
    page_text = render(report, _explorer(config, store))

    def fill(folder: Path) -> None:
        text = json.dumps(report, indent=1, allow_nan=False, ensure_ascii=False)
        (folder / "report.json").write_text(text, encoding="utf-8")
        (folder / "report.html").write_text(page_text, encoding="utf-8")

    plan.write_files(fill, num_rows=len(report["datasets"]), facts=report["headline"])
    _log_headline(report["headline"], report["speed"])
    return place


def _explorer(config: RunConfig, store: Store) -> Explorer:
    """The texts of the run, by their tokens where the run knows where each came from."""
    knowledge = partial(read_batches, store.parts("knowledge"), KNOWLEDGE)
    items = store.read("items", ["item_id", "title"])
    prompts_of = partial(_prompts, config, store)
    return pack(knowledge, items, decoder_of(config, store), prompts_of=prompts_of)


def _prompts(
    config: RunConfig, store: Store, user_ids: pa.Array, item_ids: pa.Array
) -> Prompts | None:
    """What makes prompts of the run again; None, with a line in the log, if nothing can."""
    try:
        return open_prompts_of(config, store, user_ids, item_ids)
    except DataError as error:
        log.warning("report: texts are shown without what was asked: %s", error)
        return None


def decoder_of(config: RunConfig, store: Store) -> Decode | None:
    """What token ids say; None, with a line in the log, without the tokenizer that made them."""
    from pipeline.language_model import (
        load_tokenizer,
    )  # loads torch; who only imports this need not

    why = "report: texts are shown without the origins of their tokens: %s"
    try:
        tokenizer = load_tokenizer(config.language_model)
    except (DataError, ModelError) as error:
        log.warning(why, error)
        return None
    first = store.manifest(knowledge_name(0))
    if first is not None and first.settings.get("tokenizer") != tokenizer.fingerprint:
        log.warning(why, "language_model is not the model that wrote them")
        return None
    return tokenizer.decode_exactly


def _log_headline(headline: Mapping[str, Any], speed: Mapping[str, Any] | None) -> None:
    gain, refresh = headline["auc_gain"], headline["refresh"]
    number = len(headline["auc_gains"])
    smallest = f", the smallest of {number} models" if number > 1 else ""
    of_gain = (
        f" [{formats.signed(gain['low'])}, {formats.signed(gain['high'])}], {gain['model']}"
        f"{smallest}: {gain['outcome']}"
        if gain
        else ""
    )
    if refresh:
        log.info(
            "report: kept from %s: %s, written now: %s",
            refresh["previous"],
            *(formats.count(refresh[key]) for key in ("kept", "written")),
        )
    log.info(
        "report: entities with a text: %s of %s (%s errors)",
        *(formats.count(headline[key]) for key in ("entities", "of_rows", "errors")),
    )
    now = " written now" if refresh else ""
    log.info("report: tokens%s: %s", now, formats.count(headline["tokens"]))
    per_pass = formats.decimal(headline["tokens_per_forward"])
    log.info("report: tokens per forward pass%s: %s", f", of those{now}" if now else "", per_pass)
    speedup = formats.times(headline["speedup"])
    log.info("report: speed-up, %s against plain: %s", headline["rule"], speedup)
    if speed and speed["doubt"]:
        for clause in speed["doubt"].split(": "):
            log.warning("report: no speed-up is told: %s", clause)
    log.info("report: AUC gain: %s%s", formats.signed(gain["auc"] if gain else None), of_gain)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
