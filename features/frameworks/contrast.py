"""InfoNCE inside a batch, and what the losses that use it have in common."""

import math

from torch import Tensor, nn
from torch.nn import functional


def info_nce(
    anchors: Tensor, candidates: Tensor, temperature: float, vector_of: Tensor | None = None
) -> Tensor:
    """Row i of `candidates` belongs to row i of `anchors`; all other rows are negatives.

        mean over i of logsumexp over j of (cos(a_i, c_j) / T) - cos(a_i, c_i) / T

    By logsumexp, since exponentials of 1 / T leave half precision (van den Oord et al., arXiv
    1807.03748, equation 4, with the cosine over T as score).

    Args:
        anchors: (rows, dim), none of them zero.
        candidates: (rows, dim), none of them zero.
        temperature: T.
        vector_of: (rows,) int64; rows of one number have one vector, and are nobody's negatives
            among themselves: nothing could tell them apart. All differ without it.
    """
    anchors, candidates = (functional.normalize(rows, dim=1) for rows in (anchors, candidates))
    scores = anchors @ candidates.T / temperature
    own = scores.diagonal()
    if vector_of is not None:
        is_twin = (vector_of.unsqueeze(1) == vector_of).fill_diagonal_(False)
        scores = scores.masked_fill(is_twin, -math.inf)
    return (scores.logsumexp(dim=1) - own).mean()


class Contrast(nn.Module):
    """Base of losses between adapted text and a CTR model's own vectors.

    `bridge` leads from the one's length to the other's; of equal lengths it does nothing.
    """

    def __init__(self, dim: int, embedding_dim: int) -> None:
        super().__init__()
        self.bridge = nn.ModuleDict(
            {
                kind: nn.Identity() if dim == embedding_dim else nn.Linear(dim, embedding_dim)
                for kind in ("user", "item")
            }
        )
