"""The shapes that cross the engine's border. This file imports nothing of ours."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

ROOT = -1  # parent of a node that follows the last committed token
# Where a token of the output came from: 0 the model itself, 1 + a source's index its draft, and so
# much more if it stayed although another was more probable.
RELAXED_ORIGIN = 16


@dataclass(frozen=True)
class Request:
    """One row of work: a prompt to continue."""

    key: str
    prompt_ids: np.ndarray  # (prompt,) int32
    max_new_tokens: int
    group: str = ""
    previous_ids: np.ndarray | None = None  # earlier knowledge of the same entity, (tokens,) int32
    seed: int = 0  # of the row's random numbers; only sampling draws any


@dataclass(frozen=True)
class DraftTree:
    """Guessed continuations of one row, as flat arrays; `parents[i] < i`.

    `survival` is the drafter's estimate that a node and all its ancestors are accepted, so it
    never grows along a path. `sources` indexes the drafter's sources; `buckets` is the drafter's
    own mark for each node, handed back with the outcome. Nodes that were drawn at random come with
    the distributions they were drawn from; without, sampling takes every node as a certain choice.
    `survival` and the order of nodes must then not depend on which tokens were drawn, or cutting
    the tree would favour some of them.
    """

    token_ids: np.ndarray  # (nodes,) int32
    parents: np.ndarray  # (nodes,) int32, ROOT for children of the last token
    survival: np.ndarray  # (nodes,) float32
    sources: np.ndarray  # (nodes,) int8
    buckets: np.ndarray  # (nodes,) int32
    proposals: torch.Tensor | None = None  # (nodes, vocab) float32

    def __len__(self) -> int:
        return len(self.token_ids)

    @staticmethod
    def empty() -> "DraftTree":
        """A tree without nodes: plain decoding."""
        i32, i8 = np.empty(0, np.int32), np.empty(0, np.int8)
        return DraftTree(i32, i32, np.empty(0, np.float32), i8, i32)

    def depths(self) -> np.ndarray:
        """Depth of every node, 1 for children of the root: (nodes,) int32."""
        depths = np.ones(len(self), np.int32)
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                depths[node] = depths[parent] + 1
        return depths

    def num_sound(self, vocabulary: int, num_sources: int) -> int:
        """Nodes before the first whose token, parent or source there is none of.

        Parents come before children, so these are a tree. Arrays of unequal lengths, and token ids,
        parents or sources that are no integers, are no tree at all.
        """
        whole = (self.token_ids, self.parents, self.sources)
        lengths = {len(part) for part in (*whole, self.survival, self.buckets)}
        if len(lengths) > 1 or any(part.dtype.kind not in "iu" for part in whole):
            return 0
        is_sound = (
            ((self.token_ids >= 0) & (self.token_ids < vocabulary))
            & ((self.parents >= ROOT) & (self.parents < np.arange(len(self))))
            & ((self.sources >= 0) & (self.sources < num_sources))
        )
        return len(self) if is_sound.all() else int(is_sound.argmin())

    def prefix(self, keep: np.ndarray) -> "DraftTree":
        """The sub-tree of the nodes where `keep` (nodes,) bool; must be closed under parents."""
        renumber = np.cumsum(keep, dtype=np.int32) - 1
        parents = self.parents[keep]
        parents = np.where(parents == ROOT, ROOT, renumber[parents]).astype(np.int32)
        return DraftTree(
            self.token_ids[keep],
            parents,
            self.survival[keep],
            self.sources[keep],
            self.buckets[keep],
            None if self.proposals is None else self.proposals[torch.from_numpy(keep)],
        )


class RowView(Protocol):
    """What a drafter may see of a row."""

    @property
    def request(self) -> Request:
        """The row's request; `prompt_ids`, `group` and `previous_ids` never change."""
        ...

    @property
    def tokens(self) -> np.ndarray:
        """Prompt and committed output, (tokens,) int32, a view valid until the next step.

        It only grows, at its end, for as long as the row is the same object.
        """
        ...


class Drafter(Protocol):
    """Proposes what the model might say next. A bad guess costs time, never correctness."""

    def propose(self, rows: Sequence[RowView], max_nodes: int) -> list[DraftTree]:
        """Give one tree of at most `max_nodes` nodes for every row, in order."""
        ...

    def observe(self, trees: Sequence[DraftTree], outcomes: Sequence[np.ndarray]) -> None:
        """Learn from a step. `outcomes[r]` (nodes,) int8: 1 accepted, 0 refused, -1 untested."""
        ...


class NoDraft:
    """Plain decoding: the baseline, the test double and the off switch."""

    def propose(self, rows: Sequence[RowView], max_nodes: int) -> list[DraftTree]:
        """Give empty trees."""
        return [DraftTree.empty() for _ in rows]

    def observe(self, trees: Sequence[DraftTree], outcomes: Sequence[np.ndarray]) -> None:
        """Nothing to learn."""


@dataclass
class RowStatistics:
    """What a row cost and what its drafts earned."""

    forward_passes: int = 0
    relaxed_tokens: int = 0
    relaxed_cost: float = 0.0  # nats given up against the most probable token
    drafted_by_source: np.ndarray = field(default_factory=lambda: np.zeros(5, np.int64))
    accepted_by_source: np.ndarray = field(default_factory=lambda: np.zeros(5, np.int64))
    drafted_by_depth: np.ndarray = field(default_factory=lambda: np.zeros(32, np.int64))
    accepted_by_depth: np.ndarray = field(default_factory=lambda: np.zeros(32, np.int64))
    # By tenths of the survival that nodes were drafted with, and the sum of that survival.
    drafted_by_chance: np.ndarray = field(default_factory=lambda: np.zeros(10, np.int64))
    accepted_by_chance: np.ndarray = field(default_factory=lambda: np.zeros(10, np.int64))
    chance_by_decile: np.ndarray = field(default_factory=lambda: np.zeros(10, np.float64))


@dataclass(frozen=True)
class Generation:
    """A finished row."""

    key: str
    token_ids: np.ndarray  # (new,) int32, without the stop token
    finish_reason: str  # stop | length | error
    statistics: RowStatistics
    error: str = ""
    origins: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))  # (new,) int8

    @staticmethod
    def failed(key: str, error: str) -> "Generation":
        """A row that could not be written at all."""
        return Generation(key, np.empty(0, np.int32), "error", RowStatistics(), error)
