"""Where do groups help, and where do they not? `make sweep`.

    python -m jobs.sweep_pools --config conf/sweep.yaml

Builds what is missing: the catalog, embeddings, groups and all waves, strictly decoded. The last
wave is held out. Pools are built from the earlier texts in many ways (other groups, other sizes,
other sources), and strict decoding of the held-out texts is replayed against each of them, without
the model. Relaxed rules need the model, and are measured on a few rows. Measures anew whenever it
is run.

The last line on stdout is one JSON object: what groups gain.
"""

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jobs import cli
from jobs.sweep_plots import render
from jobs.sweep_rows import Setting, Texts, pools_for, prepare_texts, read_texts
from jobs.sweep_rules import measure_rules
from jobs.sweep_summary import Outcome, summarise
from jobs.sweep_variations import Arm, Variations
from jobs.wave_names import knowledge_name, last_wave
from jobs.waves import Identity, identify
from pipeline.config import RunConfig
from pipeline.cost_cache import cost_file, read_costs
from pipeline.engine.budget import FREE, CostTable
from pipeline.engine.stops import Stops
from pipeline.engine.types import NoDraft
from pipeline.language_model import load_model, stop_ids_of
from pipeline.store import Plan, Store
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.replay import Replay, replay

log = logging.getLogger("jobs.sweep_pools")


def run(config: RunConfig, store: Store) -> None:
    """Write `sweep/sweep.json` and `sweep/sweep.html`; print a table and a line of JSON."""
    identity = identify(config)
    pools = prepare_texts(config, store, identity)
    texts = read_texts(config, store, identity)
    waves = [knowledge_name(wave) for wave in range(last_wave(config) + 1)]
    settings = {name: getattr(config, name) for name in ("sweep", "pools", "engine")}
    plan = store.plan("sweep", settings, inputs=["groups", "embeddings", *waves])
    rules = _rules(config, texts, store, pools, identity)
    stops, costs = _decoding(config, identity)  # which that has measured, if nothing else had
    began = time.perf_counter()
    records = [
        {"kind": kind} | record
        for kind in config.generation.kinds
        for record in _replays(config, texts, kind, stops, costs)
    ]
    seconds = time.perf_counter() - began
    sweep = {
        "run": store.root.name,
        "model": config.language_model.path.rstrip("/").rpartition("/")[2],
        "past_texts": int(texts.is_past.sum()),
        "groups": store.require("groups").facts["sizes"],
        "settings": config.sweep.model_dump(mode="json"),
        "seconds_of_replays": round(seconds, 1),
        "arms": records,
        "rules": rules,
    }

    def fill(folder: Path) -> None:
        (folder / "sweep.json").write_text(json.dumps(sweep, indent=2))
        (folder / "sweep.html").write_text(render(sweep), encoding="utf-8")

    plan.write_files(fill, len(records))
    for line in lines(sweep):
        print(line)
    print(json.dumps(_last_line(records)))


def _rules(
    config: RunConfig, texts: Texts, store: Store, pools: Plan, identity: Identity
) -> list[dict[str, Any]]:
    """Rule by rule, on a few held-out rows of each kind."""
    if not config.sweep.rule_rows:
        return []
    random, requests = np.random.default_rng(config.seed), {}
    for kind in config.generation.kinds:
        held_out = random.permutation(np.flatnonzero(~texts.is_past & (texts.kinds == kind)))
        rows = held_out[: config.sweep.rule_rows]
        requests[kind] = [texts.recordings[row].request for row in rows]
    return measure_rules(config, requests, store.files.local(pools.name), identity.tokenizer)


def _decoding(config: RunConfig, identity: Identity) -> tuple[Stops, CostTable | None]:
    """What ends a text, and what steps of one row cost here, if that has been measured."""
    model = load_model(config.language_model)
    strings, decode = config.generation.stop_strings, identity.tokenizer.decode_exactly
    costs = read_costs(cost_file(model, config.engine.model_copy(update={"batch_rows": 1})))
    if costs is None:
        log.warning(
            "no step costs of batch 1 are in the cache, so no speed-up is expected of anything; "
            "set sweep.rule_rows to 1 or more to have them measured"
        )
    return Stops(stop_ids_of(model), strings, decode), costs


def _replays(
    config: RunConfig, texts: Texts, kind: str, stops: Stops, costs: CostTable | None
) -> list[dict[str, Any]]:
    """Records of all arms of one kind."""
    plain = None
    if costs is not None:
        undrafted = replay(texts.recordings, NoDraft(), stops, 0, costs)
        plain = undrafted.seconds
    arms, outcomes, began = [], [], time.perf_counter()
    for arm in Variations(config, texts, kind).arms():
        arms.append(arm)
        outcomes.append(replay_arm(texts, arm, stops, costs, plain))
    log.info("%ss: %d arms in %.0f s", kind, len(arms), time.perf_counter() - began)
    return summarise(arms, outcomes, config.sweep.bootstrap, config.seed)


