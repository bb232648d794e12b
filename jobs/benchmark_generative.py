"""All ways to recommend on the same events: what lists are worth, and what they take.

    python -m jobs.benchmark_generative --config conf/bench_generative.yaml

Trains what is missing; drafters all for as many steps. Lists are found for liked items of the split
`test`, with the history of each event before it; they are timed for some of these, one user at a
time and in batches, all arms in turns on the same users. Measures anew whenever it is run.

The last line on stdout is one JSON object: the ratios, and which targets they miss.
"""

import json
import logging
import platform
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch

from jobs import (
    align_drafter,
    assign_semantic_ids,
    build_catalog,
    cli,
    train_embeddings,
    train_recommender,
    train_retriever,
)
from jobs.generative_arms import ALIGNED_R, ALIGNED_S, ARMS, CONTENT, ENCODER, FREE, SFT, Workshop
from jobs.generative_events import Measured, draw_events, popular_lists
from jobs.generative_measurement import Lists, find_lists, milliseconds
from jobs.generative_relations import Study, relations
from jobs.generative_summary import BASE, as_record, quality_of, ratios, speeds_of
from jobs.generative_table import lines
from jobs.train_recommender import known_events, read_inputs
from pipeline.config import RunConfig
from pipeline.store import Store

log = logging.getLogger("jobs.benchmark_generative")

_INPUTS = ["interactions", "semantic_ids", "recommender", SFT, ALIGNED_S, ALIGNED_R]
_INPUTS += [CONTENT, ENCODER]


def run(config: RunConfig, store: Store) -> None:
    """Write `generative_benchmark/benchmark.json`; print a table and a line of JSON."""
    _train(config, store)
    own = config.generative_benchmark
    settings = {"generative_benchmark": own, "recommendation": config.recommendation}
    plan = store.plan("generative_benchmark", settings, _INPUTS)
    inputs = read_inputs(store)
    shop = Workshop(config, store, inputs)
    most = config.recommender.history_length
    known = known_events(inputs.log, config)
    last = int(known.times.max())
    events = draw_events(inputs, shop.items, last, own.events, most, config.seed)
    log.info("%d events, %d of warm items", len(events), int(events.is_warm.sum()))
    began = time.monotonic()
    found = _found(shop, events, inputs.codes, own.widths)
    popular = popular_lists(shop.items, known.items, events, own.widths[1])
    spent = _timed(shop, events, inputs.codes, config)
    study = Study(shop, events, found, spent, inputs.codes, config)
    benchmark = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, {shop.model.device}",
        "events": {"warm": int(events.is_warm.sum()), "cold": int((~events.is_warm).sum())},
        "items": len(inputs.codes),
        "popular": quality_of(popular, events, config.seed),
        "arms": [
            as_record(name, width, lists, found[same_as(name), width], events, config.seed)
            for (name, width), lists in found.items()
        ],
        "speeds": speeds_of(spent),
        "relations": relations(study),
        "seconds": round(time.monotonic() - began),
    }
    strict = [name for name, arm in ARMS.items() if arm.same_as == BASE]
    gain = study.gain(found["NEZHA", own.widths[-1]], found[BASE, own.widths[-1]], 10, True)
    benchmark["ratios"] = ratios(benchmark, own.widths, strict, gain)
    plan.write_json("benchmark.json", benchmark, len(benchmark["arms"]))
    for line in lines(benchmark):
        print(line)
    print(json.dumps(benchmark["ratios"]))


def same_as(name: str) -> str:
    """The arm whose lists those of an arm are held against."""
    return ARMS[name].same_as or BASE if name in ARMS else BASE


def _train(config: RunConfig, store: Store) -> None:
    """All models, each as its own job makes it."""
    for stage in (build_catalog, train_embeddings, assign_semantic_ids, train_recommender):
        stage.run(config, store)
    for name, loss in ((SFT, "sft"), (ALIGNED_S, "atspeed_s"), (ALIGNED_R, "atspeed_r")):
        training = config.aligned_drafter.training
        training = training.model_copy(update={"patience": training.max_epochs})
        own = config.aligned_drafter.model_copy(update={"loss": loss, "training": training})
        align_drafter.run(config.model_copy(update={"aligned_drafter": own}), store, name)
    for name, tower in ((CONTENT, "content"), (ENCODER, "encoder")):
        section = config.retriever.model_copy(update={"tower": tower})
        train_retriever.run(config.model_copy(update={"retriever": section}), store, name)


def _found(
    shop: Workshop, events: Measured, codes: np.ndarray, widths: Sequence[int]
) -> dict[tuple[str, int], Lists]:
    """Lists of all arms, by name and beams; at the widest of what its target compares."""
    found = {}
    for width in widths:
        is_widest = width == widths[-1]
        arms = {name: ARMS[name] for name in (BASE, "NEZHA")} if is_widest else ARMS | FREE
        for number, (name, arm) in enumerate(arms.items(), 1):
            began = time.monotonic()
            found[name, width] = find_lists(shop.ready(arm, width), events, codes, shop.items)
            log.info(
                "lists of %d: arm %d / %d, %s: %.0f s",
                *(width, number, len(arms), name, time.monotonic() - began),
            )
    return found


def _timed(
    shop: Workshop, events: Measured, codes: np.ndarray, config: RunConfig
) -> dict[tuple[str, int, int], np.ndarray]:
    """Milliseconds a user, by arm, beams and batch size."""
    own, spent = config.generative_benchmark, {}
    for width in own.widths:
        ready = {name: shop.ready(arm, width) for name, arm in ARMS.items()}
        for batch in [1, *own.batch_sizes]:
            users = own.timed_users if batch == 1 else 4 * batch
            for name, times in milliseconds(ready, events, codes, batch, users).items():
                spent[name, width, batch] = times
            log.info("timed %d beams in batches of %d", width, batch)
    return spent


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
