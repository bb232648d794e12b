"""Where two decodings of one prompt part, and how far apart the model finds the two tokens there.

In float32 strict decoding is greedy decoding. In 16 bits the logits of a packed pass and those of
an ordinary one differ by rounding, so that two nearly equal tokens may change places, and the
texts differ from there on. The gap tells rounding from a fault.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from pipeline.engine.branch import Branch
from pipeline.engine.kv_cache import common_prefix
from pipeline.engine.processors import Processors
from pipeline.engine.row import Row
from pipeline.engine.stops import Stops
from pipeline.engine.types import DraftTree, Request


@dataclass(frozen=True)
class Divergence:
    """The first place where two outputs of one request differ."""

    key: str
    position: int  # in the output, from 0
    gap: float  # score of the expected token less that of the other one


def first_divergences(
    model: PreTrainedModel,
    requests: Sequence[Request],
    expected: Mapping[str, np.ndarray],
    got: Mapping[str, np.ndarray],
    processors: Processors,
) -> list[Divergence]:
    """Compare output ids (new,) without stop tokens by key; requests that agree are left out.

    Scores are `model`'s logits in float32, after `processors`. An output that ends before the
    other one is taken to go on with its most probable stop token. No engine may have taken over
    `model`; a float32 copy gives gaps that are free of rounding themselves.
    """
    divergences = []
    for request in requests:
        ids, others = expected[request.key], got[request.key]
        position = common_prefix(ids, others)
        if position < max(len(ids), len(others)):
            scores = _scores(model, request, ids[:position], processors)
            wanted, other = (_score(scores, text, position, processors) for text in (ids, others))
            divergences.append(Divergence(request.key, position, wanted - other))
    return divergences


@torch.inference_mode()
def _scores(
    model: PreTrainedModel, request: Request, output: np.ndarray, processors: Processors
) -> torch.Tensor:
    """Of the token after prompt and `output` (new,): (vocab,) float32."""
    row = Row(request, 0)
    for token in output.tolist():
        row.append(token, Stops([]))
    ids = torch.from_numpy(row.tokens.astype(np.int64))[None].to(model.device)
    logits = model(
        input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, logits_to_keep=1
    ).logits[:, -1]
    return processors.apply(logits.float(), [Branch(row, DraftTree.empty(), 0)])[0]


def _score(
    scores: torch.Tensor, output: np.ndarray, position: int, processors: Processors
) -> float:
    if position < len(output):
        return float(scores[int(output[position])])
    return float(scores[sorted(processors.stop_ids)].max())
