"""Train LightGCN on the past and store one vector per user and item.

    python -m jobs.train_embeddings --config conf/demo.yaml

Reads users, items and interactions; writes the dataset `embeddings`. Only interactions with
split "knowledge" and label 1 are edges. The latest share of every user's edges is held out to
decide when to stop, and to report Recall@20 and NDCG@20 beside popularity and chance.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import logging
import sys
import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from features.formats import count
from jobs import cli
from pipeline.catalog import interaction_rows
from pipeline.config import RunConfig
from pipeline.store import Store
from retrieval_pools.edges import Edges, hold_out_latest, unique_edges
from retrieval_pools.lightgcn import GraphEmbeddings, train_lightgcn
from retrieval_pools.ranking import (
    RankingMetrics,
    RankingTask,
    evaluate,
    popularity_scorer,
    random_scorer,
    ranking_task,
)

log = logging.getLogger("jobs.train_embeddings")

_TOO_GOOD = 0.9  # a Recall@20 that no real catalog reaches


def run(config: RunConfig, store: Store) -> None:
    """Make `embeddings`.

    Raises:
        DataError: an interaction names a user or item that the catalog lacks.
        ConfigError: training diverged.
    """
    plan = store.plan(
        "embeddings",
        settings={"embeddings": config.embeddings, "seed": config.seed},
        inputs=["users", "items", "interactions"],
    )
    if plan.is_done:
        log.info("embeddings: up to date, %d rows", store.require("embeddings").num_rows)
        return
    users = store.read("users")["user_id"].combine_chunks()
    items = store.read("items")["item_id"].combine_chunks()
    edges = past_positives(store.read("interactions"), users, items)
    train, validation = hold_out_latest(edges, config.embeddings.holdout_share)
    task = ranking_task(train, validation, len(items))
    log.info(
        "embeddings: %s training edges; %s held out, of which %s can be found",
        *map(count, (len(train), len(validation), len(task.relevant))),
    )
    if len(task.relevant) == 0:
        epochs = config.embeddings.max_epochs
        log.warning("embeddings: nothing to validate on, so all %d epochs are run", epochs)
    began = time.monotonic()
    result = train_lightgcn(
        train, validation, len(users), len(items), config.embeddings, config.seed
    )
    facts = {
        **_quality(result, task, train, config.seed),
        "isolated_users": int((result.user_degrees == 0).sum()),
        "isolated_items": int((result.item_degrees == 0).sum()),
        "train_edges": len(train),
        "validation_edges": len(task.relevant),
        "cold_validation_edges": len(validation) - len(task.relevant),
        "seconds": round(time.monotonic() - began, 2),
        "protocol": _protocol(config.embeddings.holdout_share),
    }
    log.info(
        "embeddings: %s users and %s items have no edge, and no vector to go by",
        *(count(facts[f"isolated_{kind}s"]) for kind in ("user", "item")),
    )
    plan.write(_table(users, items, result), facts)


def past_positives(interactions: pa.Table, users: pa.Array, items: pa.Array) -> Edges:
    """Liked pairs of the past as row numbers of `users` and `items`, oldest first, none twice."""
    is_past = pc.equal(interactions["split"], "knowledge")
    past = interactions.filter(pc.and_(is_past, pc.equal(interactions["label"], 1)))
    past = past.sort_by([(key, "ascending") for key in ("timestamp", "item_id", "user_id")])
    columns = (("user_id", users), ("item_id", items))
    edges = Edges(*(interaction_rows(past, name, ids).to_numpy() for name, ids in columns))
    return unique_edges(edges, len(items))


def _quality(
    result: GraphEmbeddings, task: RankingTask, train: Edges, seed: int
) -> dict[str, float]:
    """Metrics of LightGCN and of both baselines, as facts."""
    facts: dict[str, float] = {"best_epoch": result.best.epoch if result.best else 0}
    found = result.best.metrics if result.best else RankingMetrics(0.0, 0.0)
    scores = {
        "": found,
        "popularity_": evaluate(task, popularity_scorer(train, task.num_items)),
        "random_": evaluate(task, random_scorer(task.num_items, seed)),
    }
    for name, metrics in scores.items():
        facts[f"{name}recall@20"] = round(metrics.recall, 4)
        facts[f"{name}ndcg@20"] = round(metrics.ndcg, 4)
        label = name.removesuffix("_") or f"LightGCN, epoch {facts['best_epoch']}"
        text = "embeddings: %s: recall@20 %.4f, ndcg@20 %.4f"
        log.info(text, label, metrics.recall, metrics.ndcg)
    if found.recall > max(_TOO_GOOD, 2 * facts["random_recall@20"]):  # 20 of 30 are easily found
        log.warning(
            "embeddings: recall@20 is %.2f, too good to be true; only %d items are ranked, or the "
            "interactions repeat a fixed list: find out before you trust the groups",
            found.recall,
            task.num_items - len(task.cold_items),
        )
    return facts


def _protocol(share: float) -> str:
    return (
        f"latest {share:.0%} of each user's past positives held out (users with fewer than 5: "
        "none); ranked among all items with a training edge, except the user's own; users without "
        "a held-out edge skipped; recall over all held-out items"
    )


def _table(users: pa.Array, items: pa.Array, result: GraphEmbeddings) -> pa.Table:
    vectors = np.concatenate([result.user_vectors, result.item_vectors])
    degrees = np.concatenate([result.user_degrees, result.item_degrees])
    flat = pa.array(vectors.ravel(), pa.float32())
    return pa.table(
        {
            "kind": ["user"] * len(users) + ["item"] * len(items),
            "entity_id": pa.concat_arrays([users, items]),
            "num_interactions": pa.array(degrees, pa.int32()),
            "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        }
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return cli.main(run, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
