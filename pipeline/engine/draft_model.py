"""Drafts from a small causal LM with the target's vocabulary: speculative decoding.

Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318. The small model has a runner
and a KV cache of its own. It drafts a chain for all rows at once: one pass reads what was
committed since the last step, then one pass per further token. Its logits go through the target's
processors, so that it guesses at what the target will be allowed to say.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from pipeline.config import EngineSettings
from pipeline.engine.branch import Branch
from pipeline.engine.budget import CostTable
from pipeline.engine.chain_length import ChainLength
from pipeline.engine.follower import Follower
from pipeline.engine.packing import pack
from pipeline.engine.processors import Processors
from pipeline.engine.profile import measure_costs
from pipeline.engine.runner import ModelRunner
from pipeline.engine.sampling import Sampling, draw
from pipeline.engine.types import ROOT, DraftTree, RowView
from pipeline.errors import ModelError

SOURCE = 4  # "model" in pipeline.schemas.SOURCES


class DraftModelDrafter:
    """A small causal LM guesses the next tokens of every row.

    Without `sampling` it drafts greedily. With it, drafts are drawn, and come with the
    distributions they were drawn from. A row's draws depend on its seed and its length only; they
    share nothing with the random numbers of verification.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        vocabulary: int,
        tokens: int,
        settings: EngineSettings,
        processors: Processors,
        target_costs: CostTable,
        sampling: Sampling | None = None,
        costs: CostTable | None = None,
    ) -> None:
        """Take over `model`; draft at most `tokens` per row and step.

        `vocabulary` and `target_costs` are those of the target model; `costs` of the draft model
        are measured unless given, and refined while running.

        Raises:
            ModelError: the vocabularies differ, or the engine cannot run the draft model.
        """
        own = _vocabulary_of(model)
        if own != vocabulary:
            raise ModelError(
                f"drafts.model has a vocabulary of {own} tokens, the language model one of "
                f"{vocabulary}; a draft model must share tokenizer and vocabulary size"
            )
        self._length = _context_of(model, settings.max_length)
        try:
            self._runner = ModelRunner(model, settings.batch_rows, self._length)
        except ModelError as error:
            raise ModelError(f"drafts.model: {error}") from error
        self.costs = (costs or measure_costs(self._runner, settings.batch_rows)).copy()
        self._target_costs = target_costs
        self._most = tokens
        self._lengths = ChainLength(tokens, target_costs, self.costs)
        self._processors = processors
        self._sampling = sampling
        self._free = set(range(settings.batch_rows))  # slots
        self._followers: dict[str, Follower] = {}  # by request key
        self._account = _Account(tokens)

    @torch.inference_mode()
    def propose(self, rows: Sequence[RowView], max_nodes: int) -> list[DraftTree]:
        """Give a chain, or nothing, for every row; all chains that have room are equally long."""
        self._follow(rows)
        self._account.target_seconds += _seconds(self._target_costs, len(rows), _context(rows))
        rooms = {row.request.key: min(self._room(row), max_nodes) for row in rows}
        chosen, length = self._choose([row for row in rows if rooms[row.request.key] > 0])
        followers = {row.request.key: self._seat(row) for row in chosen}
        for key, follower in followers.items():
            follower.begin(min(rooms[key], length))
        self._draft(list(followers.values()))
        survival = self._lengths.survival
        chains = {key: _chain(follower, survival) for key, follower in followers.items()}
        return [chains.get(row.request.key, DraftTree.empty()) for row in rows]

    def observe(self, trees: Sequence[DraftTree], outcomes: Sequence[np.ndarray]) -> None:
        """Learn how many drafts stay."""
        self._lengths.observe(trees, outcomes)
        self._account.observe(outcomes)

    def forget(self) -> None:
        """Let no prompt reuse what was read for another; not while rows are in flight."""
        self._followers.clear()
        self._free = set(range(len(self._runner.cache.keys[0])))
        self._runner.cache.forget()

    def expected_speedup(self) -> float:
        """Tokens per second against plain decoding, if verifying drafts cost nothing.

        (1 + sum alpha_i) / (1 + rho K), arXiv 2211.17192, theorem 3.8 with the measured alpha_i:
        alpha_i is the share of row steps whose first i drafts were all accepted, K the mean length
        of a chain, rho the time of a draft pass over that of the target's step.
        """
        return self._account.expected_speedup()

    def _follow(self, rows: Sequence[RowView]) -> None:
        """Hear what was committed; rows that left give up their slots, the last move into them."""
        present = {row.request.key: row for row in rows}
        for key, follower in list(self._followers.items()):
            row = present.get(key)
            if row is None or not follower.belongs_to(row):
                self._free.add(self._followers.pop(key).slot)
            else:
                follower.follow(row.tokens)
                self._runner.cache.remember(follower.slot, follower.known)
        for follower in sorted(self._followers.values(), key=lambda one: -one.slot):
            lowest = min(self._free, default=follower.slot)
            if lowest < follower.slot:
                self._runner.cache.move(follower.slot, lowest)
                self._free ^= {follower.slot, lowest}
                follower.slot = lowest

    def _room(self, row: RowView) -> int:
        """Drafts a row has room for; the last new token comes from the target anyway."""
        request, num_tokens = row.request, len(row.tokens)
        remaining = len(request.prompt_ids) + request.max_new_tokens - num_tokens
        return max(0, min(remaining - 1, self._length - num_tokens))

    def _choose(self, rows: Sequence[RowView]) -> tuple[Sequence[RowView], int]:
        """Rows to draft for, and how many tokens for each."""
        if not rows:
            return [], 0
        unread = [self._num_unread(row) for row in rows]
        remaining = max(self._room(row) for row in rows) + 1
        length = self._lengths.choose(len(rows), sum(unread), remaining, _context(rows))
        if length:
            return rows, length
        if self._lengths.is_trial():
            return [rows[int(np.argmin(unread))]], self._most
        return [], 0

    def _num_unread(self, row: RowView) -> int:
        follower = self._followers.get(row.request.key)
        return follower.num_pending if follower else len(row.tokens)

    def _seat(self, row: RowView) -> Follower:
        """The row's follower; a new one starts from the longest prefix that any slot holds."""
        key = row.request.key
        if key not in self._followers:
            follower = Follower(row.request, min(self._free))
            self._free.remove(follower.slot)
            follower.follow(row.tokens)
            follower.num_cached = self._runner.cache.reuse_prefix(follower.slot, follower.tokens)
            self._followers[key] = follower
        return self._followers[key]

    def _draft(self, followers: Sequence[Follower]) -> None:
        """Let all followers grow to the drafts they want: a pass for each token of a chain."""
        while going_on := [one for one in followers if one.wants_more]:
            began = time.perf_counter()
            num_tokens = self._grow(going_on)
            seconds = time.perf_counter() - began
            self._account.passes += 1
            if num_tokens <= 2 * len(going_on):  # reading a prompt would tell of something else
                self.costs.refine(len(going_on), num_tokens, _context(going_on), seconds)
                self._account.short_passes += 1
                self._account.short_seconds += seconds

    def _grow(self, followers: Sequence[Follower]) -> int:
        """Read all pending tokens and append the draft that follows; say how many were read."""
        for one in followers:
            one.chunk = one.num_pending
        no_trees = [DraftTree.empty()] * len(followers)
        step = pack(followers, no_trees, self._runner.layout)
        scores = self._processors.apply(
            self._runner.forward(step).float(),
            [Branch(one, tree, 0) for one, tree in zip(followers, no_trees, strict=True)],
        )
        proposals: Sequence[torch.Tensor | None] = [None] * len(followers)
        if self._sampling is None:
            tokens = scores.argmax(-1)
        else:
            distributions = self._sampling.distribution(scores)
            tokens = draw(distributions, np.array([one.uniform for one in followers]))
            proposals = distributions.unbind()
        for one, token, proposal in zip(followers, tokens.tolist(), proposals, strict=True):
            one.num_cached += one.chunk
            self._runner.cache.remember(one.slot, one.known)
            one.draft(token, proposal)
        return len(step)


