"""Vector code of the row attention kernel: tiles of scores and tiles of values.

Every sum of a tile stays in a register: 3 queries x 4 keys, or x 4 vectors of values, are 12 of the
16 that are assumed. The compiler cannot be trusted to find this by itself, so it is given LLVM
instructions.
"""

from collections.abc import Callable
from typing import Any

from numba import types

from pipeline.engine.vector_code import (
    INT,
    LANES,
    LINE,
    broadcast,
    compiled,
    load,
    loop_over,
    multiply_add,
    pointer,
    prefetch,
    same,
    shuffle,
    store,
)

QUERIES = 3  # of a tile
KEYS = 4
WIDE = 4 * LANES  # dimensions of a tile of values, where as many are left


def _half_sums(builder: Any, a: Any, b: Any) -> Any:
    """Sums of neighbours: lanes of `a`, of `b`, of `a`, of `b`, two each."""
    even = shuffle(builder, a, b, [0, 2, 8, 10, 4, 6, 12, 14])
    return builder.fadd(even, shuffle(builder, a, b, [1, 3, 9, 11, 5, 7, 13, 15]))


@compiled
def score_tile(
    _: Any, queries: Any, dim: Any, a: Any, b: Any, c: Any, d: Any, scores: Any, stride: Any
) -> tuple[Any, Callable]:
    """Products of 3 queries, one behind the other, with the keys at `a` to `d`."""

    def generate(context: Any, builder: Any, _: Any, args: list[Any]) -> Any:
        queries, dim, *keys, scores, stride = args
        starts = [pointer(builder, queries, builder.mul(dim, INT(n))) for n in range(QUERIES)]
        sources = [pointer(builder, key, INT(0)) for key in keys]

        def turn(place: Any, sums: list[Any]) -> list[Any]:
            key_vectors = [load(builder, builder.gep(key, [place])) for key in sources]
            vectors = [load(builder, builder.gep(start, [place])) for start in starts]
            pairs = [(query, key) for query in vectors for key in key_vectors]
            return [multiply_add(builder, *pair, s) for pair, s in zip(pairs, sums, strict=True)]

        sums = loop_over(builder, dim, LANES, [same(0.0)] * (QUERIES * KEYS), turn)
        for query in range(QUERIES):
            a, b, c, d = sums[query * KEYS : (query + 1) * KEYS]
            ab, cd = _half_sums(builder, a, b), _half_sums(builder, c, d)
            both = _half_sums(builder, ab, cd)
            low, high = (
                shuffle(builder, both, both, lanes) for lanes in ([0, 1, 2, 3], [4, 5, 6, 7])
            )
            target = pointer(builder, scores, builder.mul(stride, INT(query)))
            store(builder, builder.fadd(low, high), target)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), generate


def _mix_kernel(vectors: int) -> Any:
    """Adds values, weighted by 3 queries, to their outputs: `vectors` vectors of the values."""

    @compiled
    def mix(
        _: Any, weights: Any, stride: Any, values: Any, step: Any, count: Any, out: Any, dim: Any
    ) -> tuple[Any, Callable]:
        def generate(context: Any, builder: Any, _: Any, args: list[Any]) -> Any:
            weights, stride, values, step, count, out, dim = args
            rows = [pointer(builder, weights, builder.mul(stride, INT(n))) for n in range(QUERIES)]
            outs = [
                pointer(builder, out, builder.add(builder.mul(dim, INT(n)), INT(v * LANES)))
                for n in range(QUERIES)
                for v in range(vectors)
            ]

            def turn(key: Any, sums: list[Any]) -> list[Any]:
                start = pointer(builder, values, builder.mul(key, step))
                shares = [broadcast(builder, builder.load(builder.gep(row, [key]))) for row in rows]
                parts = [
                    load(builder, builder.gep(start, [INT(v * LANES)])) for v in range(vectors)
                ]
                pairs = [(part, share) for share in shares for part in parts]
                return [
                    multiply_add(builder, *pair, s) for pair, s in zip(pairs, sums, strict=True)
                ]

            sums = loop_over(builder, count, 1, [load(builder, place) for place in outs], turn)
            for value, place in zip(sums, outs, strict=True):
                store(builder, value, place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return mix


mix_wide, mix_narrow = _mix_kernel(WIDE // LANES), _mix_kernel(1)


@compiled
def ask(_: Any, address: Any, count: Any) -> tuple[Any, Callable]:
    """Ask the memory for `count` bytes."""

    def generate(context: Any, builder: Any, _: Any, args: list[Any]) -> Any:
        address, count = args

        def turn(place: Any, _: list[Any]) -> list[Any]:
            prefetch(builder, builder.add(address, place))
            return []

        loop_over(builder, count, LINE, [], turn)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@compiled
def take_number(_: Any, counter: Any) -> tuple[Any, Callable]:
    """The integer behind a pointer, which goes up by one: no two threads get the same."""

    def generate(_: Any, builder: Any, __: Any, args: list[Any]) -> Any:
        return builder.atomic_rmw("add", args[0], INT(1), "monotonic")

    return types.int64(counter), generate


def _pointer_to(kind: Any) -> Any:
    @compiled
    def pointer(_: Any, address: Any) -> tuple[Any, Callable]:
        def generate(context: Any, builder: Any, signature: Any, args: list[Any]) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return pointer


floats_at, integers_at, bytes_at = map(_pointer_to, (types.float32, types.int64, types.uint8))
