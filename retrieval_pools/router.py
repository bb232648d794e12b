"""The router: whether behaviour or attributes decide an entity's group."""

import numpy as np

COLLABORATIVE = "collaborative"
ATTRIBUTE = "attribute"


def route(num_interactions: np.ndarray, min_interactions: int) -> np.ndarray:
    """(n,) int -> (n,) str: collaborative from `min_interactions` training edges on.

    An entity without any edge has no embedding and is never collaborative.
    """
    return np.where(num_interactions >= max(1, min_interactions), COLLABORATIVE, ATTRIBUTE)
