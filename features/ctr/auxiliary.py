"""A framework's own loss inside the training of a CTR model.

It aligns the adapted text of an entity with what the model knows of it by itself: the mean of the
embeddings of its id and attributes, which carries what users did. Each entity of a batch counts
once; those whose codes are all the same have one vector, and the loss is told so. Left out are
those without a text and those with no known id or attribute, whose vectors say nothing (and where
users are split, so that ids are left out, users are what their attributes are).
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from features.ctr.models.rows import Batch, KnowledgeInput, RowInput


class AuxiliaryLoss:
    """`loss` over the users and over the items of a batch, times `weight`.

    It stands beside the network: what is only trained by is not part of what is kept.
    """

    def __init__(
        self, rows: RowInput, knowledge: KnowledgeInput, loss: nn.Module, weight: float
    ) -> None:
        self.rows, self.knowledge, self.loss = rows, knowledge, loss
        self.weight = weight

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those that the network has not."""
        return self.loss.parameters()

    def __call__(self, batch: Batch) -> Tensor:
        """A scalar."""
        embedded = self.rows.codes(batch.fields + self.rows.starts)  # (rows, fields, dim)
        border = self.rows.item_field
        of_users = self._over(
            "user",
            batch.users,
            self.knowledge.users,
            batch.fields[:, :border],
            embedded[:, :border],
        )
        of_items = self._over(
            "item",
            batch.items,
            self.knowledge.items,
            batch.fields[:, border:],
            embedded[:, border:],
        )
        return self.weight * (of_users + of_items)

    def _over(
        self, kind: str, owners: Tensor, vectors: Tensor, codes: Tensor, embedded: Tensor
    ) -> Tensor:
        """The loss over entities of a kind; `codes` (rows, fields), `embedded` (…, dim)."""
        entities, of_row = torch.unique(owners, return_inverse=True)
        row = torch.zeros_like(entities)
        row[of_row] = torch.arange(len(owners))  # any row of an entity will do
        codes = codes[row]
        is_known = codes > 0
        has_text = vectors[entities, -1] == 0
        usable = is_known.any(dim=1) & has_text
        if not usable.any():
            return embedded.new_zeros(())
        is_known = is_known[usable].unsqueeze(2)
        behaviour = (embedded[row[usable]] * is_known).sum(dim=1) / is_known.sum(dim=1)
        adapted = self.knowledge.adaptor(kind, vectors[entities[usable]])
        vector_of = torch.unique(codes[usable], dim=0, return_inverse=True)[1]
        return self.loss(kind, adapted, behaviour, vector_of)
