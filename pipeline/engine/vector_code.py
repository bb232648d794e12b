"""LLVM instructions for vectors of 8 floats, for the kernels that a compiler would not find itself.

Emitted into functions that numba compiles. Arguments of kernels are integers: addresses, counts,
strides in floats.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8  # floats of a vector
LINE = 64  # bytes of a cache line
_SECOND_LEVEL = 2  # the cache to read ahead into

# Untyped, because a call has not the signature of the function that emits its code.
compiled: Any = intrinsic

INT, LANE, FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
VECTOR = ir.VectorType(FLOAT, LANES)


def pointer(builder: Any, address: Any, offset: Any) -> Any:
    """To the float `offset` floats behind an address."""
    return builder.gep(builder.inttoptr(address, FLOAT.as_pointer()), [offset])


def load(builder: Any, pointer: Any) -> Any:
    """Emit a vector, of floats anywhere."""
    return builder.load(builder.bitcast(pointer, VECTOR.as_pointer()), align=4)


def store(builder: Any, value: Any, pointer: Any) -> None:
    """Emit the storing of a vector anywhere."""
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=4)


def shuffle(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    """Emit a vector of chosen lanes; those of `b` count on from those of `a`."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(LANE, len(lanes)), lanes))


def broadcast(builder: Any, scalar: Any) -> Any:
    """Emit a vector with the scalar in every lane."""
    empty = ir.Constant(VECTOR, ir.Undefined)
    return shuffle(builder, builder.insert_element(empty, scalar, LANE(0)), empty, [0] * LANES)


def same(value: float) -> Any:
    """A constant vector."""
    return ir.Constant(VECTOR, [value] * LANES)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Emit a * b + c, rounded once."""
    signature = ir.FunctionType(VECTOR, [VECTOR] * 3)
    name = f"llvm.fma.v{LANES}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), [a, b, c])


def prefetch(builder: Any, address: Any) -> None:
    """Emit a request for a line of memory, into the second-level cache."""
    line = builder.inttoptr(address, ir.IntType(8).as_pointer())
    signature = ir.FunctionType(ir.VoidType(), [line.type, *[LANE] * 3])
    function = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0i8")
    builder.call(function, [line, LANE(0), LANE(_SECOND_LEVEL), LANE(1)])


def loop_over(
    builder: Any, count: Any, step: int, values: list[Any], turn: Callable[..., list[Any]]
) -> list[Any]:
    """Emit `for place in range(0, count, step): values = turn(place, values)`; `count` > 0."""
    before = builder.block
    loop, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    place, carried = builder.phi(INT), [builder.phi(value.type) for value in values]
    results = turn(place, carried)
    following = builder.add(place, INT(step))
    for phi, first, later in zip(
        [place, *carried], [INT(0), *values], [following, *results], strict=True
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    builder.position_at_end(after)
    return results


def name_after(function: Any, *modules: ModuleType) -> None:
    """Let a cached function be compiled anew when a module that emits its code has changed.

    numba's cache watches the function's own file only, but looks at names too.
    """
    texts = [Path(module.__file__ or "").read_bytes() for module in modules]
    function.__qualname__ += hashlib.sha256(b"".join(texts)).hexdigest()[:12]
