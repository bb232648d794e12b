"""Tries a model on two small rows with draft trees: packed logits must be its own logits.

Some models scale logits behind their output layer, count positions themselves, mix neighbouring
tokens outside attention, or hand attention arguments that ours does not know. No configuration
field gives all of them away, and any of them would decode wrongly without a word.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from pipeline.engine.attention import TREE_ATTENTION, register, tree_attention
from pipeline.engine.packing import Layout, Step, pack
from pipeline.engine.row import Row
from pipeline.engine.types import ROOT, DraftTree, Request
from pipeline.errors import ModelError

_PROMPTS = (4, 2)  # tokens of each row; with their trees they fit the smallest max_length, 16
_PARENTS = (ROOT, ROOT, 0, 0, 2)  # siblings at two depths; the deepest node is at depth 3
_LEAVES = (1, 3, 4)
# Distance to the model's own logits over their spread, as a mean over the tree.
_TOLERANCE = 1e-3
# In 16 bits rounding alone makes more, for some models much more. Their own eager attention, which
# rounds elsewhere, tells how much: ours was 0.3 to 1.0 of that far away in 11 families and
# SmolLM2-135M, where bfloat16 makes 0.05 and a sibling in sight 0.5.
_TOLERANCE_16_BIT = 1e-2
_TIMES_ROUNDING = 2.5
# What goes wrong where a model does not take, or does not give on, what a packed pass hands it.
_MISFITS = (TypeError, AttributeError, ValueError, LookupError, RuntimeError)
# Arguments of attention functions that change the result and that ours does not take.
_UNKNOWN_ARGUMENTS = {"softcap": "attention soft-capping", "s_aux": "attention sinks"}
_NOTED_ATTENTION = f"{TREE_ATTENTION}_noted"


@dataclass(frozen=True)
class Reference:
    """What a model says on the probe's trees before anything of it is changed."""

    logits: torch.Tensor  # (decisions, vocab) float32; each row's root, then its nodes
    tolerance: float  # see `_distance`


def reference(model: PreTrainedModel, batch_rows: int) -> Reference:
    """Run the model its own way; a model in 16 bits also shows how much rounding does."""
    logits = _own_logits(model, batch_rows)
    if model.dtype.itemsize > 2:
        return Reference(logits, _TOLERANCE)
    model.set_attn_implementation("eager")
    rounding = _distance(logits, _own_logits(model, batch_rows))
    return Reference(logits, max(_TOLERANCE_16_BIT, _TIMES_ROUNDING * rounding))


@torch.inference_mode()
def _own_logits(model: PreTrainedModel, batch_rows: int) -> torch.Tensor:
    """Logits after the root and every node: (decisions, vocab) float32.

    Each root-to-leaf path is a row of an ordinary batch; padding at its end changes nothing before
    it.
    """
    paths, wanted = [], []
    for row, tree in zip(*_case(model, batch_rows), strict=True):
        prompt, branches = row.tokens.tolist(), _branches(tree)
        home = {ROOT: (len(paths), len(prompt) - 1)}  # node -> a path through it, and where
        for leaf in _LEAVES:
            for depth, node in enumerate(branches[leaf]):
                home[node] = (len(paths), len(prompt) + depth)
            paths.append(prompt + tree.token_ids[branches[leaf]].tolist())
        wanted += [home[node] for node in range(ROOT, len(tree))]
    longest = max(map(len, paths))
    ids = torch.tensor([path + path[-1:] * (longest - len(path)) for path in paths])
    ids = ids.to(model.device)
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    return torch.stack([logits[path, position] for path, position in wanted]).float()


def require_same(
    wanted: Reference,
    forward: Callable[[Step], torch.Tensor],
    layout: Layout,
    model: PreTrainedModel,
    batch_rows: int,
) -> None:
    """Make sure that packed steps give the logits of the `reference`.

    Raises:
        ModelError: they do not, or the model fails in a packed step, or its attention asks for
            something that the engine's does not do.
    """
    for is_cached in (False, True):
        rows, trees = _case(model, batch_rows)
        for row in rows:  # first whole prompts and trees, then trees behind cached prompts
            row.num_cached = len(row.tokens) - 1 if is_cached else 0
            row.chunk = len(row.tokens) - row.num_cached
        step = _NotedStep(**vars(pack(rows, trees, layout)))
        with _noting(model):
            try:
                got = forward(step).float()
            except torch.OutOfMemoryError:
                raise
            except _MISFITS as error:
                raise ModelError(
                    f"{_name(model)} does not take the engine's cache, positions or attention "
                    f"({type(error).__name__}: {error}); choose another language_model.path"
                ) from error
        _check_arguments(step.asked, layout, model)
        _check_logits(wanted, got, model)


