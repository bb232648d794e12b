"""The actors that write knowledge, kept from one wave to the next: a model is loaded once."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from features.formats import duration
from jobs.actor_pool import ActorPool
from jobs.cluster import node_resources, size_workers, start_ray
from jobs.generation_actor import GenerationActor, draft_model_of, require_same_tokenizer
from jobs.merge_waves import totals_in
from jobs.progress import board_of, heartbeat, read_board
from jobs.wave_names import has_draft_model
from jobs.waves import Wave
from pipeline.config import RunConfig
from pipeline.engine.statistics import EngineStatistics
from pipeline.engine.types import Generation
from pipeline.knowledge import collect
from pipeline.language_model import ChatTokenizer, check_language_model
from pipeline.model_identity import pinned

log = logging.getLogger("jobs.generate_knowledge")

_BLOCKS_IN_SLOTS = 16  # at most, of those that an actor works on; as many again wait there
_PROMPTED_ROWS = 256  # whose prompts are made at once


class Writers:
    """Started for the first wave that has rows to write; gone when the block ends.

    Any actor serves any group. A block is a few rows and each actor holds many: a free slot never
    waits for a block to end, and at a wave's end no actor is left with more rows than another.
    """

    def __init__(self, config: RunConfig, tokenizer: ChatTokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._block_rows = math.ceil(config.engine.batch_rows / _BLOCKS_IN_SLOTS)
        self._stack = ExitStack()
        self._pool: ActorPool | None = None
        self.engine_share = 0.0  # of the time of the last wave's actors, spent in engines' steps
        self.steps = EngineStatistics()  # of all engines in the last wave

    def __enter__(self) -> "Writers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(
        self, wave: Wave, rule: str, pools: Callable[[], Path] | None, what: str
    ) -> Iterator[pa.Table]:
        """Rows of KNOWLEDGE for all tasks of `wave`, as the actors finish them.

        They draft from the folder that `pools` gives; progress is logged as that of `what`.

        Raises:
            ModelError: a configured model cannot be used.
            WorkerError: see `ActorPool.through`.
        """
        self.steps = EngineStatistics()
        num_rows = wave.tasks.num_rows
        if not num_rows:
            return
        if self._pool is None:
            self._pool = self._stack.enter_context(self._start())
        began = time.monotonic()
        blocks, num_blocks = self._blocks(wave), math.ceil(num_rows / self._block_rows)
        with heartbeat(log, what, num_rows, self._config.generation.max_new_tokens) as board:
            count = board_of(board).add.remote
            task = (rule, pools, board)
            for rows in self._pool.through(blocks, num_blocks, False, task, self._refuse):
                totals = totals_in(rows)
                count(*(totals[name] for name in ("rows", "tokens", "forward_passes", "errors")))
                yield rows
            self.steps = read_board(board).engines
        seconds = time.monotonic() - began
        self.engine_share = self.steps.seconds / (self._pool.size(num_blocks) * seconds)
        log.info(
            "%s: written in %s with start-up, engines at work %.0f %% of it",
            *(what, duration(seconds), 100 * self.engine_share),
        )

    def _start(self) -> ActorPool:
        config = self._config
        self._check_models()
        if not self._tokenizer.has_turns:
            log.info("knowledge: the model has no chat template; it goes on from the bare prompts")
        start_ray(config.cluster)
        workers = size_workers(
            config.cluster, "knowledge", config.language_model.device, node_resources()
        )
        held = math.ceil(2 * config.engine.batch_rows / self._block_rows)
        return ActorPool(GenerationActor, (_pinned(config), workers.threads_each), workers, held)

    def _check_models(self) -> None:
        """Refuse here what the actors would refuse, where it reaches the user as it is."""
        check_language_model(self._config.language_model)
        if has_draft_model(self._config):
            check_language_model(draft_model_of(self._config))
            require_same_tokenizer(self._config, self._tokenizer.fingerprint)

    def _blocks(self, wave: Wave) -> Iterator[pa.Table]:
        """PROMPTED, a few rows each; prompts are made for many at once, and not before."""
        for start in range(0, wave.tasks.num_rows, _PROMPTED_ROWS):
            rows = wave.prompted(wave.tasks.slice(start, _PROMPTED_ROWS))
            for at in range(0, rows.num_rows, self._block_rows):
                yield rows.slice(at, self._block_rows)

    def _refuse(self, rows: pa.Table, cause: str) -> pa.Table:
        """Error rows for tasks that end their workers."""
        failed = [Generation.failed(str(row), cause) for row in range(rows.num_rows)]
        return collect(rows, failed, self._tokenizer, self._config.prompts.max_tokens)


def _pinned(config: RunConfig) -> RunConfig:
    """For actors, which may start hours later, and where a hub name means another commit."""
    models = {"language_model": pinned(config.language_model)}
    if not has_draft_model(config):
        return config.model_copy(update=models)
    drafts = config.drafts.model_copy(update={"model": pinned(draft_model_of(config))})
    return config.model_copy(update=models | {"drafts": drafts})
