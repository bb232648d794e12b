"""Vector code of the row attention kernel: tiles of scores, their softmax, tiles of values.

Every sum of a tile stays in a register: 3 queries x 4 keys, or x 4 vectors of values, are 12 of the
16 that are assumed. The compiler cannot be trusted to find this by itself, so it is given LLVM
instructions, as in `skinny_gemm`. Arguments are integers: addresses, counts, strides in floats.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8  # floats of a vector; dimensions of a head and scores of a query come in multiples
QUERIES = 3  # of a tile
KEYS = 4
WIDE = 4 * LANES  # dimensions of a tile of values, where as many are left

# Untyped, because a call has not the signature of the function that emits its code.
compiled: Any = intrinsic

_LINE = 64  # bytes of a cache line
_SECOND_LEVEL = 2  # the cache to read ahead into

_INT, _LANE, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_VECTOR, _BITS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_LANE, LANES)

# 2^x on [-0.5, 0.5] by Chebyshev interpolation, off by 3e-9.
_EXP2 = (1.0, 0.6931472, 0.2402265, 0.05550327, 0.009618057, 0.0013400428, 0.00015461445)
_SMALLEST = -126.0  # exponent of a normal number
_ROUNDER = 1.5 * 2.0**23  # adding it leaves the nearest integer in the low bits
_NO_SCORE = -1e30  # less than any score, but not -inf, which would make -inf - -inf


def _pointer(builder: Any, address: Any, offset: Any) -> Any:
    """To the float `offset` floats behind an address."""
    return builder.gep(builder.inttoptr(address, _FLOAT.as_pointer()), [offset])


def _load(builder: Any, pointer: Any) -> Any:
    return builder.load(builder.bitcast(pointer, _VECTOR.as_pointer()), align=4)


def _store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=4)


def _shuffle(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_LANE, len(lanes)), lanes))


def _broadcast(builder: Any, scalar: Any) -> Any:
    empty = ir.Constant(_VECTOR, ir.Undefined)
    return _shuffle(builder, builder.insert_element(empty, scalar, _LANE(0)), empty, [0] * LANES)


def _same(value: float) -> Any:
    return ir.Constant(_VECTOR, [value] * LANES)


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    signature = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    name = f"llvm.fma.v{LANES}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), [a, b, c])


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _loop(
    builder: Any, count: Any, step: int, values: list[Any], turn: Callable[..., list[Any]]
) -> list[Any]:
    """Emit `for place in range(0, count, step): values = turn(place, values)`; `count` > 0."""
    before = builder.block
    loop, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    place, carried = builder.phi(_INT), [builder.phi(value.type) for value in values]
    results = turn(place, carried)
    following = builder.add(place, _INT(step))
    for phi, first, later in zip(
        [place, *carried], [_INT(0), *values], [following, *results], strict=True
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    builder.position_at_end(after)
    return results


def _half_sums(builder: Any, a: Any, b: Any) -> Any:
    """Sums of neighbours: lanes of `a`, of `b`, of `a`, of `b`, two each."""
    even = _shuffle(builder, a, b, [0, 2, 8, 10, 4, 6, 12, 14])
    return builder.fadd(even, _shuffle(builder, a, b, [1, 3, 9, 11, 5, 7, 13, 15]))


@compiled
def score_tile(
    _: Any, queries: Any, dim: Any, a: Any, b: Any, c: Any, d: Any, scores: Any, stride: Any
) -> tuple[Any, Callable]:
    """Products of 3 queries, one behind the other, with the keys at `a` to `d`."""

    def generate(context: Any, builder: Any, _: Any, args: list[Any]) -> Any:
        queries, dim, *keys, scores, stride = args
        starts = [_pointer(builder, queries, builder.mul(dim, _INT(n))) for n in range(QUERIES)]
        sources = [_pointer(builder, key, _INT(0)) for key in keys]

        def turn(place: Any, sums: list[Any]) -> list[Any]:
            key_vectors = [_load(builder, builder.gep(key, [place])) for key in sources]
            vectors = [_load(builder, builder.gep(start, [place])) for start in starts]
            pairs = [(query, key) for query in vectors for key in key_vectors]
            return [_multiply_add(builder, *pair, s) for pair, s in zip(pairs, sums, strict=True)]

        sums = _loop(builder, dim, LANES, [_same(0.0)] * (QUERIES * KEYS), turn)
        for query in range(QUERIES):
            a, b, c, d = sums[query * KEYS : (query + 1) * KEYS]
            ab, cd = _half_sums(builder, a, b), _half_sums(builder, c, d)
            both = _half_sums(builder, ab, cd)
            low, high = (
                _shuffle(builder, both, both, lanes) for lanes in ([0, 1, 2, 3], [4, 5, 6, 7])
            )
            target = _pointer(builder, scores, builder.mul(stride, _INT(query)))
            _store(builder, builder.fadd(low, high), target)
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
            rows = [
                _pointer(builder, weights, builder.mul(stride, _INT(n))) for n in range(QUERIES)
            ]
            outs = [
                _pointer(builder, out, builder.add(builder.mul(dim, _INT(n)), _INT(v * LANES)))
                for n in range(QUERIES)
                for v in range(vectors)
            ]

            def turn(key: Any, sums: list[Any]) -> list[Any]:
                start = _pointer(builder, values, builder.mul(key, step))
                shares = [
                    _broadcast(builder, builder.load(builder.gep(row, [key]))) for row in rows
                ]
                parts = [
                    _load(builder, builder.gep(start, [_INT(v * LANES)])) for v in range(vectors)
                ]
                pairs = [(part, share) for share in shares for part in parts]
                return [
                    _multiply_add(builder, *pair, s) for pair, s in zip(pairs, sums, strict=True)
                ]

            sums = _loop(builder, count, 1, [_load(builder, place) for place in outs], turn)
            for value, place in zip(sums, outs, strict=True):
                _store(builder, value, place)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return mix


mix_wide, mix_narrow = _mix_kernel(WIDE // LANES), _mix_kernel(1)


def _exp2(builder: Any, x: Any) -> Any:
    """2^x for x <= 0; zero below the normal numbers; not-a-number stays."""
    is_tiny = builder.fcmp_ordered("<", x, _same(_SMALLEST))
    x = builder.select(is_tiny, _same(_SMALLEST), x)
    rounded = builder.fadd(x, _same(_ROUNDER))
    part = builder.fsub(x, builder.fsub(rounded, _same(_ROUNDER)))
    power = _same(_EXP2[-1])
    for coefficient in _EXP2[-2::-1]:
        power = _multiply_add(builder, power, part, _same(coefficient))
    whole = builder.shl(builder.bitcast(rounded, _BITS), ir.Constant(_BITS, [23] * LANES))
    power = builder.bitcast(builder.add(builder.bitcast(power, _BITS), whole), _VECTOR)
    return builder.select(is_tiny, _same(0.0), power)


def _reduced(builder: Any, vector: Any, join: Callable[..., Any]) -> Any:
    """All lanes joined, in every lane."""
    for lanes in ([4, 5, 6, 7, 0, 1, 2, 3], [2, 3, 0, 1, 6, 7, 4, 5], [1, 0, 3, 2, 5, 4, 7, 6]):
        vector = join(builder, vector, _shuffle(builder, vector, vector, lanes))
    return vector


@compiled
def softmax(_: Any, scores: Any, count: Any) -> tuple[Any, Callable]:
    """Scores, in units of log 2, to weights that sum to one; `count` is a multiple of 8."""

    def generate(context: Any, builder: Any, _: Any, args: list[Any]) -> Any:
        address, count = args

        def place_of(place: Any) -> Any:
            return _pointer(builder, address, place)

        def find(place: Any, most: list[Any]) -> list[Any]:
            return [_larger(builder, _load(builder, place_of(place)), most[0])]

        [most] = _loop(builder, count, LANES, [_same(_NO_SCORE)], find)
        most = _reduced(builder, most, _larger)

        def weigh(place: Any, total: list[Any]) -> list[Any]:
            score = _load(builder, place_of(place))
            weight = _exp2(builder, builder.fsub(score, most))
            _store(builder, weight, place_of(place))
            return [builder.fadd(total[0], weight)]

        [total] = _loop(builder, count, LANES, [_same(0.0)], weigh)
        total = _reduced(builder, total, lambda builder, a, b: builder.fadd(a, b))
        share = builder.fdiv(_same(1.0), total)

        def scale(place: Any, _: list[Any]) -> list[Any]:
            weight = _load(builder, place_of(place))
            _store(builder, builder.fmul(weight, share), place_of(place))
            return []

        _loop(builder, count, LANES, [], scale)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@compiled
def ask(_: Any, address: Any, count: Any) -> tuple[Any, Callable]:
    """Ask the memory for `count` bytes."""

    def generate(context: Any, builder: Any, _: Any, args: list[Any]) -> Any:
        address, count = args
        pointer = ir.IntType(8).as_pointer()
        signature = ir.FunctionType(ir.VoidType(), [pointer, *[_LANE] * 3])
        prefetch = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0i8")
        how = [_LANE(0), _LANE(_SECOND_LEVEL), _LANE(1)]

        def turn(place: Any, _: list[Any]) -> list[Any]:
            line = builder.inttoptr(builder.add(address, place), pointer)
            builder.call(prefetch, [line, *how])
            return []

        _loop(builder, count, _LINE, [], turn)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@compiled
def take_number(_: Any, counter: Any) -> tuple[Any, Callable]:
    """The integer behind a pointer, which goes up by one: no two threads get the same."""

    def generate(_: Any, builder: Any, __: Any, args: list[Any]) -> Any:
        return builder.atomic_rmw("add", args[0], _INT(1), "monotonic")

    return types.int64(counter), generate


def _pointer_to(kind: Any) -> Any:
    @compiled
    def pointer(_: Any, address: Any) -> tuple[Any, Callable]:
        def generate(context: Any, builder: Any, signature: Any, args: list[Any]) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return pointer


floats_at, integers_at, bytes_at = map(_pointer_to, (types.float32, types.int64, types.uint8))
