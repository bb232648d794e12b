"""What compiled code shares: records, bundles of arrays, their numba types, and the compiler.

A kernel is compiled once, for one signature, and kept on disk. Arrays that kernels only read are
read-only in their signatures, and must be so where they come from Python: numba has two types.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import from_dtype, njit, types


def _fields(kind: str, names: str) -> list[tuple[str, str]]:
    return [(name, kind) for name in names.split()]


# A next token, the suffixes that go on with it, and where the first of them starts.
CHILD = np.dtype(_fields("i4", "token lo hi place"), align=True)

# Where a row's texts stand among those of all rows, and in each of them the latest place of the
# row's last token that has another token behind it; its group's slice; how deep it may draft.
_OWN = "own_first output_first own_end own_latest"
_PREVIOUS = "previous_first previous_end previous_latest"
ROW = np.dtype(_fields("i8", f"{_OWN} {_PREVIOUS} group_lo group_hi max_depth"), align=True)

# A node or a candidate for one. `state` is the first of its states. While its siblings are being
# collected `survival` is P(accepted | parent accepted).
_NODE = _fields("i4", "token parent depth source bucket state")
NODE = np.dtype([*_NODE, ("survival", "f8")], align=True)

# Suffixes [lo, hi) of `source` share `base` tokens and a node's path, of which `match` tokens and
# the path agree with the row; `place` tells equal states, `next` is the node's next state.
STATE = np.dtype(_fields("i4", "source base match lo hi place next"), align=True)


class Index(NamedTuple):
    """A text and some of its suffixes, sorted."""

    text: np.ndarray  # int32
    suffixes: np.ndarray  # int32


class Sources(NamedTuple):
    """Where drafts come from."""

    local: Index  # own and previous texts of all rows; suffixes made for one row at a time
    earlier: np.ndarray  # int32, of every place in them: where its token stood before, or -1
    group: Index  # one slice of suffixes per group
    everything: Index
    group_marks: np.ndarray  # int64, the suffixes of relaxed text, see `marks`
    global_marks: np.ndarray


class Cells(NamedTuple):
    """How evidence becomes a bucket, and a bucket a probability (see `calibration`).

    A bucket is the sum of one offset per feature; the last entry serves all larger values.
    """

    source: np.ndarray  # (sources,) int32
    match: np.ndarray  # (lengths,) int32, by tokens matched
    occurrences: np.ndarray  # (halves,) int32, of the parent
    share: np.ndarray  # (101,) int32, by the child's percentage of them
    probability: np.ndarray  # (buckets,) float64


class Limits(NamedTuple):
    """Bounds of matching and drafting."""

    order: int  # tokens that pools are sorted by, 2 or more
    match: int  # most tokens matched
    depth: int  # most levels of a tree
    floor: float  # least survival drafted, above 0


class Trees(NamedTuple):
    """The trees of all rows, one after the other, each in the order of its nodes' survival."""

    token_ids: np.ndarray  # (nodes,) int32
    parents: np.ndarray  # (nodes,) int32, within the row's tree
    survival: np.ndarray  # (nodes,) float32
    sources: np.ndarray  # (nodes,) int8
    buckets: np.ndarray  # (nodes,) int32
    ends: np.ndarray  # (rows,) int64


class Growth(NamedTuple):
    """A tree in the making; `used` says how much of the other arrays is."""

    nodes: Any  # NODE, candidates included; the first is the root
    states: Any  # STATE
    children: Any  # CHILD
    queue: np.ndarray  # int32, candidates, the most promising last
    local: np.ndarray  # int32, the local index's suffixes, to be written
    places: np.ndarray  # int32, candidates for these
    lengths: np.ndarray  # int32, and how many tokens lead up to them as they do to the row's end
    used: np.ndarray  # int64


def read_only(array: np.ndarray) -> np.ndarray:
    """A view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


def array(dtype: Any, readonly: bool = False) -> types.Array:
    """The numba type of a contiguous vector."""
    return types.Array(from_dtype(np.dtype(dtype)), 1, "C", readonly=readonly)


flag, integer, real, nothing, row = (
    types.boolean,
    types.int64,
    types.float64,
    types.none,
    from_dtype(ROW),
)
ids = array(np.int32, readonly=True)
index = types.NamedUniTuple(ids, 2, Index)
marks = array(np.int64, readonly=True)
sources = types.NamedTuple((index, ids, *[index] * 2, *[marks] * 2), Sources)
cells = types.NamedTuple((*[ids] * 4, array(np.float64, readonly=True)), Cells)
limits = types.NamedTuple((*[integer] * 3, real), Limits)
growth = types.NamedTuple(
    (*map(array, (NODE, STATE, CHILD)), *[array(np.int32)] * 4, array(np.int64)), Growth
)
_TREES = (np.int32, np.int32, np.float32, np.int8, np.int32, np.int64)
trees = types.NamedTuple(tuple(map(array, _TREES)), Trees)


# Every file of this package that compiled code is made of.
COMPILED_FILES = (
    "compiled.py",
    "marks.py",
    "suffix_array.py",
    "trie.py",
    "row_texts.py",
    "matching.py",
    "expansion.py",
    "depth_first.py",
)
_DIGEST = hashlib.sha256(
    b"".join((Path(__file__).parent / name).read_bytes() for name in COMPILED_FILES)
).hexdigest()[:12]


def kernel(
    signature: Any, owns_arrays: bool = False, inline: bool = False
) -> Callable[[Callable], Any]:
    """Compile a function for one signature, or load it from numba's cache.

    That cache watches the file of the outermost kernel only; the digest in the name makes it see
    a change of the others. Counting references to arrays that a kernel is only handed took half
    of its time, so none are counted unless it `owns_arrays`. `inline` is for small functions in
    inner loops: handing over a bundle of arrays costs more than they do.
    """

    def compile_one(function: Callable) -> Any:
        function.__qualname__ += f"_{_DIGEST}"
        options: dict[str, Any] = {} if owns_arrays else {"_nrt": False}
        options["inline"] = "always" if inline else "never"
        return njit(signature, cache=True, nogil=True, error_model="numpy", **options)(function)

    return compile_one
