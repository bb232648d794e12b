"""Attention of a step's rows on a CPU in float32, without padding, masks or copies.

A unit of work is a few tokens of one row with all their heads. Its scores for all keys are kept, so
keys and values are read once. Reading them is all that a decoding step has to wait for: 16 rows
with 300 cached tokens, in SmolLM2's 30 layers, take 7 ms, where masks take 25 (two cores; memory
alone allows 6.5).

That needs memory to be read in the order it lies there. So all heads of a few keys take turns, each
asking for its share of what comes a few kilobytes later. One head at a time would skip through
memory, which takes twice as long and gets no better by asking early.
"""

from functools import cache
from math import e, log2
from typing import Any

import numpy as np
import torch
from numba import cfunc, njit, types

from pipeline.engine import attention_tiles, openmp, softmax, vector_code
from pipeline.engine.attention_tiles import (
    KEYS,
    QUERIES,
    WIDE,
    ask,
    bytes_at,
    floats_at,
    integers_at,
    mix_narrow,
    mix_wide,
    score_tile,
    take_number,
)
from pipeline.engine.row_plan import RowPlan
from pipeline.engine.softmax import softmax_in_place
from pipeline.engine.vector_code import LANES, name_after

_TURN = 8  # keys of a turn at mixing values
_AHEAD = 6144  # bytes from a share of memory to the one asked for
_UNIT_BYTES = 7 * 8
_HIDDEN = np.float32(-np.inf)


# The compiled functions call memory by address; sizes and strides count floats of 4 bytes. A group
# is the queries of a tile: of those that share keys 3 at a time, the last group filled up with 0.


@njit(nogil=True)
def _gather(
    packed: int, tokens: int, heads: int, size: int, scale: Any, queries: int, room: int
) -> None:
    """Scaled queries from (tokens, heads, size) to (heads, room); `size` is fold * dim."""
    source, target = floats_at(packed), floats_at(queries)
    for head in range(heads):
        for token in range(tokens):
            for place in range(size):
                value = source[(token * heads + head) * size + place]
                target[head * room + token * size + place] = value * scale
        for place in range(tokens * size, room):
            target[head * room + place] = np.float32(0.0)


@njit(nogil=True)
def _scatter(mixed: int, room: int, tokens: int, heads: int, size: int, output: int) -> None:
    source, target = floats_at(mixed), floats_at(output)
    for token in range(tokens):
        for head in range(heads):
            for place in range(size):
                value = source[head * room + token * size + place]
                target[(token * heads + head) * size + place] = value


@njit(nogil=True)
def _score(
    queries: int, heads: int, groups: int, dim: int, keys: int, count: int, scores: int, stride: int
) -> None:
    """Products of all queries (heads, groups, 3, dim) with the keys (count, heads, dim)."""
    row, share = 4 * heads * dim, 4 * KEYS * dim
    last = count - 1
    for key in range(0, count, KEYS):
        for head in range(heads):
            here = keys + 4 * head * dim
            ask(keys + key * row + head * share + _AHEAD, share)
            a, b = here + key * row, here + min(key + 1, last) * row
            c, d = here + min(key + 2, last) * row, here + min(key + 3, last) * row
            for group in range(head * groups, (head + 1) * groups):
                query, score = 4 * QUERIES * group * dim, 4 * (QUERIES * group * stride + key)
                score_tile(queries + query, dim, a, b, c, d, scores + score, stride)


@njit(nogil=True)
def _mix(
    weights: int, heads: int, groups: int, stride: int, values: int, count: int, out: int, dim: int
) -> None:
    """Sums (heads, groups, 3, dim) of the values (count, heads, dim) by weight."""
    row, share = heads * dim, 4 * _TURN * dim
    for key in range(0, count, _TURN):
        turn = min(_TURN, count - key)
        for head in range(heads):
            here = values + 4 * (key * row + head * dim)
            ask(values + 4 * key * row + head * share + _AHEAD, share)
            for group in range(head * groups, (head + 1) * groups):
                weight = weights + 4 * (QUERIES * group * stride + key)
                target = out + 4 * QUERIES * group * dim
                done = 0
                while done + WIDE <= dim:
                    mix_wide(weight, stride, here + 4 * done, row, turn, target + 4 * done, dim)
                    done += WIDE
                while done < dim:
                    mix_narrow(weight, stride, here + 4 * done, row, turn, target + 4 * done, dim)
                    done += LANES


