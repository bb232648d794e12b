"""How a prompt says a rating: in stars, of how many if they may be more than five."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

_USUAL = 5  # stars that need no explanation
_SCALES = (10, 20, 50, 100)  # those in use, so that one more rating changes no prompt


@dataclass(frozen=True)
class RatingWords:
    """What ratings of a catalog are said in."""

    scale: int | None = None  # None: five, or unknown
    are_flags: bool = False  # 1 liked, 0 not; without ratings all are 1

    @staticmethod
    def of(ratings: pa.ChunkedArray) -> "RatingWords":
        """By all ratings of the past."""
        most = pc.max(ratings).as_py() or 0.0
        if most > _USUAL:
            return RatingWords(next((scale for scale in _SCALES if most <= scale), None))
        are_flags = most == 1 and set(pc.unique(ratings).to_pylist()) <= {0.0, 1.0}
        return RatingWords(None, are_flags)

    def __call__(self, rating: float) -> str:
        """One rating in words."""
        if self.are_flags:
            return "liked" if rating else "not liked"
        of = f" of {self.scale}" if self.scale else ""
        return f"{rating:g}{of} star" if rating == 1 and not of else f"{rating:g}{of} stars"
