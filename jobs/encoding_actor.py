"""The worker of jobs.encode_features: one encoder for as long as the job lasts.

It lives outside the job, which is `__main__` when it runs and cannot be imported by a worker.
"""

import pyarrow as pa

from features.build import build_features, readings
from features.encoder import TextEncoder
from features.frameworks import framework_named
from features.frameworks.framework import whole_text
from pipeline.config import EncoderSettings


class EncodingActor:
    """Built once in a Ray worker, then called with one block of KNOWLEDGE after another.

    Without a framework whole texts are encoded.
    """

    def __init__(self, settings: EncoderSettings, threads: int, framework: str | None) -> None:
        import torch

        torch.set_num_threads(threads)  # Ray would give an actor of one CPU a single thread
        self._encoder = TextEncoder(
            settings.path, settings.device, settings.max_tokens, settings.batch_size
        )
        self._read = framework_named(framework).read if framework else whole_text

    def __call__(self, knowledge: pa.Table) -> pa.Table:
        """FEATURES of the block, and a column `truncated` for what the encoder did not read."""
        texts = [reading.text for reading in readings(knowledge, self._read)]
        features = build_features(knowledge, self._encoder, self._read)
        is_truncated = self._encoder.is_truncated(texts)
        return features.append_column("truncated", pa.array(is_truncated))
