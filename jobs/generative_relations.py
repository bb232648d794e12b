"""Relations that the papers claim, or that follow from what they do, held against measurements.

Each is told with its figures whether it holds or not. A difference of two recalls holds if its
whole paired interval says so; one that should be none, if the interval leaves no room for a loss of
more than `MARGIN`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from jobs.generative_arms import ARMS, Arm, Workshop
from jobs.generative_events import Measured
from jobs.generative_measurement import Lists, find_lists
from jobs.generative_summary import BASE, MARGIN, speedup
from pipeline.config import RunConfig
from pipeline.generative.list_metrics import Interval, interval, ranks_of, recall

_THRESHOLDS = (-2.4, -1.8, -1.4)  # of SpecGR, nats a code
_EVERYTHING = -1e9  # a threshold that all reach: the retriever's own choice


@dataclass
class Study:
    """Measurements, and more of them when they are asked for."""

    shop: Workshop
    events: Measured
    found: Mapping[tuple[str, int], Lists]
    spent: Mapping[tuple[str, int, int], np.ndarray]
    codes: np.ndarray
    config: RunConfig
    _swept: dict[Any, Lists] = field(default_factory=dict)

    @property
    def narrow(self) -> int:
        """The smaller of the two widths that lists are found at."""
        return self.config.generative_benchmark.widths[0]

    @property
    def wide(self) -> int:
        """The larger one."""
        return self.config.generative_benchmark.widths[1]

    def swept(self, name: str, width: int, **changes: Any) -> Lists:
        """Lists of some warm events by an arm with other settings."""
        key = (name, width, repr(sorted(changes.items())))
        if key not in self._swept:
            arm = ARMS[name]
            varied = Arm(arm.method, {**arm.changes, **changes}, arm.reads)
            rows = np.flatnonzero(self.events.is_warm)
            some = self.events.take(rows[: self.config.generative_benchmark.swept_events])
            self._swept[key] = find_lists(
                self.shop.ready(varied, width), some, self.codes, self.shop.items
            )
        return self._swept[key]

    def whole(self, name: str, width: int, **changes: Any) -> Lists:
        """Lists of all events by an arm with other settings."""
        arm = ARMS[name]
        varied = Arm(arm.method, {**arm.changes, **changes}, arm.reads)
        return find_lists(self.shop.ready(varied, width), self.events, self.codes, self.shop.items)

    def hits(self, lists: Lists, k: int) -> np.ndarray:
        """Recall@k of every event."""
        return recall(ranks_of(lists.items, self.events.targets), k)

    def gain(self, lists: Lists, base: Lists, k: int, is_warm: bool) -> Interval:
        """What recall the one has more than the other, on warm or on cold events."""
        rows = self.events.is_warm == is_warm
        difference = (self.hits(lists, k) - self.hits(base, k))[rows]
        return interval(difference, self.events.users[rows], self.config.seed)


def relations(study: Study) -> list[dict[str, Any]]:
    """All of them, in order."""
    told = []
    for number, (claim, test) in enumerate(_RELATIONS, 1):
        holds, figures = test(study)
        told.append({"name": f"R{number}", "claim": claim, "holds": holds, "figures": figures})
    return told


Told = tuple[bool, dict[str, Any]]


def _strict_is_beam_search(study: Study) -> Told:
    figures = {}
    for (name, width), lists in study.found.items():
        if name in ARMS and ARMS[name].same_as:
            base = study.found[ARMS[name].same_as, width]
            unlike = (lists.items != base.items).any(1)
            gap = np.abs(lists.scores - base.scores)[unlike]
            gap = float(gap[np.isfinite(gap)].max(initial=0))
            figures[f"{name}, {width}"] = {"unlike": int(unlike.sum()), "largest_gap": gap}
    return not any(own["unlike"] for own in figures.values()), figures


def _drafts_and_beams(study: Study) -> Told:
    calls = {
        f"K{k} N{n}": float(study.swept("AtSpeed-S", k, draft_beams=n).calls.mean())
        for k, n in ((10, 20), (10, 40), (20, 40))
    }
    return calls["K10 N20"] > calls["K10 N40"] < calls["K20 N40"], calls


def _alignment(study: Study) -> Told:
    calls = {}
    for name in ("small model", "AtSpeed-S"):
        calls[name] = float(study.swept(name, 10, draft_beams=40).calls.mean())
    return calls["AtSpeed-S"] < calls["small model"], calls


def _strict_and_relaxed(study: Study) -> Told:
    accepted = {
        f"{name}, K{k}": float(study.swept(name, k, draft_beams=40).accepted.mean())
        for k in (10, 20)
        for name in ("AtSpeed-S", "AtSpeed-R")
    }
    narrow = accepted["AtSpeed-S, K10"] > accepted["AtSpeed-R, K10"]
    return narrow and accepted["AtSpeed-S, K20"] < accepted["AtSpeed-R, K20"], accepted


def _head_is_as_good(study: Study) -> Told:
    lists, base = (study.found[name, study.wide] for name in ("NEZHA", BASE))
    gain = study.gain(lists, base, study.narrow, is_warm=True)
    widths = study.config.generative_benchmark.widths
    fast = {str(width): speedup(study.spent, "NEZHA", width, 1) for width in widths}
    grows = _rises(list(fast.values()))
    return gain.low > -MARGIN and grows, {"recall_gain": gain, "speedup": fast}


def _head_invents_more(study: Study) -> Told:
    valid = {
        f"{name}, {width}": study.found[name, width].valid_share
        for name in ("beam, free", "NEZHA, free")
        for width in (study.narrow, study.wide)
    }
    narrow, wide = study.narrow, study.wide
    holds = (
        valid[f"NEZHA, free, {narrow}"] < valid[f"beam, free, {narrow}"]
        and valid[f"NEZHA, free, {wide}"] < valid[f"NEZHA, free, {narrow}"]
        and valid[f"NEZHA, free, {wide}"] < valid[f"beam, free, {wide}"]
    )
    return holds, {key: round(value, 4) for key, value in valid.items()}


def _new_items(study: Study) -> Told:
    drafted = study.whole("SpecGR", study.wide, specgr={"threshold": _EVERYTHING})
    cold = ~study.events.is_warm
    figures = {
        "beam": float(study.hits(study.found[BASE, study.wide], study.wide)[cold].mean()),
        "retriever": float(study.hits(drafted, study.wide)[cold].mean()),
        "chance": study.wide / len(study.codes),
    }
    return figures["beam"] < figures["chance"] < figures["retriever"], figures


def _threshold(study: Study) -> Told:
    base, wide = study.found[BASE, study.wide], study.wide
    own = {value: study.whole("SpecGR", wide, specgr={"threshold": value}) for value in _THRESHOLDS}
    trimmed = study.whole("SpecGR", wide, specgr={"unseen": "warm_prefix", "least_prefix": 1})
    last = study.whole("SpecGR", wide, specgr={"unseen": "drop_last"})
    cold_only = study.found["SpecGR, cold only", wide]
    kept = study.found["SpecGR", wide]
    drafted = max(study.config.recommendation.specgr.drafted, wide)  # items a round
    figures: dict[str, Any] = {
        "rounds": {str(value): float(lists.rounds.mean()) for value, lists in own.items()},
        "acceptance": {
            str(value): float(lists.accepted.sum() / (drafted * lists.rounds.sum()))
            for value, lists in own.items()
        },
        "warm_gain": study.gain(kept, base, wide, is_warm=True),
        "cold_gain": study.gain(kept, base, wide, is_warm=False),
        "warm_gain_cold_only": study.gain(cold_only, base, wide, is_warm=True),
        "cold_gain_cold_only": study.gain(cold_only, base, wide, is_warm=False),
        "cold_gain_of_trimming": study.gain(trimmed, last, wide, is_warm=False),
    }
    rounds, acceptance = (list(figures[name].values()) for name in ("rounds", "acceptance"))
    figures["parts"] = {
        "rounds rise with the threshold": _rises(rounds),
        "acceptance falls with it": _rises(acceptance[::-1]),
        "warm recall is kept": figures["warm_gain"].low > -MARGIN,
        "new items are found": figures["cold_gain"].low > 0,
        "leaving out what no warm item begins with helps": figures["cold_gain_of_trimming"].low > 0,
        "on top of beams warm recall is kept": figures["warm_gain_cold_only"].low > -MARGIN,
        "on top of beams new items are found": figures["cold_gain_cold_only"].low > 0,
    }
    return all(figures["parts"].values()), figures


def _rises(values: Sequence[float]) -> bool:
    return all(a < b for a, b in pairwise(values))


_RELATIONS: tuple[tuple[str, Callable[[Study], Told]], ...] = (
    ("strict lists are those without drafts, beam search's or sampled", _strict_is_beam_search),
    ("calls fall with drafted beams, and rise with kept ones", _drafts_and_beams),
    ("a drafter aligned on the model's beams saves more calls", _alignment),
    ("with 40 drafted, strict accepts more at K10, sampling at K20", _strict_and_relaxed),
    ("NEZHA's recall is beam search's, its speed-up grows with beams", _head_is_as_good),
    ("without the trie the head invents more ids than beams, and wider more", _head_invents_more),
    ("beam search finds no new items, a retriever does", _new_items),
    ("SpecGR keeps warm recall and finds new items", _threshold),
)
