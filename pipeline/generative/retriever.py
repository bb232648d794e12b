"""Retrievers that score all items for a user at once, also items nobody has liked yet (SpecGR).

Both compare a vector of the history, made from hidden states that the recommender computes anyway,
with vectors of items that are computed once and kept. The content tower makes an item's from its
text, the encoder tower (SpecGR++) from its semantic ID, by the recommender itself.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import normalize

from pipeline.errors import DataError
from pipeline.generative.event_log import as_histories
from pipeline.generative.recommender import Recommender
from pipeline.generative.recommender_training import causal
from pipeline.generative.session import Histories, Session

_SHAPE, _WEIGHTS = "tower.json", "tower.safetensors"
_ENCODED_AT_ONCE = 1024  # items


class ContentTower(nn.Module):
    """A history by the recommender's last hidden state, an item by its content vector."""

    centre: torch.Tensor  # (content_width,)

    def __init__(self, width: int, content_width: int, dim: int) -> None:
        """`width` of hidden states."""
        super().__init__()
        self.shape = {"width": width, "content_width": content_width, "dim": dim}
        self.register_buffer("centre", torch.zeros(content_width))
        self.user = nn.Linear(width, dim)
        self.item = nn.Sequential(
            nn.LayerNorm(content_width, elementwise_affine=False),
            nn.Linear(content_width, 2 * dim),
            nn.GELU(),
            nn.Linear(2 * dim, dim),
        )

    def users(self, end: torch.Tensor) -> torch.Tensor:
        """Unit vectors (..., dim) of hidden states at the ends of histories (..., width)."""
        return normalize(self.user(end.float()), dim=-1)

    def items(self, content: torch.Tensor) -> torch.Tensor:
        """Unit vectors (items, dim) of content vectors (items, content_width)."""
        return normalize(self.item(normalize(content, dim=-1) - self.centre), dim=-1)

    @torch.no_grad()
    def all_items(self, content: torch.Tensor) -> torch.Tensor:
        """As `items`, of a whole catalog; zero of who has no content."""
        return self.items(content) * content.any(1)[:, None]

    @torch.no_grad()
    def centre_on(self, content: torch.Tensor) -> None:
        """Texts of one kind are all alike; take off what all of `content` have in common."""
        self.centre.copy_(normalize(content, dim=-1).mean(0))

    def of_session(self, session: Session) -> torch.Tensor:
        """Unit vectors of the users at work: (users, dim)."""
        return self.users(session.end)


class EncoderTower(nn.Module):
    """Histories and items alike by the mean of the recommender's hidden states."""

    def __init__(self, width: int, dim: int) -> None:
        """`width` of hidden states."""
        super().__init__()
        self.shape = {"width": width, "dim": dim}
        self.projection = nn.Linear(width, dim)

    def vectors(self, mean: torch.Tensor) -> torch.Tensor:
        """Unit vectors (..., dim) of mean hidden states (..., width)."""
        return normalize(self.projection(mean.float()), dim=-1)

    def items(self, model: Recommender, codes: np.ndarray) -> torch.Tensor:
        """Unit vectors (items, dim) of semantic IDs (items, levels): `bos` and the codes."""
        rows = np.arange(len(codes))[:, None]
        histories = as_histories(rows, codes, model.num_codes, model.device)
        return self.vectors(pooled(model(histories.tokens, *causal(histories)), histories))

    @torch.no_grad()
    def all_items(self, model: Recommender, codes: np.ndarray) -> torch.Tensor:
        """As `items`, of a whole catalog."""
        starts = range(0, len(codes), _ENCODED_AT_ONCE)
        return torch.cat(
            [self.items(model, codes[start : start + _ENCODED_AT_ONCE]) for start in starts]
        )

    def of_session(self, session: Session) -> torch.Tensor:
        """Unit vectors of the users at work: (users, dim)."""
        return self.vectors(session.mean)


def pooled(hidden: torch.Tensor, histories: Histories) -> torch.Tensor:
    """Mean over the tokens of each history, padding left out: (rows, n, width) -> (rows, width)."""
    steps = torch.arange(hidden.shape[1], device=hidden.device)
    past = hidden.masked_fill((steps >= histories.lengths[:, None])[..., None], 0)
    return past.sum(1) / histories.lengths[:, None]


@dataclass(frozen=True)
class Retriever:
    """A tower, and the vectors of all items."""

    tower: ContentTower | EncoderTower
    vectors: torch.Tensor  # (items, dim), of length 1; zero where nothing is known of an item

    def scores(self, session: Session) -> torch.Tensor:
        """Cosines of the users at work and all items, -inf for unknown ones: (users, items).

        The session is open.
        """
        cosines = self.tower.of_session(session) @ self.vectors.T
        return cosines.masked_fill(~self.vectors.any(1), -torch.inf)

    def save(self, folder: Path) -> None:
        """Write shape, weights and vectors; no pickle."""
        folder.mkdir(parents=True, exist_ok=True)
        name = "content" if isinstance(self.tower, ContentTower) else "encoder"
        (folder / _SHAPE).write_text(json.dumps({"tower": name, **self.tower.shape}))
        weights = {f"tower.{key}": value for key, value in self.tower.state_dict().items()}
        save_file({**weights, "vectors": self.vectors.contiguous()}, folder / _WEIGHTS)


def load_retriever(folder: Path, device: torch.device | str = "cpu") -> Retriever:
    """Read what `Retriever.save` wrote.

    Raises:
        DataError: something is missing or damaged.
    """
    try:
        shape = json.loads((folder / _SHAPE).read_text())
        make = {"content": ContentTower, "encoder": EncoderTower}[shape.pop("tower")]
        tensors = load_file(folder / _WEIGHTS, str(device))
        vectors = tensors.pop("vectors")
        tower = make(**shape).to(device)
        tower.load_state_dict({key.removeprefix("tower."): own for key, own in tensors.items()})
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise DataError(
            f"{folder} holds no usable retriever ({error}); move it away and run again"
        ) from error
    return Retriever(tower.eval(), vectors)
