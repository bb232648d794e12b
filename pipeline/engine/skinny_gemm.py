"""y = x W^T for the few rows x of a decoding step, on a CPU in float32.

BLAS libraries are tuned for large products; from 1 to 64 rows oneDNN reaches 5 to 60 GFLOP/s on a
core that can do 80 (measured, SmolLM2's layers). Here the weights lie in tiles of 16 outputs, all
inputs of a tile one after the other, so memory is read in one stream. The sums of up to 6 rows with
a tile stay in registers: 2 vectors of 8 outputs for each row, the tile's 2 vectors and one for the
input are the 15 that a core with 16 vector registers can hold. The compiler cannot be trusted to
find this by itself, so the inner loop is given to it as LLVM instructions.

The first block of rows to read a tile waits for the memory, the others only compute. So each block
asks for its share of the next tile while it computes, and reading hides behind arithmetic: all
layers take 16 ms at 8 rows, not 25, and 24 at 16, not 36 (two cores, 12 at 1 row).
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from pipeline.engine import openmp, vector_code
from pipeline.engine.vector_code import (
    FLOAT,
    INT,
    LANES,
    LINE,
    VECTOR,
    broadcast,
    multiply_add,
    name_after,
    prefetch,
    store,
)

_VECTORS = 2
_TILE = LANES * _VECTORS  # outputs
_ROWS = 6
_UNROLL = 4  # inputs per turn of the inner loop
_ALIGNMENT = 32  # bytes of a vector
_LINES = 2  # asked for in a turn of the inner loop, which reads _UNROLL of them
_OVERLAPPED = 4  # rows from which on reading and computing take turns in two blocks


def _row_kernel(rows: int) -> Any:
    """Products of `rows` rows with one tile.

    Takes addresses of weights, of what to ask the memory for, how many bytes of that a turn of the
    inner loop moves on, the address of the inputs, their number, the address of the outputs and
    the distance of two rows of them, in floats.
    """

    @intrinsic
    def multiply(
        _: Any,
        weights: Any,
        ahead: Any,
        reach: Any,
        inputs: Any,
        num_inputs: Any,
        outputs: Any,
        stride: Any,
    ) -> tuple[Any, Callable]:
        def generate(context: Any, builder: Any, _: Any, args: list[Any]) -> Any:
            weights, ahead, reach, inputs, num_inputs, outputs, stride = args
            tile = builder.inttoptr(weights, FLOAT.as_pointer())
            first = builder.inttoptr(inputs, FLOAT.as_pointer())
            starts = [builder.gep(first, [builder.mul(num_inputs, INT(r))]) for r in range(rows)]
            sums = _loop_over_inputs(builder, tile, ahead, reach, starts, num_inputs)
            target = builder.inttoptr(outputs, FLOAT.as_pointer())
            for place, value in enumerate(sums):
                row, vector = divmod(place, _VECTORS)
                offset = builder.add(builder.mul(stride, INT(row)), INT(vector * LANES))
                store(builder, value, builder.gep(target, [offset]))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return multiply


def _loop_over_inputs(
    builder: Any, tile: Any, ahead: Any, reach: Any, starts: list[Any], num_inputs: Any
) -> list[Any]:
    """Emit the inner loop; return the sums, `_VECTORS` for every row."""
    before = builder.block
    loop, after = builder.append_basic_block("inputs"), builder.append_basic_block("sums")
    builder.branch(loop)
    builder.position_at_end(loop)
    place = builder.phi(INT)
    place.add_incoming(INT(0), before)
    wanted = builder.phi(INT)
    wanted.add_incoming(ahead, before)
    totals = [builder.phi(VECTOR) for _ in range(len(starts) * _VECTORS)]
    sums: list[Any] = list(totals)
    for line in range(_LINES):
        prefetch(builder, builder.add(wanted, INT(line * LINE)))
    for step in range(_UNROLL):
        here = builder.add(place, INT(step))
        vectors = [_load_vector(builder, tile, here, number) for number in range(_VECTORS)]
        for row, start in enumerate(starts):
            value = broadcast(builder, builder.load(builder.gep(start, [here])))
            for number, vector in enumerate(vectors):
                at = row * _VECTORS + number
                sums[at] = multiply_add(builder, vector, value, sums[at])
    following = builder.add(place, INT(_UNROLL))
    place.add_incoming(following, loop)
    wanted.add_incoming(builder.add(wanted, reach), loop)
    for total, value in zip(totals, sums, strict=True):
        total.add_incoming(ir.Constant(VECTOR, [0.0] * LANES), before)
        total.add_incoming(value, loop)
    builder.cbranch(builder.icmp_signed("<", following, num_inputs), loop, after)
    builder.position_at_end(after)
    return sums


def _load_vector(builder: Any, tile: Any, place: Any, number: int) -> Any:
    offset = builder.add(builder.mul(place, INT(_TILE)), INT(number * LANES))
    address = builder.bitcast(builder.gep(tile, [offset]), VECTOR.as_pointer())
    return builder.load(address, align=_ALIGNMENT)


_one, _two, _three, _four, _five, _six = (_row_kernel(rows) for rows in range(1, _ROWS + 1))


@njit(inline="never", nogil=True)
def _few_rows(
    rows: int,
    weights: int,
    ahead: int,
    reach: int,
    inputs: int,
    num_inputs: int,
    outputs: int,
    stride: int,
) -> None:
    if rows == 1:
        _one(weights, ahead, reach, inputs, num_inputs, outputs, stride)
    elif rows == 2:
        _two(weights, ahead, reach, inputs, num_inputs, outputs, stride)
    elif rows == 3:
        _three(weights, ahead, reach, inputs, num_inputs, outputs, stride)
    elif rows == 4:
        _four(weights, ahead, reach, inputs, num_inputs, outputs, stride)
    elif rows == 5:
        _five(weights, ahead, reach, inputs, num_inputs, outputs, stride)
    else:
        _six(weights, ahead, reach, inputs, num_inputs, outputs, stride)


def _product(job: Any) -> None:
    """One thread's share of the tiles, with all rows in blocks of equal size.

    `job` points to the addresses of weights, inputs and outputs, then the numbers of inputs, tiles
    and rows.
    """
    weights, inputs, outputs, num_inputs, num_tiles, rows = (
        job[0],
        job[1],
        job[2],
        job[3],
        job[4],
        job[5],
    )
    thread, threads = openmp.thread_number(), openmp.num_threads()
    blocks = max((rows + _ROWS - 1) // _ROWS, 2 if rows >= _OVERLAPPED else 1)
    size = (rows + blocks - 1) // blocks
    stride, size_of_tile = num_tiles * _TILE, num_inputs * _TILE * 4
    reach = _LINES * LINE if blocks < _UNROLL else LINE  # all blocks together ask for a tile
    for tile in range(num_tiles * thread // threads, num_tiles * (thread + 1) // threads):
        here = weights + tile * size_of_tile
        for block in range(blocks):
            first = block * size
            share = size_of_tile + block * size_of_tile // blocks // LINE * LINE
            _few_rows(
                min(size, rows - first),
                here,
                here + share if blocks > 1 else here,
                reach,
                inputs + first * num_inputs * 4,
                num_inputs,
                outputs + (first * stride + tile * _TILE) * 4,
                stride,
            )


name_after(_product, vector_code)


@cache
def _compiled() -> Any:
    """`_product` for the runtime; compiled at first use, when the thread functions are known."""
    assert openmp.is_available(), "ask can_pack first"
    return cfunc(types.void(types.CPointer(types.int64)), cache=True)(_product)


class PackedWeight:
    """A weight matrix in tiles."""

    def __init__(self, weight: torch.Tensor) -> None:
        """Copy `weight` (outputs, inputs) float32; see `can_pack`."""
        self._num_outputs, self._num_inputs = weight.shape
        self._num_tiles = -(-self._num_outputs // _TILE)
        padded = np.zeros((self._num_tiles * _TILE, self._num_inputs), np.float32)
        padded[: self._num_outputs] = weight.detach().numpy()
        tiles = padded.reshape(self._num_tiles, _TILE, -1).transpose(0, 2, 1)
        memory = np.empty(tiles.size + _ALIGNMENT // 4, np.float32)
        start = -memory.ctypes.data % _ALIGNMENT // 4
        self._tiles = memory[start : start + tiles.size]  # (tiles * inputs * 16,)
        self._tiles[:] = tiles.ravel()
        self._address = self._tiles.ctypes.data

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """(..., inputs) -> (..., outputs)."""
        if x.dtype != torch.float32 or x.shape[-1] != self._num_inputs or x.device.type != "cpu":
            raise ValueError(f"x is {x.dtype} {tuple(x.shape)} on {x.device}, not float32 on a CPU")
        x = x.contiguous()
        rows = x.numel() // self._num_inputs
        size = (*x.shape[:-1], self._num_tiles * _TILE)
        outputs = torch.empty(size, dtype=torch.float32, device="cpu")
        if rows:
            job = (self._address, x.data_ptr(), outputs.data_ptr(), self._num_inputs)
            openmp.run(_compiled().address, (*job, self._num_tiles, rows))
        return outputs[..., : self._num_outputs]


def can_pack(weight: torch.Tensor) -> bool:
    """Whether a weight (outputs, inputs) can be laid out in tiles."""
    return (
        openmp.is_available()
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.shape[1] % _UNROLL == 0
    )
