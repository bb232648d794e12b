"""KNOWLEDGE -> FEATURES: the text of every entity as one vector; one row in, one row out.

Who has no usable text gets a mean of others' vectors afterwards, from `features.fallback`.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.frameworks.framework import Read, Reading, whole_text
from pipeline.schemas import FEATURES, KINDS, PROVENANCE, with_vector_width

_READ_ROWS = 16_384  # whose texts are in memory twice


class Encoder(Protocol):
    """What turns texts into vectors."""

    @property
    def dim(self) -> int:
        """Width of a vector."""
        ...

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """One vector per text, in order: (texts, dim) float32."""
        ...


def usable_text(knowledge: pa.Table) -> pa.ChunkedArray:
    """The text of each row, "" where the row failed or its text is blank: (rows,) string."""
    is_usable = pc.and_(
        pc.equal(knowledge["error"], ""),
        pc.not_equal(pc.utf8_trim_whitespace(knowledge["text"]), ""),
    )
    return pc.if_else(is_usable, knowledge["text"], "")


def readings(knowledge: pa.Table, read: Read) -> list[Reading]:
    """What of each row's answer is encoded, "" where it has no usable text."""
    rows = zip(knowledge["kind"].to_pylist(), usable_text(knowledge).to_pylist(), strict=True)
    return [read(kind, text) if text else Reading("", False) for kind, text in rows]


def count_malformed(knowledge: pa.Table, read: Read) -> dict[str, int]:
    """Answers of each kind that are not what was asked for."""
    counts: dict[str, int] = dict.fromkeys(KINDS, 0)
    for start in range(0, knowledge.num_rows, _READ_ROWS):
        rows = knowledge.slice(start, _READ_ROWS)
        for kind, reading in zip(rows["kind"].to_pylist(), readings(rows, read), strict=True):
            counts[kind] += reading.is_malformed
    return counts


def build_features(knowledge: pa.Table, encoder: Encoder, read: Read = whole_text) -> pa.Table:
    """FEATURES of `knowledge`, row by row: `own`, or `none` where there is no usable text.

    Of KNOWLEDGE only kind, entity_id, text, error and PROVENANCE are read.
    """
    texts = [reading.text for reading in readings(knowledge, read)]
    has_text = np.array([bool(text) for text in texts], bool)
    vectors = np.zeros((len(texts), encoder.dim), np.float32)
    vectors[has_text] = encoder.encode([text for text in texts if text])
    seen = {
        name: pc.if_else(pa.array(has_text), knowledge[name], "" if name == "prompt_hash" else 0)
        for name in PROVENANCE
    }
    return feature_rows(knowledge, np.where(has_text, "own", "none"), seen, vectors)


def feature_rows(
    entities: pa.Table, source: np.ndarray, seen: Mapping[str, Any], vectors: np.ndarray
) -> pa.Table:
    """FEATURES of `entities`, (kind, entity_id); `seen` has a column for each of PROVENANCE."""
    width = vectors.shape[1]
    columns = {
        "kind": entities["kind"],
        "entity_id": entities["entity_id"],
        "source": pa.array(source.tolist(), pa.string()),
        **seen,
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), width),
    }
    return pa.table(columns).cast(with_vector_width(FEATURES, width))
