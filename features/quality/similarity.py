"""How near texts are to those that plain decoding writes of the same rows, and of other rows.

Without the second a similarity says nothing: any two texts about films are alike.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from features.build import usable_text
from features.measures import ratio


def compare(
    texts: pa.Table, plain: pa.Table, vectors: pa.Table, plain_vectors: pa.Table, seed: int
) -> dict[str, Any]:
    """Means over rows of one kind that have a text in both runs, and were asked the same.

    Args:
        texts: KNOWLEDGE.
        plain: KNOWLEDGE of the same entities in the same order, decoded plainly.
        vectors: FEATURES of `texts`, row by row.
        plain_vectors: FEATURES of `plain`, row by row.
        seed: decides which other row each one is held against.
    """
    rng = np.random.default_rng(seed)
    both = pc.and_(pc.not_equal(usable_text(texts), ""), pc.not_equal(usable_text(plain), ""))
    asked = pc.equal(texts["prompt_hash"], plain["prompt_hash"])
    rows = np.flatnonzero(pc.and_(both, asked).to_numpy())
    ours, theirs = texts.take(pa.array(rows)), plain.take(pa.array(rows))
    edits = edit_similarity(ours["token_ids"], theirs["token_ids"])
    to_others = edit_similarity(*_with_others(ours["token_ids"], theirs["token_ids"], rng))
    is_own = pc.and_(pc.equal(vectors["source"], "own"), pc.equal(plain_vectors["source"], "own"))
    placed = rows[is_own.to_numpy()[rows]]
    mine, its = (
        _array(table["vector"].take(pa.array(placed))) for table in (vectors, plain_vectors)
    )
    return {
        "rows": len(rows),
        "other_prompt": int(pc.sum(pc.and_(both, pc.invert(asked))).as_py() or 0),
        "never_relaxed": _mean(pc.equal(ours["relaxed_tokens"], 0).to_numpy()),
        "identical": _mean(pc.equal(ours["text"], theirs["text"]).to_numpy()),
        "edit_similarity": _mean(edits),
        "edit_similarity_to_another": _mean(to_others),
        "vectors": len(placed),
        "cosine": _mean(_cosines(mine, its)),
        "cosine_to_another": _mean(_cosines(*_with_others(mine, its, rng))),
    }


def another(count: int, rng: np.random.Generator) -> np.ndarray:
    """For each of `count` things a random other one, each once: (count,) int64; one has none."""
    if count < 2:
        return np.zeros(0, np.int64)
    circle = rng.permutation(count)
    found = np.empty(count, np.int64)
    found[circle] = np.roll(circle, 1)
    return found


def edit_similarity(ours: pa.ChunkedArray, theirs: pa.ChunkedArray) -> np.ndarray:
    """1 - edits / longer length, of two lists of tokens in each row: (rows,) float64."""
    starts, lengths, tokens = _ragged(ours)
    other_starts, other_lengths, other_tokens = _ragged(theirs)
    edits = np.zeros(len(lengths), np.int64)
    _count_edits(tokens, starts, lengths, other_tokens, other_starts, other_lengths, edits)
    return 1 - edits / np.maximum(np.maximum(lengths, other_lengths), 1)


@njit(cache=True)
def _count_edits(
    tokens: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    other_tokens: np.ndarray,
    other_starts: np.ndarray,
    other_lengths: np.ndarray,
    edits: np.ndarray,
) -> None:
    """Levenshtein distance of each pair, with one row of its table in memory."""
    for pair in range(len(edits)):
        one = tokens[starts[pair] : starts[pair] + lengths[pair]]
        other = other_tokens[other_starts[pair] : other_starts[pair] + other_lengths[pair]]
        line = np.arange(len(other) + 1)
        for at in range(len(one)):
            before = line[0]  # of the line above, one to the left
            line[0] = at + 1
            for to in range(len(other)):
                changed = before + (one[at] != other[to])
                before = line[to + 1]
                line[to + 1] = min(changed, before + 1, line[to] + 1)
        edits[pair] = line[len(other)]


def _ragged(lists: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts, lengths and values; all are copies, since Arrow's are read-only."""
    lengths = pc.list_value_length(lists).to_numpy().astype(np.int64)
    return np.cumsum(lengths) - lengths, lengths, pc.list_flatten(lists).to_numpy().astype(np.int32)


def _with_others(ours: Any, theirs: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """`ours` beside `theirs` of another row; nothing at all where there is one row only."""
    order = another(len(ours), rng)
    if isinstance(ours, np.ndarray):
        return ours[: len(order)], theirs[order]
    return ours.slice(0, len(order)), theirs.take(pa.array(order))


def _array(vectors: pa.ChunkedArray) -> np.ndarray:
    """(rows, width) float64."""
    return np.array(pc.list_flatten(vectors), np.float64).reshape(
        len(vectors), -1 if len(vectors) else 0
    )


def _cosines(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return (ours * theirs).sum(axis=1) / np.maximum(lengths, 1e-12)


def _mean(values: np.ndarray) -> float | None:
    return ratio(float(values.sum()), len(values))