def replay_arm(
    texts: Texts,
    arm: Arm,
    stops: Stops,
    costs: CostTable | None = None,
    plain_seconds: np.ndarray | None = None,
) -> Outcome:
    """Replay all settings of an arm with all drafts verified, and the first one as `costs` allow.

    `plain_seconds` (n,) are what plain decoding of each text would take.
    """
    free = [_replay(texts, setting, stops, FREE) for setting in arm.settings]
    size, seconds = len(texts), None
    if costs is not None and plain_seconds is not None:
        first = arm.settings[0]
        paid = _replay(texts, first, stops, costs)
        seconds = _scattered(paid.seconds, first.rows, size)
        is_replayed = np.isin(np.arange(size), first.rows)
        plain_seconds = np.where(is_replayed, plain_seconds, 0.0)
    pairs = list(zip(free, arm.settings, strict=True))
    return Outcome(
        tokens=np.stack([_scattered(one.tokens, own.rows, size) for one, own in pairs]),
        passes=np.stack([_scattered(one.passes, own.rows, size) for one, own in pairs]),
        drafted=sum(int(one.drafted.sum()) for one in free),
        accepted_by_source=np.sum([one.accepted_by_source.sum(axis=0) for one in free], axis=0),
        accepted_by_depth=np.sum([one.accepted_by_depth.sum(axis=0) for one in free], axis=0),
        texts_per_pool=float(np.mean([own.texts_per_pool for own in arm.settings])),
        seconds=seconds,
        plain_seconds=plain_seconds if seconds is not None else None,
    )


def _replay(texts: Texts, setting: Setting, stops: Stops, costs: CostTable) -> Replay:
    drafter = PoolDrafter(pools_for(texts, setting), setting.depth, setting.sources)
    rows = []
    for row in setting.rows:
        recording = texts.recordings[row]
        request = replace(recording.request, group=str(setting.pool_of[row]))
        rows.append(replace(recording, request=request))
    return replay(rows, drafter, stops, setting.nodes, costs)


def _scattered(values: np.ndarray, rows: np.ndarray, size: int) -> np.ndarray:
    """The values at their rows, zeros elsewhere: (size,)."""
    whole = np.zeros(size, values.dtype)
    whole[rows] = values
    return whole


def lines(sweep: Mapping[str, Any]) -> Iterator[str]:
    """All arms, then all rules, for a terminal."""
    yield f"{sweep['past_texts']} earlier texts; every number with its 90 % interval"
    yield (
        f"{'kind':<5} {'experiment':<12} {'arm':<28} {'texts':>6} {'tokens per pass':>18}"
        f" {'speed-up':>8} {'gain':>22}  over"
    )
    for record in sweep["arms"]:
        tokens, gain, speed = record["tokens_per_pass"], record["gain"], record["speedup"]
        name = f"{record['series']} {record['value']}".strip()
        yield (
            f"{record['kind']:<5} {record['experiment']:<12} {name:<28}"
            f" {record['texts_per_pool']:>6.1f} {tokens['mean']:>5.2f}"
            f" [{tokens['low']:.2f}, {tokens['high']:.2f}]"
            f" {'-' if speed is None else format(speed['mean'], '.2f') + 'x':>8}"
            f" {gain['mean']:>+7.1%} [{gain['low']:+.1%}, {gain['high']:+.1%}]"
            f"  {record['against']}"
        )
    for record in sweep["rules"]:
        tokens, nats = record["tokens_per_pass"], record["nats_per_token"]
        yield (
            f"{record['kind']:<5} {record['rule']:<20} {tokens['mean']:.2f} tokens per pass"
            f" [{tokens['low']:.2f}, {tokens['high']:.2f}], {nats['mean']:.4f} nats per token"
            f" [{nats['low']:.4f}, {nats['high']:.4f}]"
        )


def _last_line(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each kind what one pool gives, and what groups add; with the interval of the gain."""
    found: dict[str, Any] = {}
    for record in records:
        if record["experiment"] == "scope":
            gain = record["gain"]
            own = found.setdefault(record["kind"], {})
            own[record["series"]] = {
                "tokens_per_pass": round(record["tokens_per_pass"]["mean"], 3),
                "against": record["against"],
                "gain": [round(gain[name], 4) for name in ("low", "mean", "high")],
            }
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
