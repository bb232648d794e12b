"""One engine with all cores, or one per core? The same rows, written by actors in turns.

    python -m jobs.benchmark_fan_out --config conf/bench.yaml

Rows of the last wave, by the strict rule, from keys to rows of KNOWLEDGE as in a run; actors have
loaded their model and warmed up. What their engines do not spend in steps is the overhead of all
the rest: prompts, Ray, waiting for rows at the end. Stands on what `make bench` builds. The last
line on stdout is one JSON object.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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
from jobs.waves import Wave, identify, last_wave, open_wave
from jobs.writers import Writers
from pipeline.config import RunConfig, StageSettings
from pipeline.language_model import ChatTokenizer
from pipeline.store import Store

log = logging.getLogger("jobs.benchmark_fan_out")

_READ = ("benchmark", "engine", "generation", "drafts", "prompts", "seed")
_WARM_UP_BATCHES = 2  # of rows, for all actors together
TARGETS = (
    Target("many_to_one", 1.0),
    Target("overhead_of_one", 0.1, at_least=False),
    Target("overhead_of_many", 0.1, at_least=False),
)


@dataclass(frozen=True)
class Turn:
    """One writing of all rows."""

    actors: int
    cores: int  # of each
    seconds: float
    tokens: int
    overhead: float  # share of the actors' time that is outside their engines' steps


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
        result = {"turns": [asdict(turn) for turn in turns], "totals": totals}
        (folder / "fan_out.json").write_text(json.dumps(result, indent=2))

    plan.write_files(fill, len(turns))
    print(f"{'actors':>6} {'cores':>5} {'tokens/s':>8} {'overhead':>8}")
    for turn in turns:
        print(f"{turn.actors:>6} {turn.cores:>5} {_rate(turn):>8.1f} {turn.overhead:>8.1%}")
    print(json.dumps(last_line(totals, TARGETS)))


def _turns(config: RunConfig, wave: Wave, pools: Path, tokenizer: ChatTokenizer) -> Iterator[Turn]:
    """One actor with all cores of this machine, then one per core, and again."""
    start_ray(config.cluster)
    folder = partial(Path, pools)
    cores = int(max(node.get("CPU", 1) for node in node_resources()))
    rows = np.random.default_rng(config.seed).permutation(wave.tasks.num_rows)
    chosen = wave.tasks.take(np.sort(rows[: config.benchmark.fan_out_rows]))  # group by group
    rest = wave.tasks.take(rows[-_WARM_UP_BATCHES * config.engine.batch_rows :])
    for _ in range(config.benchmark.blocks):
        for actors in dict.fromkeys((1, cores)):
            each = cores // actors
            stage = StageSettings(actors=actors, cores=each)
            cluster = config.cluster.model_copy(update={"knowledge": stage})
            own = config.model_copy(update={"cluster": cluster})
            with Writers(own, tokenizer) as writers:
                list(writers.write(replace(wave, tasks=rest), STRICT, folder, "warm-up"))
                turn = _timed(writers, replace(wave, tasks=chosen), folder, actors, each)
            log.info("%d actors of %d cores: %.1f s", actors, each, turn.seconds)
            yield turn


def _timed(
    writers: Writers, wave: Wave, pools: Callable[[], Path], actors: int, cores: int
) -> Turn:
    before, began = sum(writers.engine_seconds()), time.monotonic()
    written = list(writers.write(wave, STRICT, pools, "fan-out"))
    seconds = time.monotonic() - began
    overhead = 1 - (sum(writers.engine_seconds()) - before) / (actors * seconds)
    tokens = totals_in(pa.concat_tables(written))["tokens"]
    return Turn(actors, cores, seconds, tokens, overhead)


def _totals(turns: Sequence[Turn]) -> dict[str, float | None]:
    """Rates of many small engines to that of the large one, turn by turn, and overheads."""
    ones = [turn for turn in turns if turn.actors == 1]
    many = [turn for turn in turns if turn.actors > 1]
    ratios = [_rate(few) / _rate(one) for few, one in zip(many, ones, strict=False)]
    return {
        "many_to_one": float(np.median(ratios)) if ratios else None,
        "many_to_one_least": min(ratios, default=None),
        "many_to_one_most": max(ratios, default=None),
        "overhead_of_one": float(np.median([turn.overhead for turn in ones])),
        "overhead_of_many": float(np.median([turn.overhead for turn in many])) if many else None,
    }


def _rate(turn: Turn) -> float:
    return turn.tokens / turn.seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
