"""The arms of the check: one model, one split, one budget, and each time other knowledge.

| arm | the adaptor (of `recommendations`: a small network) gets |
|---|---|
| `base` | nothing: there is no adaptor |
| `zeros` | zero vectors: what the adaptor's own parameters bring |
| `raw_text` | attributes and titles of the catalog, encoded without an LLM |
| `history` | what users rated, as text, encoded without an LLM |
| `knowledge` | what the LLM wrote |
| `plain` | what it writes by plain decoding, from another run |
| `shuffled` | the knowledge of another entity, about as popular: the placebo |
| `recommendations` | where the row's item is in the user's list; see `features.ctr.candidates` |
| `canary` | which texts users will like, test rows included: a leak that the check has to notice |

`base` has no loss of a framework. Nor have those whose vectors say nothing of their owner: where
that loss teaches ids (RLMRec's does), it would draw them toward the texts of others, and the
placebo would do harm.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from features.ctr.candidates import CandidateLists
from features.ctr.data import CtrData
from features.ctr.join import KnowledgeVectors

BASE, ZEROS, KNOWLEDGE, PLAIN, SHUFFLED, CANARY = (
    *("base", "zeros", "knowledge", "plain", "shuffled", "canary"),
)
TEXTS = ("raw_text", "history")  # controls that an encoder has to read
RECOMMENDATIONS = "recommendations"
ARMS = (
    BASE,
    ZEROS,
    *TEXTS,
    RECOMMENDATIONS,
    CANARY,
    PLAIN,
    KNOWLEDGE,
    SHUFFLED,
)  # in the order of tables

_PARTS = 10  # deciles of popularity
_LEAST_PART = 10  # entities; among fewer too many would keep their own vector
_LEAST_DEVIATION = 1e-6


Told = KnowledgeVectors | CandidateLists


@dataclass(frozen=True)
class Arm:
    """What a model is told of entities, or of pairs of them, and how."""

    told: Told | None  # None: nothing, so no input is added
    is_aligned: bool = False  # the framework's own loss is part of training
    is_shuffled: bool = False  # by each seed anew

    def of(self, data: CtrData, seed: int) -> Told | None:
        """What the fit with this seed is told."""
        if not self.is_shuffled or not isinstance(self.told, KnowledgeVectors):
            return self.told
        return shuffled(self.told, data, seed)


def make_arms(
    data: CtrData,
    knowledge: KnowledgeVectors,
    controls: Mapping[str, Told | None],
    plain: KnowledgeVectors | None,
) -> dict[str, Arm]:
    """The arms of a check, by name, in the order of tables.

    Args:
        data: the CTR rows.
        knowledge: of the run.
        controls: those wanted, with the vectors of encoded texts and with lists.
        plain: of the run that was decoded plainly, if there is one.
    """
    made = {
        ZEROS: lambda: Arm(_zeros(knowledge)),
        CANARY: lambda: Arm(canary(data, knowledge)),
    }
    arms = {BASE: Arm(None), KNOWLEDGE: Arm(knowledge, is_aligned=True)}
    for name, told in controls.items():
        arms[name] = made[name]() if told is None else Arm(told, is_aligned=name in TEXTS)
    if plain is not None:
        arms[PLAIN] = Arm(plain, is_aligned=True)
    arms[SHUFFLED] = Arm(knowledge, is_shuffled=True)
    return {name: arms[name] for name in ARMS if name in arms}


def shuffled(vectors: KnowledgeVectors, data: CtrData, seed: int) -> KnowledgeVectors:
    """The placebo: vectors change owners within a kind and a decile of popularity.

    Own texts go round among those who have one, means of others' texts among those who have these.
    How popular an entity is, is told by its train rows.
    """
    rng = np.random.default_rng(seed)
    trained = data.splits["train"]
    users, items = (
        _permuted(rows, np.bincount(owners[trained], minlength=len(rows)), rng)
        for rows, owners in ((vectors.users, data.users), (vectors.items, data.items))
    )
    return KnowledgeVectors(users, items)


def _permuted(vectors: np.ndarray, popularity: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    moved = vectors.copy()
    for is_not_own in (0.0, 1.0):
        members = np.flatnonzero(vectors[:, -1] == is_not_own)
        ranked = members[np.argsort(popularity[members], kind="stable")]
        for part in np.array_split(ranked, max(1, min(_PARTS, len(ranked) // _LEAST_PART))):
            ring = rng.permutation(part)  # each gets its neighbour's, so that none keeps its own
            moved[ring] = vectors[np.roll(ring, 1)]
    return moved


def _zeros(vectors: KnowledgeVectors) -> KnowledgeVectors:
    return KnowledgeVectors(np.zeros_like(vectors.users), np.zeros_like(vectors.items))


def canary(data: CtrData, vectors: KnowledgeVectors) -> KnowledgeVectors:
    """What a profile would say that had been written after the test rows.

    A user is the mean of the vectors of items, by how far above the average each was liked in all
    CTR rows; an item is its own vector. So the leak comes by way of the texts, and a check that
    gains nothing by it could not see that knowledge helps.
    """
    total, (num_items, width) = len(data.user_ids), vectors.items.shape
    signed = torch.from_numpy(data.labels - data.labels.mean())
    places = torch.from_numpy(np.stack([data.users, data.items]).astype(np.int64))
    liked = torch.sparse_coo_tensor(places, signed, (total, num_items), check_invariants=False)
    sums = (liked @ torch.from_numpy(vectors.items[:, :-1].copy())).numpy()  # (users, width - 1)
    counts = np.bincount(data.users, minlength=total)
    profiles = np.zeros((total, width), np.float32)
    profiles[:, :-1] = sums / np.maximum(counts, 1)[:, np.newaxis]
    seen = profiles[counts > 0, :-1]
    deviation = np.maximum(seen.std(axis=0), _LEAST_DEVIATION)
    profiles[counts > 0, :-1] = (seen - seen.mean(axis=0)) / deviation
    profiles[:, -1] = counts == 0
    return KnowledgeVectors(profiles, vectors.items)
