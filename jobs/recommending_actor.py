"""The worker of jobs.recommend_items: one recommender for as long as the job lasts.

It lives outside the job, which is `__main__` when it runs and cannot be imported by a worker.
"""

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa

from jobs.actor_pool import WorkerBroken
from jobs.fatal_errors import is_fatal
from pipeline.config import RunConfig
from pipeline.generative.devices import device_named
from pipeline.generative.recommendation_rows import as_error_rows, as_rows, users_of
from pipeline.generative.recommender import load_recommender
from pipeline.generative.recommending import Catalog, ListMaker
from pipeline.runs import open_run

log = logging.getLogger(__name__)

MODEL = Path("recommender/recommender")  # dataset, and folder within it


class RecommendingActor:
    """Built once in a Ray worker, then called with one block of USER_ROWS after another."""

    def __init__(
        self, config: RunConfig, catalog: Catalog, item_ids: pa.Array, threads: int
    ) -> None:
        import torch

        torch.set_num_threads(threads)  # Ray would give an actor of one CPU a single thread
        files = open_run(config.artifacts, config.run).files
        dataset, folder = MODEL.parts
        device = device_named(config.recommendation.device)
        model = load_recommender(files.local(dataset) / folder, device)
        self._maker = ListMaker(model, catalog, config.recommendation, files.local)
        self._item_ids, self._seed = item_ids, config.seed
        self._batch = config.recommendation.batch_users

    def __call__(self, block: pa.Table) -> pa.Table:
        """RECOMMENDATIONS of the block's users, in its order."""
        lengths = np.diff(block["history"].combine_chunks().offsets.to_numpy())
        order = np.argsort(lengths, kind="stable")  # those of like length share a batch
        sorted_block = block.take(order)
        parts = [
            self._rows(sorted_block.slice(start, self._batch))
            for start in range(0, block.num_rows, self._batch)
        ]
        return pa.concat_tables(parts).take(np.argsort(order))

    def _rows(self, batch: pa.Table) -> pa.Table:
        """Of a batch; if it fails, user by user, and who fails alone gets an error row.

        Raises:
            WorkerBroken: this process cannot go on.
        """
        try:
            lists = self._maker.lists(users_of(batch, self._seed))
            return as_rows(batch, lists, self._item_ids)
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            if is_fatal(error):  # every user after it would fail too
                raise WorkerBroken(
                    f"{cause}. Where memory is short, lower recommendation.batch_users or "
                    "recommendation.beams"
                ) from error
            if batch.num_rows == 1:
                return as_error_rows(batch, cause)
            log.warning("a batch of %d users failed (%s): one by one", batch.num_rows, cause)
            return pa.concat_tables(self._rows(batch.slice(n, 1)) for n in range(batch.num_rows))
