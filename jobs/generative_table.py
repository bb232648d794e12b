"""The benchmark of ways to recommend as lines for a terminal."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from jobs.generative_summary import BASE, KINDS, TARGETS

_QUALITY_HEAD = (
    f"{'beams':>5} {'arm':<18} {'of':<7} {'R@10':>22} {'R@50':>22} {'N@10':>6} {'N@50':>6}"
)
_COST_HEAD = (
    f"{'beams':>5} {'arm':<18} {'calls':>6} {'nodes':>7} {'accept':>6} {'rounds':>6} {'valid':>6}"
    f" {'ms/user':>8} {'to beam':>8} {'users/s':>8} {'batch':>5} {'to beam':>8}"
)


def lines(benchmark: Mapping[str, Any]) -> Iterator[str]:
    """Quality, cost, relations, targets."""
    events = benchmark["events"]
    yield (
        f"{events['warm']} events of warm items and {events['cold']} of cold ones, "
        f"{benchmark['items']} items; {benchmark['machine']}"
    )
    yield ""
    yield from _quality(benchmark)
    yield "In brackets 95 % of resamples over users. Who lacks has beam's or sampled ones."
    yield ""
    yield from _costs(benchmark)
    yield "To beam: median ratio of times on the same users one at a time; of the best batches."
    yield ""
    for relation in benchmark["relations"]:
        verdict = "holds" if relation["holds"] else "DOES NOT HOLD"
        yield f"{relation['name']} {relation['claim']}: {verdict}"
        for key, value in relation["figures"].items():
            yield f"     {key}: {_told(value)}"
    yield ""
    for target in TARGETS:
        value = benchmark["ratios"][target.name]
        yield (
            f"{target.name:<26} {value:>6.2f}  >= {target.least:<4g} "
            f"{'met' if value >= target.least else 'missed'}"
        )


def _quality(benchmark: Mapping[str, Any]) -> Iterator[str]:
    """A block for each kind of event; lists that are another arm's to the last item stand once."""
    yield _QUALITY_HEAD
    for kind in KINDS:
        yield _quality_line("", "popularity", kind, benchmark["popular"][kind])
        for record in benchmark["arms"]:
            if record["arm"] == BASE or record["unlike"]:
                yield _quality_line(record["beams"], record["arm"], kind, record["quality"][kind])


def _quality_line(beams: Any, arm: str, kind: str, own: Mapping[str, Any]) -> str:
    recalls = " ".join(f"{_interval(own.get(f'recall@{k}')):>22}" for k in (10, 50))
    ndcgs = " ".join(f"{_mean(own.get(f'ndcg@{k}')):>6}" for k in (10, 50))
    return f"{beams:>5} {arm:<18} {kind:<7} {recalls} {ndcgs}"


def _costs(benchmark: Mapping[str, Any]) -> Iterator[str]:
    yield _COST_HEAD
    found = {(own["arm"], own["beams"]): own for own in benchmark["arms"]}
    fast = {(own["arm"], own["beams"]): own for own in benchmark["speeds"]}
    for key in dict.fromkeys([*found, *fast]):
        took, speed = found.get(key), fast.get(key)
        line = f"{key[1]:>5} {key[0]:<18} "
        line += (
            f"{took['calls']:>6.2f} {took['nodes']:>7.1f} {took['accepted']:>6.2f} "
            f"{took['rounds']:>6.2f} {took['valid_share']:>6.1%}"
            if took
            else f"{'-':>6} {'-':>7} {'-':>6} {'-':>6} {'-':>6}"
        )
        if speed:
            line += (
                f" {speed['milliseconds']:>8.2f} {speed['speedup']:>7.2f}x "
                f"{speed['users_per_second']:>8.1f} {speed['best_batch']:>5} "
                f"{speed['speedup_at_best']:>7.2f}x"
            )
        yield line


def _interval(values: Any) -> str:
    if values is None or math.isnan(values[0]):
        return "-"
    mean, low, high = values
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def _mean(values: Any) -> str:
    return "-" if values is None or math.isnan(values[0]) else f"{values[0]:.3f}"


def _told(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_told(own)}" for key, own in value.items())
    if isinstance(value, tuple | list):
        return _interval(value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
