"""Whether codes are any good: used evenly, seldom shared, true to the items, open to cold ones."""

from typing import Any

import numpy as np

from pipeline.generative.code_tree import CodeTree, lexicographic_order
from pipeline.generative.collisions import group_equal
from pipeline.generative.item_vectors import ItemVectors
from pipeline.generative.semantic_ids import ItemContents, ItemTokenizer

_SAMPLE = 100_000  # items that errors are averaged over, and that neighbours are looked for among
_ASKED = 1000  # items whose neighbours are looked for
_NEIGHBOURS = 10


def codebook_health(
    items: ItemContents,
    tokenizer: ItemTokenizer,
    vectors: ItemVectors,
    codes: np.ndarray,
    seed: int,
    fitted: np.ndarray | None = None,
) -> dict[str, Any]:
    """Figures of a manifest, about the nearest `codes` (n, levels) before any policy.

    Usage and error are over the items fitted on, `items.fitted` unless rows are given, all else
    over all items.
    """
    fitted, warm = np.flatnonzero(items.fitted) if fitted is None else fitted, items.is_warm
    size = tokenizer.codebook_size
    usage = [code_usage(codes[fitted, level], size) for level in range(codes.shape[1])]
    errors = reconstruction_errors(tokenizer, vectors, codes, sampled(fitted, _SAMPLE, seed))
    collides, sizes = collisions(codes)
    return {
        "items": len(items),
        "warm": int(warm.sum()),
        "fitted": len(fitted),
        "without_collaborative": int((~items.has_collaborative).sum()),
        "without_own_text": int((~items.has_own_content).sum()),
        "codebook_size": size,
        "levels": [{**own, "error": error} for own, error in zip(usage, errors, strict=True)],
        "colliding": int(collides.sum()),
        "collision_rate": _share(collides),
        "largest_bucket": int(sizes.max(initial=0)),
        "cold_prefix_seen": seen_prefixes(codes, warm),
        "neighbours": neighbour_agreement(items.content, codes, seed),
    }


def code_usage(codes: np.ndarray, size: int) -> dict[str, float]:
    """How many codes of a level are used, how many are dead, and how many it is as good as."""
    counts = np.bincount(codes, minlength=size)
    shares = counts[counts > 0] / max(len(codes), 1)
    used = len(shares)
    perplexity = float(np.exp(-(shares * np.log(shares)).sum()))
    return {"used": used, "dead": size - used, "perplexity": round(perplexity, 2)}


def collisions(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each item has codes that another has too, and the sizes of buckets."""
    group, sizes = group_equal(codes)
    return sizes[group] > 1, sizes


def reconstruction_errors(
    tokenizer: ItemTokenizer, vectors: ItemVectors, codes: np.ndarray, rows: np.ndarray
) -> list[float]:
    """Share of variance that the first code leaves over, the first two, and so on.

    Of what is known of the items only; 0 where there are none.
    """
    if not len(rows):
        return [0.0] * codes.shape[1]
    values, own = vectors.values[rows], codes[rows]
    known = np.repeat(vectors.known[rows], vectors.widths, axis=1)
    total = np.square(values - values.mean(axis=0)).sum(dtype=np.float64)
    errors = []
    for level in range(1, codes.shape[1] + 1):
        left = np.square(values - tokenizer.quantizer.reconstruct(own[:, :level])) * known
        errors.append(round(float(left.sum(dtype=np.float64) / max(total, 1e-12)), 4))
    return errors


def seen_prefixes(codes: np.ndarray, is_warm: np.ndarray) -> list[float]:
    """Share of cold items whose first code occurs among warm items, first two, and so on."""
    warm = codes[is_warm]
    depth = CodeTree(warm[lexicographic_order(warm)]).walk(codes[~is_warm])[1]
    return [_share(depth >= length) for length in range(1, codes.shape[1] + 1)]


def neighbour_agreement(content: np.ndarray, codes: np.ndarray, seed: int) -> dict[str, Any]:
    """Share of an item's ten nearest by cosine of content that share its prefix, by its length.

    `chance` is the share among all other items. Over a sample of a large catalog.
    """
    among = sampled(np.flatnonzero(content.any(axis=1)), _SAMPLE, seed)
    asked = sampled(np.arange(len(among)), _ASKED, seed)
    levels = codes.shape[1]
    if len(among) <= _NEIGHBOURS:
        return {"agreement": [0.0] * levels, "chance": [0.0] * levels}
    unit = content[among] / np.linalg.norm(content[among], axis=1, keepdims=True)
    own = codes[among]
    near, chance = np.zeros(levels), np.zeros(levels)
    for place in asked:
        similarity = unit @ unit[place]
        similarity[place] = -np.inf
        nearest = np.argpartition(-similarity, _NEIGHBOURS)[:_NEIGHBOURS]
        is_shared = np.logical_and.accumulate(own == own[place], axis=1)
        near += is_shared[nearest].mean(axis=0)
        chance += (is_shared.sum(axis=0) - 1) / (len(among) - 1)
    return {
        "agreement": [round(float(one), 4) for one in near / len(asked)],
        "chance": [round(float(one), 4) for one in chance / len(asked)],
    }


def sampled(rows: np.ndarray, most: int, seed: int) -> np.ndarray:
    """At most `most` of `rows`, in their order."""
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def _share(flags: np.ndarray) -> float:
    return round(float(flags.mean()), 4) if len(flags) else 0.0
