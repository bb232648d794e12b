"""LightGCN (He et al., SIGIR'20, arXiv 2002.02126): one vector per user and item, from a graph.

The model is PyTorch Geometric's. Training is ours: the adjacency is normalised once and kept as a
sparse matrix, negatives are drawn exactly, and early stopping looks at held-out edges.
"""

import logging
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import embedding

from pipeline.config import EmbeddingSettings
from pipeline.errors import ConfigError
from retrieval_pools.edges import Edges, unique_edges
from retrieval_pools.negative_sampling import TripletSampler
from retrieval_pools.ranking import (
    RankingMetrics,
    RankingTask,
    embedding_scorer,
    evaluate,
    ranking_task,
)

with warnings.catch_warnings():  # its import compiles with torch.jit, which PyTorch deprecates
    warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
    from torch_geometric.nn.models.lightgcn import BPRLoss, LightGCN

log = logging.getLogger(__name__)

_TELL = 10.0  # s between lines
_PRODUCTS_PER_THREAD = 2**25  # about 20 ms of work
# Every batch propagates over all edges, so a fixed batch size makes an epoch quadratic in them.
_MOST_BATCHES = 32  # of an epoch; they grow beyond `batch_size` to keep to it


@dataclass(frozen=True)
class Evaluation:
    """One look at the held-out edges."""

    epoch: int
    loss: float  # mean over the batches of the epoch
    metrics: RankingMetrics  # at 20


@dataclass(frozen=True)
class GraphEmbeddings:
    """Propagated vectors (mean over layers) of the best epoch.

    An entity without a training edge has degree 0 and a zero vector: its untrained vector would
    look like any other and mean nothing.
    """

    user_vectors: np.ndarray  # (users, d) float32
    item_vectors: np.ndarray  # (items, d) float32
    user_degrees: np.ndarray  # (users,) int32, edges in the training graph
    item_degrees: np.ndarray  # (items,) int32
    history: tuple[Evaluation, ...]
    best: Evaluation | None  # None: there was no edge to train on


def train_lightgcn(
    train: Edges,
    validation: Edges,
    num_users: int,
    num_items: int,
    settings: EmbeddingSettings,
    seed: int,
) -> GraphEmbeddings:
    """Train on `train`, stop by Recall@20 on `validation`, return the vectors of the best epoch.

    Only `train` enters the graph. Where no validation edge can be found (see `ranking`), all
    epochs are run and the last one counts. The same seed gives the same bits on a CPU; torch's
    global random state is left as it was.

    Raises:
        ConfigError: the loss is no longer finite.
    """
    train = unique_edges(train, num_items)
    degrees = _degrees(train, num_users, num_items)
    if len(train) == 0:
        log.warning("embeddings: no training edge: all entities are isolated, their vectors zero")
        nothing = torch.zeros(num_users + num_items, settings.dim)
        return _split(nothing, degrees, num_users, (), None)
    task = ranking_task(train, validation, num_items)
    with _threads_for(2 * len(train) * settings.dim):
        trainer = Trainer(train, num_users, num_items, settings, seed)
        history, best, vectors = _fit(trainer, task, num_users, settings)
    return _split(vectors, degrees, num_users, tuple(history), best)


def normalised_adjacency(train: Edges, num_users: int, num_items: int) -> torch.Tensor:
    """Symmetric D^-1/2 A D^-1/2 (eq. 8) in CSR form, (nodes, nodes) float32, users first.

    `train` holds no pair twice. A product with it is several times faster than message passing
    over an edge list, forward and backward.
    """
    num_nodes = num_users + num_items
    items = train.items + num_users
    keys = np.concatenate([train.users * num_nodes + items, items * num_nodes + train.users])
    keys.sort()  # one key for both is sorted several times faster than pairs
    rows, columns = np.divmod(keys, num_nodes)
    degrees = np.bincount(rows, minlength=num_nodes)
    values = 1 / np.sqrt(degrees[rows] * degrees[columns])
    starts = np.concatenate([[0], np.cumsum(degrees)])
    small = max(num_nodes, len(rows)) < 2**31  # narrow indices reach the faster kernels
    index = torch.int32 if small else torch.int64
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.as_tensor(starts, dtype=index),
            torch.as_tensor(columns, dtype=index),
            torch.as_tensor(values, dtype=torch.float32),
            (num_nodes, num_nodes),
            check_invariants=True,
        )


class SymmetricLightGCN(LightGCN):
    """LightGCN over a matrix that is its own transpose, as `normalised_adjacency` gives it.

    torch transposes the matrix on every step, by sorting it: two thirds of the time of a step.
    """

    def __init__(self, num_nodes: int, dim: int, layers: int) -> None:
        super().__init__(num_nodes, dim, layers, normalize=False)
        self.convs = nn.ModuleList(_Convolution() for _ in range(layers))


