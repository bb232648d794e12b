"""One forward pass of any Hugging Face causal LM over packed rows.

The model's code is unmodified: it gets a registered attention function, a duck-typed cache and
position ids. Models that cannot branch, or whose positions depend on their neighbours in the
batch, are refused.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from pipeline.engine.attention import TREE_ATTENTION, register
from pipeline.engine.kv_cache import KVCache
from pipeline.engine.packed_linear import pack_linears
from pipeline.engine.packing import Layout, Step, pack
from pipeline.engine.row import Row
from pipeline.engine.types import DraftTree, Request
from pipeline.errors import ModelError

_PROBE = (1, 2, 3, 4, 5)  # any tokens do
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}
_BATCH_DEPENDENT_ROPE = {"dynamic", "longrope"}


class ModelRunner:
    """A model prepared for packed steps, and its KV cache."""

    def __init__(self, model: PreTrainedModel, batch_rows: int, max_length: int) -> None:
        """Take over `model`: its attention function and, on a CPU, its linear layers change.

        Raises:
            ModelError: the model cannot be run exactly by this engine; the reason is named.
        """
        self.device = model.device
        windows = sliding_windows(model.config)
        self._softcap: float | None = getattr(model.config, "final_logit_softcapping", None)
        self._body: nn.Module = model.base_model
        wanted = _logits_after(model, _PROBE)
        register()
        model.set_attn_implementation(TREE_ATTENTION)
        pack_linears(model)
        self._head = _head_of(model)
        self.cache = _arena_for(model, batch_rows, max_length)
        fold = model.config.num_attention_heads // self.cache.num_heads
        self.layout = Layout(max_length, windows, fold, model.dtype, model.device)
        # A 4-D mask is passed on untouched, which keeps transformers from building its own.
        self._no_mask = torch.zeros(1, 1, 1, 1, device=self.device)
        self._require_same(wanted, model)

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Logits of the step's deciding tokens: (decisions, vocab)."""
        output = self._body(
            input_ids=step.token_ids[None],
            position_ids=step.positions[None],
            attention_mask=self._no_mask,
            cache=self.cache,
            use_cache=True,
            step=step,
        )
        return self._logits(output.last_hidden_state[0, step.deciding])

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """(tokens, width) -> (tokens, vocab)."""
        logits = self._head(hidden)
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

    def _require_same(self, wanted: torch.Tensor, model: PreTrainedModel) -> None:
        """Make sure that a packed step gives the model's own logits.

        Some models scale logits after the output layer, others hand their attention function
        arguments that ours does not know; such a model would decode wrongly without a word.
        """
        row = Row(Request("", np.array(_PROBE, np.int32), 1), 0)
        row.chunk = len(_PROBE)
        got = self.forward(pack([row], [DraftTree.empty()], self.layout))[0].float()
        tolerance = 1e-3 if model.dtype == torch.float32 else 5e-2
        if not torch.allclose(wanted, got, rtol=tolerance, atol=tolerance * float(wanted.std())):
            raise ModelError(
                f"{type(model).__name__} computes its logits in a way this engine does not know "
                f"(largest difference {float((wanted - got).abs().max()):.3g})"
            )


@torch.inference_mode()
def _logits_after(model: PreTrainedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """The model's own logits after `token_ids`: (vocab,)."""
    ids = torch.tensor([token_ids], device=model.device)
    return model(input_ids=ids, use_cache=False).logits[0, -1].float()


def sliding_windows(config: PreTrainedConfig) -> tuple[int, ...]:
    """Sliding windows of the layers, 0 for full attention; refuses what cannot be run."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {rope.get("rope_type")} | {
        part.get("rope_type") for part in rope.values() if isinstance(part, dict)
    }
    if not rope:
        raise ModelError(f"{config.model_type}: no rotary position embedding; not supported")
    if kinds & _BATCH_DEPENDENT_ROPE:
        raise ModelError(
            f"{config.model_type}: RoPE of type {sorted(map(str, kinds))} looks at the longest row "
            "of a batch, so a row's text would depend on its neighbours"
        )
    if getattr(config, "attn_logit_softcapping", None):
        raise ModelError(f"{config.model_type}: attention soft-capping is not supported")
    layers = set(getattr(config, "layer_types", None) or ())
    if layers - _KNOWN_LAYERS:
        raise ModelError(
            f"{config.model_type}: layers of type {sorted(layers - _KNOWN_LAYERS)} keep a state "
            "that cannot branch into a draft tree"
        )
    window = getattr(config, "sliding_window", None) or 0
    if not layers:
        return (window,)
    kinds_of_window = {"full_attention": 0, "sliding_attention": window}
    return tuple(sorted({kinds_of_window[layer] for layer in layers}))


def _head_of(model: PreTrainedModel) -> nn.Module:
    head = model.get_output_embeddings()
    if head is None:
        raise ModelError(f"{type(model).__name__} has no output layer over the vocabulary")
    return head


def _arena_for(model: PreTrainedModel, batch_rows: int, max_length: int) -> KVCache:
    config: Any = model.config
    heads = config.num_attention_heads
    return KVCache(
        layers=config.num_hidden_layers,
        rows=batch_rows,
        length=max_length,
        heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=model.dtype,
        device=model.device,
    )
