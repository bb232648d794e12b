"""The worker of jobs.encode_features: one encoder for as long as the job lasts.

It lives outside the job, which is `__main__` when it runs and cannot be imported by a worker.
"""

import pyarrow as pa

from features.build import build_features, usable_text
from features.encoder import TextEncoder
from pipeline.config import EncoderSettings


class EncodingActor:
    """Built once in a Ray worker, then called with one block of KNOWLEDGE after another."""

    def __init__(self, settings: EncoderSettings, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)  # Ray would give an actor of one CPU a single thread
        self._encoder = TextEncoder(
            settings.path, settings.device, settings.max_tokens, settings.batch_size
        )

    def __call__(self, knowledge: pa.Table) -> pa.Table:
        """FEATURES of the block, and a column `truncated` for what the encoder did not read."""
        is_truncated = self._encoder.is_truncated(usable_text(knowledge).to_pylist())
        features = build_features(knowledge, self._encoder)
        return features.append_column("truncated", pa.array(is_truncated))