class _Convolution(nn.Module):
    def forward(
        self, vectors: torch.Tensor, adjacency: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        assert weights is None, "they are in the matrix"
        return _Product.apply(adjacency, vectors)


class _Product(torch.autograd.Function):
    """A symmetric matrix times vectors; the gradient is the same product."""

    @staticmethod
    def forward(ctx: Any, matrix: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        ctx.matrix = matrix
        return matrix @ vectors

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, ctx.matrix @ gradients[0]


class Trainer:
    """The model, its graph and its optimiser on the device, one epoch at a time.

    `train` holds no pair twice.
    """

    def __init__(
        self, train: Edges, num_users: int, num_items: int, settings: EmbeddingSettings, seed: int
    ) -> None:
        num_nodes = num_users + num_items
        self._num_users = num_users
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):  # the constructor draws from the global state
            model = SymmetricLightGCN(num_nodes, settings.dim, settings.layers)
        torch.nn.init.xavier_uniform_(model.embedding.weight, generator=self._generator)
        self._model = model.to(self._device)
        self._adjacency = normalised_adjacency(train, num_users, num_items).to(self._device)
        self._sampler = TripletSampler(train, num_users, num_items)
        self._batch_size = max(settings.batch_size, math.ceil(len(train) / _MOST_BATCHES))
        self._bpr = BPRLoss(settings.regularisation)
        self._optimiser = torch.optim.Adam(model.parameters(), settings.learning_rate)

    def epoch(self) -> float:
        """One pass of BPR (eq. 15, its mean for its sum); returns the mean loss of the batches."""
        triplets = self._sampler.epoch(self._generator).to(self._device)  # (3, edges)
        if triplets.shape[1] == 0:  # everybody has everything: no order to learn
            return 0.0
        losses = [self._step(*batch) for batch in triplets.split(self._batch_size, dim=1)]
        return float(torch.stack(losses).mean())

    def vectors(self) -> torch.Tensor:
        """Propagated vectors, mean over layers, users first: (nodes, d)."""
        with torch.no_grad():
            return self._model.get_embedding(self._adjacency)

    def _step(
        self, users: torch.Tensor, positives: torch.Tensor, negatives: torch.Tensor
    ) -> torch.Tensor:
        nodes = torch.cat([users, positives + self._num_users, negatives + self._num_users])
        # `embedding`, not indexing: the latter adds up gradients in the order threads finish
        propagated = embedding(nodes, self._model.get_embedding(self._adjacency))
        user, positive, negative = propagated.chunk(3)  # (batch, d) each
        own = self._model.embedding(nodes)  # only what the batch touches is regularised
        loss = self._bpr((user * positive).sum(1), (user * negative).sum(1), own)
        self._optimiser.zero_grad()
        loss.backward()
        self._optimiser.step()
        return loss.detach()


def _fit(
    trainer: Trainer, task: RankingTask, num_users: int, settings: EmbeddingSettings
) -> tuple[list[Evaluation], Evaluation, torch.Tensor]:
    """All evaluations, the best of them, and the vectors it saw."""
    history: list[Evaluation] = []
    best, best_vectors, told = None, torch.empty(0), time.monotonic()
    for epoch in range(1, settings.max_epochs + 1):
        loss = trainer.epoch()
        if epoch % settings.evaluate_every and epoch != settings.max_epochs:
            continue
        vectors = trainer.vectors()
        score = embedding_scorer(vectors[:num_users], vectors[num_users:])
        now = _checked(Evaluation(epoch, loss, evaluate(task, score)), settings)
        history.append(now)
        if time.monotonic() - told >= _TELL:
            told = time.monotonic()
            log.info(
                "embeddings: epoch %d of at most %d: loss %.4f, recall@20 %.4f, at best %.4f",
                *(epoch, settings.max_epochs, now.loss),
                *(now.metrics.recall, max(one.metrics.recall for one in history)),
            )
        if best is None or len(task.users) == 0 or now.metrics.recall > best.metrics.recall:
            best, best_vectors = now, vectors
        elif epoch - best.epoch >= settings.patience * settings.evaluate_every:
            break
    assert best is not None, "max_epochs is at least 1"
    return history, best, best_vectors


@contextmanager
def _threads_for(products: int) -> Iterator[None]:
    """No more threads than `products` multiplications per propagation can feed.

    On a busy machine two threads took 10 times as long as one over MovieLens-100K: each of many
    small kernels waits for the slower thread.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, 1 + products // _PRODUCTS_PER_THREAD))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _checked(now: Evaluation, settings: EmbeddingSettings) -> Evaluation:
    if not math.isfinite(now.loss):
        raise ConfigError(
            f"LightGCN diverged: the loss of epoch {now.epoch} is {now.loss}; lower "
            f"embeddings.learning_rate (now {settings.learning_rate})"
        )
    return now


def _degrees(train: Edges, num_users: int, num_items: int) -> np.ndarray:
    """Training edges of every node, users first: (nodes,) int32."""
    users = np.bincount(train.users, minlength=num_users)
    items = np.bincount(train.items, minlength=num_items)
    return np.concatenate([users, items]).astype(np.int32)


def _split(
    vectors: torch.Tensor,
    degrees: np.ndarray,
    num_users: int,
    history: tuple[Evaluation, ...],
    best: Evaluation | None,
) -> GraphEmbeddings:
    """Nodes -> users and items, isolated ones set to zero."""
    nodes = np.where(degrees[:, None] > 0, vectors.cpu().numpy(), np.float32(0))
    return GraphEmbeddings(
        nodes[:num_users],
        nodes[num_users:],
        degrees[:num_users],
        degrees[num_users:],
        history,
        best,
    )
