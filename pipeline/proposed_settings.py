"""Settings that depend on what a catalog is like, for `laser init` to propose."""

from dataclasses import dataclass

import numpy as np

_SMALL = 20_000  # interactions; below, a CTR model of the usual size learns its rows by heart
_STEPS = 101  # of a rating that are tried
_STEP = 64  # prompts.max_tokens is a multiple
_LEAST_TOKENS = 512
_SPARE = 1.15

MAX_NEW_TOKENS, DRAFT_NODES, BATCH_ROWS, HISTORY_LIMIT = 96, 32, 16, 10


@dataclass(frozen=True)
class Like:
    """From which rating on an interaction is a like, and how many then are."""

    rating: float
    share: float


def propose_like(ratings: np.ndarray) -> Like:
    """The rating that parts ratings, (rows,) of at least two kinds, nearest to halves."""
    values = np.unique(ratings)
    if len(values) > _STEPS:
        values = np.unique(np.quantile(ratings, np.linspace(0.0, 1.0, _STEPS), method="higher"))
    values = values[1:]
    shares = [(ratings >= value).mean() for value in values]
    best = min(range(len(values)), key=lambda place: (abs(shares[place] - 0.5), -place))
    return Like(float(values[best]), float(shares[best]))


def propose_max_tokens(longest: int) -> int:
    """`prompts.max_tokens` where the longest prompt is of about so many tokens."""
    return max(_LEAST_TOKENS, int(np.ceil(longest * _SPARE / _STEP)) * _STEP)


def propose_ctr(interactions: int) -> dict[str, int]:
    """Sizes of the CTR models where the usual ones are too large."""
    if interactions >= _SMALL:
        return {}
    return {"embedding_dim": 16, "adaptor_dim": 16, "batch_size": 256}
