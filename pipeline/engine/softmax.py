"""Softmax of the row attention kernel; what is hidden between its keys changes no bit of it."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from pipeline.engine.vector_code import (
    FLOAT,
    LANE,
    LANES,
    VECTOR,
    broadcast,
    compiled,
    load,
    loop_over,
    multiply_add,
    pointer,
    same,
    shuffle,
    store,
)

_BITS = ir.VectorType(LANE, LANES)
_DOUBLES = ir.VectorType(ir.DoubleType(), LANES // 2)

# 2^x on [-0.5, 0.5] by Chebyshev interpolation, off by 3e-9.
_EXP2 = (1.0, 0.6931472, 0.2402265, 0.05550327, 0.009618057, 0.0013400428, 0.00015461445)
_SMALLEST = -126.0  # exponent of a normal number
_ROUNDER = 1.5 * 2.0**23  # adding it leaves the nearest integer in the low bits
_NO_SCORE = -1e30  # less than any score, but not -inf, which would make -inf - -inf

# Adding it to a weight, which is at most 1, rounds to multiples of 2^-32. Sums of a million of
# those are exact in double precision, so a token's weights do not depend on which other branches of
# a draft lie between its keys. The largest weight is 1: what is lost does not count beside it.
_QUANTUM = 1.5 * 2.0**20


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _exp2(builder: Any, x: Any) -> Any:
    """2^x for x <= 0; zero below the normal numbers; not-a-number stays."""
    is_tiny = builder.fcmp_ordered("<", x, same(_SMALLEST))
    x = builder.select(is_tiny, same(_SMALLEST), x)
    rounded = builder.fadd(x, same(_ROUNDER))
    part = builder.fsub(x, builder.fsub(rounded, same(_ROUNDER)))
    power = same(_EXP2[-1])
    for coefficient in _EXP2[-2::-1]:
        power = multiply_add(builder, power, part, same(coefficient))
    whole = builder.shl(builder.bitcast(rounded, _BITS), ir.Constant(_BITS, [23] * LANES))
    power = builder.bitcast(builder.add(builder.bitcast(power, _BITS), whole), VECTOR)
    return builder.select(is_tiny, same(0.0), power)


def _largest(builder: Any, vector: Any) -> Any:
    """The largest of all lanes, in every lane."""
    for lanes in ([4, 5, 6, 7, 0, 1, 2, 3], [2, 3, 0, 1, 6, 7, 4, 5], [1, 0, 3, 2, 5, 4, 7, 6]):
        vector = _larger(builder, vector, shuffle(builder, vector, vector, lanes))
    return vector


def _add_exactly(builder: Any, sums: list[Any], weight: Any) -> list[Any]:
    """To two vectors of sums: the weight's lanes, as multiples of the quantum."""
    quantum = ir.Constant(_DOUBLES, [_QUANTUM] * (LANES // 2))
    halves = [
        builder.fpext(shuffle(builder, weight, weight, lanes), _DOUBLES)
        for lanes in ([0, 1, 2, 3], [4, 5, 6, 7])
    ]
    rounded = [builder.fsub(builder.fadd(half, quantum), quantum) for half in halves]
    return [builder.fadd(total, part) for total, part in zip(sums, rounded, strict=True)]


def _share_of(builder: Any, sums: list[Any]) -> Any:
    """One by the sum of all lanes, in every lane of a vector."""
    both = builder.fadd(*sums)
    total = builder.extract_element(both, LANE(0))
    for lane in range(1, LANES // 2):
        total = builder.fadd(total, builder.extract_element(both, LANE(lane)))
    share = builder.fdiv(ir.Constant(ir.DoubleType(), 1.0), total)
    return broadcast(builder, builder.fptrunc(share, FLOAT))


@compiled
def softmax_in_place(_: Any, scores: Any, count: Any) -> tuple[Any, Callable]:
    """Scores, in units of log 2, to weights that sum to one; `count` is a multiple of 8."""

    def generate(context: Any, builder: Any, _: Any, args: list[Any]) -> Any:
        address, count = args

        def place_of(place: Any) -> Any:
            return pointer(builder, address, place)

        def find(place: Any, most: list[Any]) -> list[Any]:
            return [_larger(builder, load(builder, place_of(place)), most[0])]

        [most] = loop_over(builder, count, LANES, [same(_NO_SCORE)], find)
        most = _largest(builder, most)

        def weigh(place: Any, sums: list[Any]) -> list[Any]:
            score = load(builder, place_of(place))
            weight = _exp2(builder, builder.fsub(score, most))
            store(builder, weight, place_of(place))
            return _add_exactly(builder, sums, weight)

        none = ir.Constant(_DOUBLES, [0.0] * (LANES // 2))
        share = _share_of(builder, loop_over(builder, count, LANES, [none, none], weigh))

        def scale(place: Any, _: list[Any]) -> list[Any]:
            weight = load(builder, place_of(place))
            store(builder, builder.fmul(weight, share), place_of(place))
            return []

        loop_over(builder, count, LANES, [], scale)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate
