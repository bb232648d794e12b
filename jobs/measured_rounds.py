"""Rounds of a comparison, stored as they end: a killed one goes on with those that are missing.

In a round every arm decodes the rows of one kind, in turns. It is stored whole or not at all: arms
are held against each other, so they must have run beside each other, by one process on one machine.
"""

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import transformers

from features.formats import duration
from jobs.decoding_arms import Arm, Outcome
from jobs.progress import Countdown
from jobs.repeating import repeating
from pipeline.cost_cache import engine_code, processor
from pipeline.engine.statistics import EngineStatistics
from pipeline.engine.types import Generation, Request, RowStatistics
from pipeline.run_files import BUILDING
from pipeline.schemas import TURNS
from pipeline.store import Plan

log = logging.getLogger("jobs.compare_decoding")

_TELL = 10.0  # s between lines

Round = tuple[int, str]  # repeat and kind
Requests = Mapping[str, list[Request]]  # by kind; a request's key is its row among those of a kind
Outcomes = Mapping[tuple[str, str], list[Outcome]]  # of the repeats, by arm and kind


class MeasuredRounds:
    """What is stored of a comparison, by earlier tries and by this one."""

    def __init__(self, plan: Plan, place: str) -> None:
        """Take what `plan` has stored of the same `place`, see `place_of`; drop the rest."""
        self._plan, self._writer, self._place = plan, plan.open_writer(), place
        self._try = uuid.uuid4().hex
        self._rows = self._writer.existing().to_pylist()
        if any(row["machine"] != place for row in self._rows):
            log.info(
                "comparison: what is stored was measured on another machine, or by another version "
                "of this program; beginning anew"
            )
            self._writer.clear()
            self._rows = []

    def __contains__(self, one: Round) -> bool:
        return any((row["repeat"], row["kind"]) == one for row in self._rows)

    @property
    def tries(self) -> int:
        """How many jobs have measured: a machine may be busier in one than in another."""
        return len({row["try"] for row in self._rows})

    @property
    def share_of_this_try(self) -> float:
        """How much of what is stored this job has measured."""
        return sum(row["try"] == self._try for row in self._rows) / max(len(self._rows), 1)

    def store(self, one: Round, outcomes: Mapping[str, Outcome]) -> None:
        """Keep a round that is finished: the outcome of every arm."""
        repeat, kind = one
        place = {"try": self._try, "machine": self._place, "repeat": repeat, "kind": kind}
        rows = [place | {"arm": arm} | _as_row(outcome) for arm, outcome in outcomes.items()]
        self._writer.append(pa.Table.from_pylist(rows, TURNS))
        self._rows += rows

    def outcomes(self) -> Outcomes:
        """All that is stored."""
        found: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
        for row in sorted(self._rows, key=lambda row: row["repeat"]):
            found[row["arm"], row["kind"]].append(_as_outcome(row))
        return found

    def discard(self) -> None:
        """Leave nothing of what is stored, once all that it tells is kept elsewhere."""
        store, name = self._plan.store, self._plan.name
        store.files.remove(*self._writer.parts(), store.path(name) / BUILDING)
        store.path(name).rmdir()


def place_of(device: torch.device) -> str:
    """Where and by what rounds are measured: only those of one place can be held together."""
    threads = f"{torch.get_num_threads()} threads"
    versions = f"torch {torch.__version__}", f"transformers {transformers.__version__}"
    return ", ".join([processor(device), threads, *versions, f"engine {engine_code()}"])


def measure(
    make_arms: Callable[[], Mapping[str, Arm]],
    requests: Requests,
    repeats: int,
    rounds: MeasuredRounds,
) -> Outcomes:
    """Every arm on every kind, in turns; rounds that are stored already are left as they are."""
    wanted = [(repeat, kind) for repeat in range(repeats) for kind in requests]
    missing = [one for one in wanted if one not in rounds]
    rows = " or ".join(f"{len(of_kind)} {kind}s" for kind, of_kind in requests.items())
    log.info(
        "comparison: %d rounds to measure, each of %s; %d stored already",
        *(len(missing), rows, len(wanted) - len(missing)),
    )
    if missing:  # else it was killed when all was measured, and needs no engine any more
        arms = make_arms()
        turns = _Turns(len(missing) * len(arms))
        with repeating(turns.tell, _TELL):
            for repeat, kind in missing:
                order = np.roll(list(arms), repeat).tolist()
                of_arms = {name: turns.take(name, arms[name], kind, requests) for name in order}
                rounds.store((repeat, kind), of_arms)
    return rounds.outcomes()


class _Turns:
    """One after the other, and what there is to tell meanwhile."""

    def __init__(self, total: int) -> None:
        self._countdown, self._now = Countdown(log, "comparison", "turns", total), "loading"

    def take(self, name: str, arm: Arm, kind: str, requests: Requests) -> Outcome:
        """An arm on the rows of a kind, warm."""
        self._now, rows = f"{name} on {kind}s", requests[kind]
        arm([replace(rows[0], max_new_tokens=4)])
        outcome = arm(rows)
        self._countdown.add()
        log.debug("comparison: %s: %s", self._now, duration(outcome.seconds))
        return outcome

    def tell(self) -> None:
        """How far it is."""
        self._countdown.tell(self._now)


def _as_row(outcome: Outcome) -> dict[str, object]:
    written = [outcome.generations.get(key) for key in outcome.texts]
    known = [one for one in written if one is not None]  # of all rows, or of an arm without any
    return {
        "seconds": outcome.seconds,
        "keys": list(outcome.texts),
        "texts": [text.tolist() for text in outcome.texts.values()],
        "passes": [outcome.passes[key] for key in outcome.texts],
        "finish_reasons": [one.finish_reason for one in known],
        "relaxed_tokens": [one.statistics.relaxed_tokens for one in known],
        "relaxed_costs": [float(one.statistics.relaxed_cost) for one in known],
        "statistics": list(map(float, astuple(outcome.statistics))),
    }


def _as_outcome(row: Mapping[str, Any]) -> Outcome:
    keys = row["keys"]
    texts = [np.array(text, np.int32) for text in row["texts"]]
    told = zip(row["finish_reasons"], row["relaxed_tokens"], row["relaxed_costs"], strict=True)
    generations = {
        key: Generation(key, text, reason, RowStatistics(passes, relaxed, cost))
        for key, text, passes, (reason, relaxed, cost) in zip(
            keys, texts, row["passes"], told, strict=False
        )
    }
    kinds: list[Any] = [type(number) for number in astuple(EngineStatistics())]
    numbers = zip(kinds, row["statistics"], strict=True)
    return Outcome(
        row["seconds"],
        dict(zip(keys, texts, strict=True)),
        dict(zip(keys, row["passes"], strict=True)),
        generations,
        EngineStatistics(*(kind(number) for kind, number in numbers)),
    )