def _chain(follower: Follower, survival: np.ndarray) -> DraftTree:
    nodes = np.arange(len(follower.drafts), dtype=np.int32)
    return DraftTree(
        follower.drafts.copy(),
        nodes + np.int32(ROOT),
        survival[: len(nodes)],
        np.full(len(nodes), SOURCE, np.int8),
        nodes,
        torch.stack(follower.proposals) if follower.proposals else None,
    )


class _Account:
    """What a draft model cost and earned in all."""

    def __init__(self, most: int) -> None:
        self.passes = 0  # of the draft model
        self.short_passes = 0  # that read a token or two per row
        self.short_seconds = 0.0
        self.target_seconds = 0.0  # of the target's steps, had nothing been drafted
        self._row_steps = 0
        self._accepted = np.zeros(most, np.int64)  # row steps whose first i drafts were accepted

    def observe(self, outcomes: Sequence[np.ndarray]) -> None:
        """Count a step."""
        self._row_steps += len(outcomes)
        for outcome in outcomes:
            self._accepted[: len(outcome)] += outcome == 1

    def expected_speedup(self) -> float:
        """See `DraftModelDrafter`; rho K is the time of all draft passes over that of all steps."""
        alphas = self._accepted / max(self._row_steps, 1)
        drafting = self.passes * self.short_seconds / max(self.short_passes, 1)
        return float((1.0 + alphas.sum()) / (1.0 + drafting / max(self.target_seconds, 1e-12)))


def _vocabulary_of(model: PreTrainedModel) -> int:
    head: Any = model.get_output_embeddings()
    if head is None:
        raise ModelError(
            f"drafts.model: {type(model).__name__} has no output layer over the vocabulary"
        )
    return head.weight.shape[0]


def _context_of(model: PreTrainedModel, max_length: int) -> int:
    """Positions of a row that the draft model can read."""
    config: Any = model.config.get_text_config(decoder=True)
    return min(max_length, getattr(config, "max_position_embeddings", None) or max_length)


def _context(rows: Sequence[RowView]) -> float:
    """Mean number of tokens of a row."""
    return sum(len(row.tokens) for row in rows) / max(len(rows), 1)


def _seconds(costs: CostTable, rows: int, context: float) -> float:
    """Time of a step of `rows` rows without drafts."""
    return float(costs.step_seconds(rows, np.array([rows]), context)[0]) if rows else 0.0
