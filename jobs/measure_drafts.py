"""What do drafts bring, node by node? `make plan-profile`.

    python -m jobs.measure_drafts --config conf/bench.yaml

Builds what `make bench` builds. Then each rule decodes some rows of the last wave, which no pool
holds, with every draft verified: of each node it is known how sure the drafter was, and whether it
stayed. So the profile says what any draft budget would bring, where a benchmark knows its own only.
What `make bench` has measured in the run is kept beside it: speeds, step costs, and how much of a
prompt is computed, to hold a forecast against.

Writes `draft_profile/profile.json`, which `plan.profile` takes. Measures anew whenever it is run.
The last line on stdout is one JSON object: tokens per forward pass, by rule and kind.
"""

import json
import logging
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jobs import cli
from jobs.benchmark_rows import prepare, requests_by_kind
from jobs.decoding_arms import drafting_from_pools, engine_arm, own_rules
from jobs.draft_profile import Benchmarked, Verified, profile_of
from jobs.generation_actor import make_drafter, make_engine
from jobs.refresh_rows import sized
from jobs.wave_names import last_wave
from jobs.waves import identify
from pipeline.config import RunConfig
from pipeline.cost_cache import cost_file, read_costs
from pipeline.engine.budget import FREE
from pipeline.engine.types import Drafter, DraftTree, Request, RowView
from pipeline.forecast.draft_nodes import DraftNodes
from pipeline.language_model import ChatTokenizer, load_model
from pipeline.parts import parse_json
from pipeline.store import Plan, Store
from retrieval_pools.pool_folder import open_pools

log = logging.getLogger("jobs.measure_drafts")

RESULT = "profile.json"
_MOST_ROWS = 8  # at once: each has all its drafts in every step
_DECIDES = ("engine", "generation", "drafts", "model")  # what a step costs, and who drafts


@dataclass
class Watched:
    """A drafter whose nodes are kept with what became of them."""

    drafter: Drafter
    survival: list[np.ndarray] = field(default_factory=list)  # of each row's step
    is_kept: list[np.ndarray] = field(default_factory=list)

    def propose(self, rows: Sequence[RowView], max_nodes: int) -> list[DraftTree]:
        """As the drafter does."""
        return self.drafter.propose(rows, max_nodes)

    def observe(self, trees: Sequence[DraftTree], outcomes: Sequence[np.ndarray]) -> None:
        """Keep the step, then let the drafter learn from it."""
        self.survival += [tree.survival.astype(np.float64) for tree in trees]
        self.is_kept += [outcome == 1 for outcome in outcomes]
        self.drafter.observe(trees, outcomes)

    def take(self) -> DraftNodes:
        """All nodes since the last time; there has been a step."""
        nodes = DraftNodes(
            np.concatenate(self.survival), np.concatenate(self.is_kept), len(self.survival)
        )
        self.survival, self.is_kept = [], []
        return nodes


def run(config: RunConfig, store: Store) -> None:
    """Write `draft_profile/profile.json`; print a line for each rule and kind and one of JSON."""
    identity = identify(config)
    pools = prepare(config, store, identity)
    requests = requests_by_kind(config, store, identity)
    settings = {name: getattr(config, name) for name in ("benchmark", "engine", "generation")}
    settings |= {"drafts": config.drafts, "model": identity.model}
    plan = store.plan("draft_profile", settings, inputs=["groups", pools.name])
    beside = benchmarked(config, store, plan)
    folder, tokenizer = store.files.local(pools.name), identity.tokenizer
    verified = list(measure(config, requests, folder, tokenizer))
    texts = open_pools(folder, tokenizer.fingerprint).num_documents
    plan.write_json(
        RESULT, profile_of(_about(config, texts), requests, verified, beside), len(verified)
    )
    rates: dict[str, dict[str, float]] = {}
    for one in verified:
        rates.setdefault(one.rule, {})[one.kind] = round(one.rate, 3)
        print(
            f"{one.rule:<8} {one.kind:<5} {one.rate:>5.2f} tokens per pass of a row, "
            f"{len(one.nodes.survival) / one.nodes.row_steps:>5.1f} drafts in it, "
            f"{one.nodes.row_steps} passes"
        )
    print(json.dumps(rates))


def benchmarked(config: RunConfig, store: Store, plan: Plan) -> Benchmarked | None:
    """What `make bench` measured of the same rows, with the same settings, if it has."""
    manifest = store.manifest("benchmark")
    if (
        manifest is None
        or manifest.inputs != plan.inputs
        or _deciding(manifest.settings) != _deciding(plan.settings)
    ):
        log.warning(
            "the run has no benchmark with its present pools and settings, so the profile gets no "
            "speeds to hold a forecast against; for them run `laser bench` first"
        )
        return None
    file = store.files.local("benchmark") / "benchmark.json"
    costs = read_costs(cost_file(load_model(config.language_model), config.engine))
    return Benchmarked(parse_json(file.read_bytes(), file), costs)


def measure(
    config: RunConfig,
    requests: Mapping[str, Sequence[Request]],
    pools: Path,
    tokenizer: ChatTokenizer,
) -> Iterator[Verified]:
    """Rule by rule, kind by kind; a rule's drafter learns as it would in a job.

    Raises:
        DataError: the engine refuses a row.
    """
    own = sized(drafting_from_pools(config), min(config.engine.batch_rows, _MOST_ROWS))
    engine = make_engine(own, tokenizer)
    for name, rule in own_rules(config, engine.stops).items():
        drafter = Watched(make_drafter(own, engine, name, pools, tokenizer.fingerprint))
        arm = engine_arm(engine, drafter, rule, FREE)
        for kind, rows in requests.items():
            outcome = arm(rows[: config.benchmark.profile_rows])
            log.info("%ss, %s: %.1f s", kind, name, outcome.seconds)
            yield Verified(name, kind, drafter.take(), outcome)


def _deciding(settings: Mapping[str, Any]) -> list[Any]:
    """Of a dataset's settings those that a benchmark must share with a profile."""
    return [settings["benchmark"]["max_new_tokens"], *(settings[name] for name in _DECIDES)]


def _about(config: RunConfig, texts: int) -> str:
    model = config.language_model.path.rstrip("/").rpartition("/")[2]
    return (
        f"{model} on {platform.machine()}, {torch.get_num_threads()} threads, run {config.run}: "
        f"wave {last_wave(config)} against pools of {texts} texts"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