@njit(nogil=True)
def _hide(scores: int, old: int, cached: int, count: int, hidden: int, stride: int) -> None:
    """Take a query's score from keys before its window, new tokens out of sight, and padding."""
    score, is_hidden = floats_at(scores), bytes_at(hidden)
    for key in range(old):
        score[key] = _HIDDEN
    for key in range(cached, count):
        if is_hidden[key - cached]:
            score[key] = _HIDDEN
    for key in range(count, stride):
        score[key] = _HIDDEN


@njit(nogil=True)
def _attend(job: Any, number: int, scratch: int) -> None:
    """One unit; see `RowPlan` for its numbers and `row_attention` for those of the job."""
    packed, key, value, output, hidden = job[5], job[6], job[7], job[8], job[10]
    heads, fold, dim, length = job[11], job[12], job[13], job[14]
    unit, oldest = integers_at(job[2] + number * _UNIT_BYTES), integers_at(job[9])
    slot, start, tokens, first, cached = unit[0], unit[1], unit[2], unit[3], unit[4]
    width, square = unit[5], unit[6]
    begin = cached  # the first key that any token sees
    for token in range(start, start + tokens):
        begin = min(begin, oldest[token])
    count = cached + first + tokens - begin
    stride = -(-count // LANES) * LANES
    groups = -(-tokens * fold // QUERIES)
    room, size = groups * QUERIES * dim, fold * dim
    mixed = scratch + 4 * heads * room
    scores = mixed + 4 * heads * room
    arena = 4 * (slot * length + begin) * heads * dim
    scale = np.float32(np.int64(job[15]).view(np.float64))
    _gather(packed + 4 * start * heads * size, tokens, heads, size, scale, scratch, room)
    _score(scratch, heads, groups, dim, key + arena, count, scores, stride)
    for head in range(heads):
        for query in range(tokens * fold):
            token = query // fold
            row = scores + 4 * (head * groups * QUERIES + query) * stride
            old = min(oldest[start + token], cached) - begin
            seen = hidden + square + (first + token) * width
            _hide(row, old, cached - begin, count, seen, stride)
            softmax_in_place(row, stride)
    sums = floats_at(mixed)
    for place in range(heads * room):
        sums[place] = np.float32(0.0)
    _mix(scores, heads, groups, stride, value + arena, count, mixed, dim)
    _scatter(mixed, room, tokens, heads, size, output + 4 * start * heads * size)


def _share(job: Any) -> None:
    """What one thread does: unit after unit, until none is left."""
    scratch = job[3] + openmp.thread_number() * job[4]
    number = take_number(job)
    while number < job[1]:
        _attend(job, number, scratch)
        number = take_number(job)


name_after(_share, vector_code, attention_tiles, softmax)


@cache
def _compiled() -> Any:
    """`_share` for the runtime; compiled at first use, when the thread functions are known."""
    assert openmp.is_available(), "ask can_attend first"
    return cfunc(types.void(types.CPointer(types.int64)), cache=True)(_share)


def can_attend(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether the kernel takes such a model."""
    is_plain = device.type == "cpu" and dtype == torch.float32
    return is_plain and head_dim % LANES == 0 and openmp.is_available()


def row_attention(
    packed: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    plan: RowPlan,
    window: int,
    scaling: float,
) -> torch.Tensor:
    """Attention of all rows: queries and result (tokens, heads, dim), see `can_attend`.

    Keys and values are the arena (rows, length, heads, dim), contiguous.
    """
    assert key.is_contiguous()
    assert value.is_contiguous()
    packed = packed.contiguous()
    output = torch.empty_like(packed)
    length, heads, dim = key.shape[1:]
    fold = packed.shape[1] // heads
    queries = heads * (plan.most_tokens * fold + QUERIES)
    size = 4 * queries * (2 * dim + plan.most_keys + LANES)
    scratch = torch.empty(torch.get_num_threads() * size, dtype=torch.uint8)
    sight = plan.sights[window]
    scale = int(np.float64(scaling * log2(e)).view(np.int64))
    job = (
        *(0, len(plan.units), plan.units.ctypes.data, scratch.data_ptr(), size),
        *(packed.data_ptr(), key.data_ptr(), value.data_ptr(), output.data_ptr()),
        *(sight.oldest.ctypes.data, sight.hidden.ctypes.data, heads, fold, dim, length, scale),
    )
    openmp.run(_compiled().address, job)
    return output
