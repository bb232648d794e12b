"""Which semantic IDs a model was trained on, told by a hash."""

import hashlib

import numpy as np
import pyarrow as pa

CODES_HASH = "codes_hash"  # its name among the facts of a model


def codes_hash(item_ids: pa.Array, codes: np.ndarray) -> str:
    """A hash of all items and their codes (items, levels), in their order."""
    digest = hashlib.sha256(f"{codes.shape}".encode())
    digest.update("\0".join(item_ids.to_pylist()).encode())
    digest.update(np.ascontiguousarray(codes, np.int32).tobytes())
    return digest.hexdigest()[:16]
