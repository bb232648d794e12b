"""transformers' own greedy search over left-padded batches: the baseline and the oracle."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from pipeline.engine.processors import Processors
from pipeline.engine.types import Request


def transformers_generate(
    model: PreTrainedModel,
    requests: Sequence[Request],
    batch_rows: int,
    processors: Processors,
    **options: Any,
) -> dict[str, np.ndarray]:
    """Output ids of every request, without the stop token, by key.

    Rows are sorted by prompt length, so that batches are padded as little as can be. Every batch
    runs to the largest `max_new_tokens` in it. `options` go to `generate`: `stop_strings` and
    `tokenizer`, `prompt_lookup_num_tokens` (one row at a time only), and so on.
    """
    by_length = sorted(requests, key=lambda request: len(request.prompt_ids))
    texts: dict[str, np.ndarray] = {}
    for start in range(0, len(by_length), batch_rows):
        batch = by_length[start : start + batch_rows]
        outputs = _generate(model, batch, processors, options)
        for request, output in zip(batch, outputs, strict=True):
            stops = np.flatnonzero(np.isin(output, list(processors.stop_ids)))
            end = stops[0] if len(stops) else len(output)
            texts[request.key] = output[: min(end, request.max_new_tokens)]
    return texts


@torch.inference_mode()
def _generate(
    model: Any, batch: Sequence[Request], processors: Processors, options: dict[str, Any]
) -> np.ndarray:
    """Output ids of one left-padded batch: (rows, new)."""
    width = max(len(request.prompt_ids) for request in batch)
    pad = min(processors.stop_ids)
    ids = np.full((len(batch), width), pad, np.int64)
    mask = np.zeros((len(batch), width), np.int64)
    for row, request in enumerate(batch):
        ids[row, width - len(request.prompt_ids) :] = request.prompt_ids
        mask[row, width - len(request.prompt_ids) :] = 1
    output = model.generate(
        torch.from_numpy(ids).to(model.device),
        attention_mask=torch.from_numpy(mask).to(model.device),
        max_new_tokens=max(request.max_new_tokens for request in batch),
        min_new_tokens=processors.min_new_tokens,
        repetition_penalty=processors.repetition_penalty,
        no_repeat_ngram_size=processors.no_repeat_ngram,
        do_sample=False,
        eos_token_id=sorted(processors.stop_ids),
        pad_token_id=pad,
        **options,
    )
    return output[:, width:].cpu().numpy()