def _case(model: PreTrainedModel, batch_rows: int) -> tuple[list[Row], list[DraftTree]]:
    """Ragged rows in different slots, and a tree for each; ordinary tokens, all different."""
    embeddings: Any = model.get_input_embeddings()
    vocabulary = embeddings.weight.shape[0]
    tokens = iter((7 + 3 * np.arange(64, dtype=np.int32)) % vocabulary)
    rows, trees = [], []
    for slot, length in enumerate(_PROMPTS[:batch_rows]):
        prompt = np.array([next(tokens) for _ in range(length)], np.int32)
        nodes = np.array([next(tokens) for _ in _PARENTS], np.int32)
        zeros = np.zeros(len(nodes))
        parents = np.array(_PARENTS, np.int32)
        rows.append(Row(Request("", prompt, 1), slot))
        trees.append(
            DraftTree(nodes, parents, zeros.astype("f4"), zeros.astype("i1"), zeros.astype("i4"))
        )
    return rows, trees


def _branches(tree: DraftTree) -> list[list[int]]:
    """For every node the nodes from the root's child down to it."""
    branches: list[list[int]] = []
    for node, parent in enumerate(tree.parents):
        branches.append([*(branches[parent] if parent != ROOT else []), node])
    return branches


@dataclass(frozen=True)
class _NotedStep(Step):
    """A step that keeps what the model hands its attention function, layer by layer."""

    asked: list[dict[str, Any]] = field(default_factory=list)


def _noted_attention(
    *arguments: Any, step: _NotedStep, **options: Any
) -> tuple[torch.Tensor, None]:
    step.asked.append(options)
    return tree_attention(*arguments, step=step, **options)


@contextmanager
def _noting(model: PreTrainedModel) -> Iterator[None]:
    """Let this model note the arguments of attention; others may be at work in other threads."""
    register(_NOTED_ATTENTION, _noted_attention)
    model.set_attn_implementation(_NOTED_ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(TREE_ATTENTION)


def _check_arguments(asked: list[dict[str, Any]], layout: Layout, model: PreTrainedModel) -> None:
    """Refuse what a few tokens may not show: windows none of them leaves, caps none reaches."""
    for name, meaning in _UNKNOWN_ARGUMENTS.items():
        if any(options.get(name) is not None for options in asked):
            raise ModelError(
                f"{_name(model)} has {meaning}, which the engine has not; choose another "
                "language_model.path"
            )
    windows = {options.get("sliding_window") or 0 for options in asked}
    missed = [w for w in layout.windows if 0 < w < layout.max_length and w not in windows]
    if missed:
        raise ModelError(
            f"{_name(model)} has a sliding window of {missed[-1]} tokens that it keeps "
            f"from its attention function; set engine.max_length to {missed[-1]} or less, or "
            "choose another language_model.path"
        )


def _check_logits(wanted: Reference, got: torch.Tensor, model: PreTrainedModel) -> None:
    distance = _distance(wanted.logits, got)
    if not distance <= wanted.tolerance:  # NaN must not pass
        raise ModelError(
            f"{_name(model)} computes its logits in a way this engine does not know: on a small "
            f"draft tree they are {distance:.2g} of their spread away from its own, more than "
            f"{wanted.tolerance:.2g}; choose another language_model.path"
        )


def _distance(wanted: torch.Tensor, got: torch.Tensor) -> float:
    """Root mean square over the decisions of the distance relative to the logits' spread."""
    spread = (wanted - wanted.mean(1, keepdim=True)).square().sum(1)
    distance = (got - wanted).square().sum(1)
    return float((distance / spread.clamp(min=1e-30)).mean().sqrt())


def _name(model: PreTrainedModel) -> str:
    return f"{type(model).__name__} (type {model.config.model_type!r})"
