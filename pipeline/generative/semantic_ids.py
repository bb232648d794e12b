"""Semantic IDs: items as short sequences of codes, like items with a common beginning.

Codebooks are fitted on warm items whose content and collaborative vectors are both known. Every
other item is encoded by what is known of it. An item is warm if it has an interaction of the splits
up to `recommender.until`: these are what a recommender is trained on, and none of them is later
than the rows that later splits keep (with `per_user_prefix`, of the same user).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from pipeline.errors import ConfigError, DataError
from pipeline.generative.item_vectors import BlockScaling, ItemVectors, fit_scaling
from pipeline.generative.rq_kmeans import RqKmeans, fit_rq_kmeans
from pipeline.generative_config import SemanticIdSettings

_SCALING = ("mean", "scale", "widths")


class Quantizer(Protocol):
    """What turns standardised vectors into codes."""

    def encode(self, vectors: ItemVectors) -> np.ndarray:
        """Nearest codes: (n, levels) int32."""
        ...

    def last_level_choices(self, vectors: ItemVectors) -> np.ndarray:
        """All codes of the last level, the nearest first: (n, k)."""
        ...

    def reconstruct(self, codes: np.ndarray) -> np.ndarray:
        """Standardised vectors that `codes` (n, some levels) stand for: (n, width)."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """All that is needed to encode, by name; `codebooks` is (levels, k, any)."""
        ...


@dataclass(frozen=True)
class ItemContents:
    """What is known of items, in the order of the catalog."""

    content: np.ndarray  # (n, width) float32
    collaborative: np.ndarray  # (n, width) float32
    has_content: np.ndarray  # (n,) bool, its own or the mean of others
    has_own_content: np.ndarray  # (n,) bool
    has_collaborative: np.ndarray  # (n,) bool; a cold item's zeros are no vector
    is_warm: np.ndarray  # (n,) bool

    @property
    def blocks(self) -> tuple[np.ndarray, np.ndarray]:
        """Content and collaborative vectors."""
        return self.content, self.collaborative

    @property
    def known(self) -> np.ndarray:
        """Which blocks are known: (n, 2) bool."""
        return np.column_stack([self.has_content, self.has_collaborative])

    @property
    def fitted(self) -> np.ndarray:
        """Items that codebooks are fitted on: (n,) bool."""
        return self.is_warm & self.has_own_content & self.has_collaborative

    def __len__(self) -> int:
        return len(self.is_warm)


@dataclass(frozen=True)
class ItemTokenizer:
    """Scaling and codebooks: encodes any item, also one that comes later."""

    scaling: BlockScaling
    quantizer: Quantizer

    @property
    def codebook_size(self) -> int:
        """Codes of each level."""
        return self.quantizer.arrays()["codebooks"].shape[1]

    @property
    def levels(self) -> int:
        """Codes of an item, before any collision policy."""
        return len(self.quantizer.arrays()["codebooks"])

    def vectors(self, items: ItemContents) -> ItemVectors:
        """Standardised vectors, zero where nothing is known."""
        return self.scaling.apply(items.blocks, items.known)

    def save(self, path: Path) -> None:
        """Write everything to one .npz file, without pickle."""
        scaling = {name: np.asarray(getattr(self.scaling, name)) for name in _SCALING}
        name = "rq_kmeans" if isinstance(self.quantizer, RqKmeans) else "rq_vae"
        with path.open("wb") as file:
            np.savez(
                file,
                allow_pickle=False,
                quantizer=np.array(name),
                **scaling,
                **{f"{name}/{key}": value for key, value in self.quantizer.arrays().items()},
            )


def fit_tokenizer(items: ItemContents, settings: SemanticIdSettings, seed: int) -> ItemTokenizer:
    """Fit scaling and codebooks on the warm items of which everything is known.

    Raises:
        ConfigError: there are fewer of them than codes.
    """
    rows = np.flatnonzero(items.fitted)
    size = settings.codebook_size
    size = max(2, round(len(rows) ** 0.5)) if size == "auto" else size
    if len(rows) < size:
        raise ConfigError(
            f"semantic_ids.codebook_size is {size}, but only {len(rows)} of {len(items)} items can "
            "be fitted on (warm, with a text of their own and a collaborative vector); lower it, "
            "or set semantic_ids.collaborative_weight to 0 if it is the vectors that lack"
        )
    scaling = fit_scaling(items.blocks, rows, (1.0, settings.collaborative_weight))
    vectors = scaling.apply(tuple(b[rows] for b in items.blocks), items.known[rows])
    if settings.quantizer == "rq_kmeans":
        return ItemTokenizer(scaling, fit_rq_kmeans(vectors, settings.levels, size, seed))
    from pipeline.generative.rq_vae import fit_rq_vae  # torch takes seconds to import

    quantizer = fit_rq_vae(vectors, settings.levels, size, seed, settings.rq_vae)
    return ItemTokenizer(scaling, quantizer)


def without_collaborative(items: ItemContents) -> ItemContents:
    """The same items where collaborative vectors count for nothing: then nobody lacks one."""
    nothing, always = np.zeros_like(items.collaborative), np.ones(len(items), bool)
    own = (items.has_content, items.has_own_content)
    return ItemContents(items.content, nothing, *own, always, items.is_warm)


def load_tokenizer(path: Path) -> ItemTokenizer:
    """Read what `ItemTokenizer.save` wrote.

    Raises:
        DataError: the file is not one of those.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        name = str(arrays["quantizer"])
        mean, scale, widths = (arrays[key] for key in _SCALING)
        own = {key.removeprefix(f"{name}/"): arrays[key] for key in arrays if "/" in key}
        quantizer = RqKmeans.from_arrays(own) if name == "rq_kmeans" else _rq_vae(own)
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(
            f"{path} is damaged ({error}); move {path.parent} away and run again"
        ) from error
    return ItemTokenizer(BlockScaling(mean, scale, tuple(widths.tolist())), quantizer)


def _rq_vae(arrays: dict[str, np.ndarray]) -> Quantizer:
    from pipeline.generative.rq_vae import RqVae  # torch takes seconds to import

    return RqVae.from_arrays(arrays)
