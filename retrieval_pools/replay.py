"""Strict decoding without a model: what any drafter would have earned on texts that are known.

Under the strict rule the text is greedy decoding's whatever is drafted. So a recorded greedy text
says which nodes of any draft tree the model accepts, and a drafter can be tried on it in
milliseconds. Rows come one after the other, as in an engine of batch 1; the row, the draft budget
and the end of a step are the engine's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.engine.branch import Branch, Walk, take
from pipeline.engine.budget import FREE, CostTable, DraftBudget
from pipeline.engine.row import Row
from pipeline.engine.stops import Stops
from pipeline.engine.types import ROOT, Drafter, DraftTree, Request


@dataclass(frozen=True)
class Recording:
    """A row, and what greedy decoding wrote; the request may ask for fewer tokens."""

    request: Request
    token_ids: np.ndarray  # (new,) int32, without the stop token
    finish_reason: str  # stop | length


@dataclass(frozen=True)
class Replay:
    """What drafts earned, by row."""

    tokens: np.ndarray  # (rows,) int64
    passes: np.ndarray  # (rows,) int64, forward passes
    seconds: np.ndarray  # (rows,) float64, expected of the passes, without that over the prompt
    drafted: np.ndarray  # (rows,) int64, nodes verified
    accepted_by_source: np.ndarray  # (rows, sources) int64
    accepted_by_depth: np.ndarray  # (rows, levels) int64, first those after the last token

    @property
    def tokens_per_pass(self) -> float:
        """Of all rows together."""
        return int(self.tokens.sum()) / max(int(self.passes.sum()), 1)


def replay(
    recordings: Sequence[Recording],
    drafter: Drafter,
    stops: Stops,
    max_nodes: int,
    costs: CostTable = FREE,
) -> Replay:
    """Decode all recordings strictly, with at most `max_nodes` drafted per step.

    `costs` decide, as in the engine, which drafts are worth their time, and are not refined. A
    prompt takes as long whatever is drafted: its time is left out. Of several stop tokens a text
    is taken to have ended with the least.

    Raises:
        ValueError: a text is neither as long as its request asks for nor ended by a stop.
    """
    player = _Player(drafter, stops, max_nodes, costs)
    seconds = np.array([player.play(recording) for recording in recordings], np.float64)
    statistics = [row.statistics for row in player.rows]
    return Replay(
        np.array([len(row.output) for row in player.rows], np.int64),
        np.array([own.forward_passes for own in statistics], np.int64),
        seconds,
        np.array([own.drafted_by_source.sum() for own in statistics], np.int64),
        _stack([own.accepted_by_source for own in statistics]),
        _stack([own.accepted_by_depth for own in statistics]),
    )


def _stack(counts: Sequence[np.ndarray]) -> np.ndarray:
    """(rows, counts) int64, also of no rows."""
    return np.stack(counts) if counts else np.empty((0, 0), np.int64)


class _Player:
    """Steps of one row at a time; drafter and budget go on from row to row."""

    def __init__(self, drafter: Drafter, stops: Stops, max_nodes: int, costs: CostTable) -> None:
        self.rows: list[Row] = []
        self._drafter = drafter
        self._stops = stops
        self._max_nodes = max_nodes
        self._costs = costs
        self._budget = DraftBudget(costs)

    def play(self, recording: Recording) -> float:
        """Decode one row; return the seconds that its steps would take."""
        row, seconds = Row(recording.request, slot=0), 0.0
        text = self._whole(recording)
        while not row.finish_reason:
            coming = text[len(row.output) :]
            if not len(coming):
                raise ValueError(
                    f"row {row.request.key}: the recorded text has {len(recording.token_ids)} of "
                    f"{row.request.max_new_tokens} tokens, and no stop ends it"
                )
            context = len(row.tokens) - 1  # the last token has no keys and values yet
            drafts = self._drafter.propose([row], self._max_nodes)
            [tree] = self._budget.afford(drafts, 1, 1, 1, context)
            walk = _step(row, tree, coming, self._stops)
            self._drafter.observe([walk.tree], [walk.outcomes])
            seconds += float(self._costs.step_seconds(1, np.array([1 + len(tree)]), context)[0])
        self.rows.append(row)
        return seconds

    def _whole(self, recording: Recording) -> np.ndarray:
        """The text with the stop token that ended it, if one did."""
        text, stops = recording.token_ids, self._stops
        if recording.finish_reason != "stop" or stops.are_completed_by(text):
            return text
        return np.append(text, min(stops.ids))


def _step(row: Row, tree: DraftTree, coming: np.ndarray, stops: Stops) -> Walk:
    """Accept what agrees with the `coming` tokens, and take one more of them."""
    nodes = _agreeing(tree, coming)
    # Where drafts cover all that comes the row ends inside them, and this token is not looked at.
    token = int(coming[min(len(nodes), len(coming) - 1)])
    walk = take(Branch(row, tree, 0, nodes, (0.0,) * len(nodes)), token, stops)
    statistics, accepted = row.statistics, walk.outcomes == 1
    statistics.forward_passes += 1
    levels = np.minimum(np.arange(accepted.sum()), len(statistics.accepted_by_depth) - 1)
    for counts, values in (
        (statistics.drafted_by_source, tree.sources),
        (statistics.accepted_by_source, tree.sources[accepted]),
        (statistics.accepted_by_depth, levels),
    ):
        counts += np.bincount(values, minlength=len(counts))
    return walk


def _agreeing(tree: DraftTree, coming: np.ndarray) -> tuple[int, ...]:
    """The path from the root whose tokens are the first of `coming`."""
    nodes: list[int] = []
    parent = ROOT
    for token in coming:
        found = np.flatnonzero((tree.parents == parent) & (tree.token_ids == token))
        if not len(found):
            break
        parent = int(found[0])
        nodes.append(parent)
    return tuple(nodes)
