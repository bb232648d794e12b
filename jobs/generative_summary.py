"""What was measured of ways to recommend, as figures: quality with intervals, cost, ratios."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jobs.generative_events import Measured
from jobs.generative_measurement import Lists
from pipeline.generative.list_metrics import Interval, interval, ndcg, ranks_of, recall

BASE = "beam"
MARGIN = 0.03  # recall that may be lost and be called none
KINDS = ("warm", "cold", "overall")


class Target(NamedTuple):
    """What a ratio is to be."""

    name: str
    least: float


TARGETS = (
    Target("fewer_target_calls", 1.9),
    Target("strict_speedup", 1.5),
    Target("nezha_speedup_at_widest", 5.0),
    Target("nezha_recall_gain_at_widest", -MARGIN),  # the low end of its interval
)


def quality_of(items: np.ndarray, events: Measured, seed: int) -> dict[str, dict[str, Any]]:
    """Recall and NDCG of warm, cold and all events, each as mean and the ends of its interval."""
    ranks = ranks_of(items, events.targets)
    figures: dict[str, dict[str, Any]] = {}
    for kind, rows in zip(KINDS, rows_of(events), strict=True):
        figures[kind] = {
            f"{name}@{k}": interval(measure(ranks[rows], k), events.users[rows], seed)
            for k in (10, 50)
            if k <= items.shape[1]
            for name, measure in (("recall", recall), ("ndcg", ndcg))
        }
    return figures


def rows_of(events: Measured) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Warm, cold and all events, as masks (n,)."""
    return events.is_warm, ~events.is_warm, np.ones(len(events), bool)


def as_record(
    name: str, width: int, lists: Lists, base: Lists, events: Measured, seed: int
) -> dict[str, Any]:
    """One arm at one width, beside the lists `base` of another; means are over users."""
    return {
        "arm": name,
        "beams": width,
        "quality": quality_of(lists.items, events, seed),
        "unlike": int((lists.items != base.items).any(1).sum()),
        "calls": round(float(lists.calls.mean()), 3),
        "nodes": round(float(lists.scored.mean()), 1),
        "accepted": round(float(lists.accepted.mean()), 2),
        "rounds": round(float(lists.rounds.mean()), 2),
        "valid_share": round(lists.valid_share, 4),
    }


def speeds_of(spent: Mapping[tuple[str, int, int], np.ndarray]) -> list[dict[str, Any]]:
    """Milliseconds a user one at a time, and users a second in the best batch."""
    speeds = []
    for name, width in dict.fromkeys(key[:2] for key in spent):
        of_batch = {batch: own for (n, w, batch), own in spent.items() if (n, w) == (name, width)}
        best = min(of_batch, key=lambda batch: float(np.median(of_batch[batch])))
        speeds.append(
            {
                "arm": name,
                "beams": width,
                "milliseconds": round(float(np.median(of_batch[1])), 2),
                "users_per_second": round(1e3 / float(np.median(of_batch[best])), 1),
                "best_batch": best,
                "speedup": speedup(spent, name, width, 1),
                "speedup_at_best": round(
                    _best(spent, BASE, width) / float(np.median(of_batch[best])), 2
                ),
            }
        )
    return speeds


def speedup(
    spent: Mapping[tuple[str, int, int], np.ndarray], name: str, width: int, batch: int
) -> float:
    """Of an arm over beam search: the median of the ratios on the same users."""
    base, own = spent[BASE, width, batch], spent[name, width, batch]
    return round(float(np.median(base / own)), 2)


def _best(spent: Mapping[tuple[str, int, int], np.ndarray], name: str, width: int) -> float:
    return min(float(np.median(own)) for (n, w, _), own in spent.items() if (n, w) == (name, width))


def ratios(
    benchmark: Mapping[str, Any], widths: Sequence[int], strict: Sequence[str], gain: Interval
) -> dict[str, Any]:
    """What the targets are about, and which of them are missed.

    `strict` names the arms whose lists are beam search's; `gain` is what recall@10 of warm items
    NEZHA has more than beam search at the widest.
    """
    calls = {(own["arm"], own["beams"]): own["calls"] for own in benchmark["arms"]}
    fast = {(own["arm"], own["beams"]): own["speedup"] for own in benchmark["speeds"]}
    narrow, widest = widths[0], widths[-1]
    fewest = min(strict, key=lambda name: calls[name, narrow])
    fastest = max(strict, key=lambda name: fast[name, narrow])
    found = {
        "fewer_target_calls": round(calls[BASE, narrow] / calls[fewest, narrow], 2),
        "strict_speedup": fast[fastest, narrow],
        "nezha_speedup_at_widest": fast["NEZHA", widest],
        "nezha_recall_gain_at_widest": round(gain.low, 4),
    }
    missed = [target.name for target in TARGETS if found[target.name] < target.least]
    return {**found, "fewest_calls": fewest, "fastest_strict": fastest, "missed": missed}
