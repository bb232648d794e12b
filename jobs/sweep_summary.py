"""From replays to numbers with a spread: a bootstrap over rows and seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.sweep_variations import Arm
from pipeline.schemas import SOURCES

_INTERVAL = (5.0, 95.0)  # percent


@dataclass(frozen=True)
class Outcome:
    """What an arm's replays gave, over all texts; rows that were not replayed hold zeros."""

    tokens: np.ndarray  # (seeds, n) int64
    passes: np.ndarray  # (seeds, n) int64
    drafted: int  # nodes
    accepted_by_source: np.ndarray  # (sources,) int64
    accepted_by_depth: np.ndarray  # (levels,) int64
    texts_per_pool: float
    # Expected of the first seed's replay with a draft budget, and of plain decoding; none if no
    # step costs are known.
    seconds: np.ndarray | None  # (n,) float64
    plain_seconds: np.ndarray | None  # (n,) float64


@dataclass(frozen=True)
class Draws:
    """How often each row stands in each resample, and which seed is looked at."""

    counts: np.ndarray  # (resamples, n) int64
    picks: np.ndarray  # (resamples,) int64

    @staticmethod
    def of_rows(rows: np.ndarray, size: int, resamples: int, seed: int) -> "Draws":
        """Draw from `rows` out of `size`."""
        random = np.random.default_rng(seed)
        counts = np.zeros((resamples, size), np.int64)
        counts[:, rows] = random.multinomial(
            len(rows), np.full(len(rows), 1.0 / len(rows)), resamples
        )
        return Draws(counts, random.integers(0, 2**31, resamples))

    def ratios(self, above: np.ndarray, below: np.ndarray) -> np.ndarray:
        """Of sums over rows, resample by resample: (seeds, n) twice -> (resamples,)."""
        sums = [
            (self.counts * values[self.picks % len(values)]).sum(axis=1)
            for values in (above, below)
        ]
        return sums[0] / np.maximum(sums[1], 1e-12)


def spread(middle: float, resampled: np.ndarray) -> dict[str, float]:
    """A number with its 90 % interval."""
    low, high = np.percentile(resampled, _INTERVAL)
    return {"mean": float(middle), "low": float(low), "high": float(high)}


def summarise(
    arms: Sequence[Arm], outcomes: Sequence[Outcome], resamples: int, seed: int
) -> list[dict[str, Any]]:
    """One record for every arm of one kind of entity.

    All arms of an experiment see the same resamples, so gains are compared row by row.
    """
    records = []
    for experiment in dict.fromkeys(arm.experiment for arm in arms):
        own = {
            arm.name: (arm, outcome)
            for arm, outcome in zip(arms, outcomes, strict=True)
            if arm.experiment == experiment
        }
        replayed = np.any([outcome.passes.any(axis=0) for _, outcome in own.values()], axis=0)
        rows = np.flatnonzero(replayed)
        draws = Draws.of_rows(rows, len(replayed), resamples, seed)
        records += [
            _record(arm, outcome, own[arm.against][1], draws) for arm, outcome in own.values()
        ]
    return records


def _record(arm: Arm, outcome: Outcome, other: Outcome, draws: Draws) -> dict[str, Any]:
    resampled = draws.ratios(outcome.tokens, outcome.passes)
    against = draws.ratios(other.tokens, other.passes)
    own, reference = _tokens_per_pass(outcome), _tokens_per_pass(other)
    accepted = int(outcome.accepted_by_source.sum())
    by_seed = outcome.tokens.sum(axis=1) / outcome.passes.sum(axis=1)
    return {
        "experiment": arm.experiment,
        "series": arm.series,
        "value": arm.value,
        "rows": int(outcome.passes.any(axis=0).sum()),
        "seeds": len(outcome.tokens),
        "texts_per_pool": outcome.texts_per_pool,
        "tokens_per_pass": spread(own, resampled),
        "by_seed": by_seed.tolist(),
        "against": " ".join(arm.against).strip(),
        "gain": spread(own / reference - 1.0, resampled / against - 1.0),
        "speedup": _speedup(outcome, draws),
        "nodes_per_pass": outcome.drafted / int(outcome.passes.sum()),
        "accepted_share": accepted / max(outcome.drafted, 1),
        "accepted_by_source": _by_source(outcome),
        "accepted_by_depth": outcome.accepted_by_depth.tolist(),
    }


def _tokens_per_pass(outcome: Outcome) -> float:
    return int(outcome.tokens.sum()) / int(outcome.passes.sum())


def _speedup(outcome: Outcome, draws: Draws) -> dict[str, float] | None:
    """Plain decoding's expected time over that with drafts, of the steps after the prompt."""
    if outcome.seconds is None or outcome.plain_seconds is None:
        return None
    plain, own = outcome.plain_seconds, outcome.seconds
    return spread(plain.sum() / own.sum(), draws.ratios(plain[None], own[None]))


def _by_source(outcome: Outcome) -> Mapping[str, int]:
    """Accepted nodes by the name of their source, where there are any."""
    counts = zip(SOURCES, outcome.accepted_by_source.tolist(), strict=True)
    return {name: count for name, count in counts if count}
