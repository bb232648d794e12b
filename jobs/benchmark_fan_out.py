"""One engine with all cores, or one per core? The same rows, written by actors in turns.

    python -m jobs.benchmark_fan_out --config conf/bench.yaml

Rows of the last wave, by the strict rule, from keys to rows of KNOWLEDGE as in a run; actors have
loaded their model and warmed up. All turns have the same number of rows in flight: the one engine
has the batches of all others together. What engines do not spend in steps is the overhead of all
the rest: prompts, Ray, waiting for rows at the end. Texts must be the same in all turns. Stands on
what `make bench` builds. The last line on stdout is one JSON object.
"""

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from jobs import cli
from jobs.benchmark_rows import prepare
from jobs.benchmark_summary import Target, last_line
from jobs.cluster import node_resources, start_ray
from jobs.decoding_arms import STRICT
from jobs.merge_waves import totals_in
from jobs.wave_names import last_wave
from jobs.waves import Wave, identify, open_wave
from jobs.writers import Writers
from pipeline.config import RunConfig, StageSettings
from pipeline.errors import DataError
from pipeline.language_model import ChatTokenizer
from pipeline.store import Store

log = logging.getLogger("jobs.benchmark_fan_out")

_READ = ("benchmark", "cluster", "engine", "generation", "drafts", "prompts", "seed")
_WARM_UP_BATCHES = 2  # for each of the most actors
TARGETS = (
    Target("many_to_one", 1.0),
    Target("overhead_of_one", 0.1, at_least=False),
    Target("overhead_of_many", 0.1, at_least=False),
    Target("rows_unlike", 0.0, at_least=False),
)


@dataclass(frozen=True)
class Turn:
    """One writing of all rows."""

    actors: int
    cores: int  # of each
    batch_rows: int  # of each
    seconds: float
    tokens: int
    overhead: float  # share of the actors' time that is outside their engines' steps
    texts: Mapping[tuple[str, str], list[int]]  # (kind, entity) -> token ids


def run(config: RunConfig, store: Store) -> None:
    """Write `fan_out/fan_out.json`; print a table and a line of JSON."""
    identity = identify(config)
    pools = prepare(config, store, identity)
    settings = {name: getattr(config, name) for name in _READ} | {"model": identity.model}
    plan = store.plan("fan_out", settings, inputs=["interactions", pools.name])
    wave = open_wave(config, store, last_wave(config), identity, pools.fingerprint)
    turns = list(_turns(config, wave, store.files.local(pools.name), identity.tokenizer))
    totals = _totals(turns)

    def fill(folder: Any) -> None:
        told = [
            {name: value for name, value in asdict(turn).items() if name != "texts"}
            for turn in turns
        ]
        result = {"turns": told, "totals": totals}
        (folder / "fan_out.json").write_text(json.dumps(result, indent=2))

    plan.write_files(fill, len(turns))
    print(f"{'actors':>6} {'cores':>5} {'rows':>5} {'tokens/s':>8} {'overhead':>8}")
    for turn in turns:
        sizes = f"{turn.actors:>6} {turn.cores:>5} {turn.batch_rows:>5}"
        print(f"{sizes} {turn.tokens / turn.seconds:>8.1f} {turn.overhead:>8.1%}")
    print(json.dumps(last_line(totals, TARGETS)))


def _turns(config: RunConfig, wave: Wave, pools: Path, tokenizer: ChatTokenizer) -> Iterator[Turn]:
    """One actor with all cores of this machine, then one per core, and again."""
    start_ray(config.cluster)
    cores = int(max(node.get("CPU", 1) for node in node_resources()))
    rows = np.random.default_rng(config.seed).permutation(wave.tasks.num_rows)
    chosen = wave.tasks.take(np.sort(rows[: config.benchmark.fan_out_rows]))  # group by group
    if not chosen.num_rows:
        raise DataError("the last wave has no row to measure; raise catalog.max_users")
    rest = wave.tasks.take(rows[-_WARM_UP_BATCHES * cores * config.engine.batch_rows :])
    for block in range(config.benchmark.blocks):
        for actors in dict.fromkeys((1, cores)):
            own = _sized(config, actors, cores)
            with Writers(own, tokenizer) as writers:
                list(
                    writers.write(
                        replace(wave, tasks=rest), STRICT, partial(Path, pools), "warm-up"
                    )
                )
                turn = _timed(writers, replace(wave, tasks=chosen), pools, own)
            log.info("block %d, %d actors: %.1f s", block + 1, actors, turn.seconds)
            yield turn


def _sized(config: RunConfig, actors: int, cores: int) -> RunConfig:
    """The config for so many actors: together they have all cores and the same rows in flight."""
    stage = StageSettings(actors=actors, cores=cores // actors)
    rows = config.engine.batch_rows * cores // actors
    return config.model_copy(
        update={
            "cluster": config.cluster.model_copy(update={"knowledge": stage}),
            "engine": config.engine.model_copy(update={"batch_rows": rows}),
        }
    )


def _timed(writers: Writers, wave: Wave, pools: Path, config: RunConfig) -> Turn:
    stage, began = config.cluster.knowledge, time.monotonic()
    written = pa.concat_tables(writers.write(wave, STRICT, partial(Path, pools), "fan-out"))
    seconds = time.monotonic() - began
    rows = written.select(["kind", "entity_id", "token_ids"]).to_pylist()
    return Turn(
        stage.actors or 1,
        stage.cores or 1,
        config.engine.batch_rows,
        seconds,
        totals_in(written)["tokens"],
        1 - writers.engine_share,
        {(row["kind"], row["entity_id"]): row["token_ids"] for row in rows},
    )


def _totals(turns: Sequence[Turn]) -> dict[str, float | None]:
    """Speed of many small engines to that of the large one, turn by turn; overheads; texts."""
    ones = [turn for turn in turns if turn.actors == 1]
    many = [turn for turn in turns if turn.actors > 1]
    ratios = [one.seconds / few.seconds for few, one in zip(many, ones, strict=False)]
    return {
        "many_to_one": float(np.median(ratios)) if ratios else None,
        "many_to_one_least": min(ratios, default=None),
        "many_to_one_most": max(ratios, default=None),
        "overhead_of_one": float(np.median([turn.overhead for turn in ones])),
        "overhead_of_many": float(np.median([turn.overhead for turn in many])) if many else None,
        "rows_unlike": sum(
            turn.texts[row] != text for turn in turns[1:] for row, text in turns[0].texts.items()
        ),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
