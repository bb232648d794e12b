"""One forward pass of any Hugging Face causal LM over packed rows.

The model's code is unmodified: it gets a registered attention function, a duck-typed cache and
position ids. Models that cannot branch, or whose positions depend on their neighbours in the
batch, are refused.
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from pipeline.engine.attention import TREE_ATTENTION, register
from pipeline.engine.kv_cache import KVCache
from pipeline.engine.packed_linear import pack_linears
from pipeline.engine.packing import Layout, Step
from pipeline.errors import ModelError

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
        windows = _windows_of(model.config)
        self._softcap: float | None = getattr(model.config, "final_logit_softcapping", None)
        self._body: nn.Module = model.base_model
        self._head = _head_of(model)
        self._check_head(model)
        register()
        model.set_attn_implementation(TREE_ATTENTION)
        pack_linears(model)
        self._head = _head_of(model)
        self.cache = _arena_for(model, batch_rows, max_length)
        fold = model.config.num_attention_heads // self.cache.num_heads
        self.layout = Layout(max_length, windows, fold, model.dtype, model.device)
        # A 4-D mask is passed on untouched, which keeps transformers from building its own.
        self._no_mask = torch.zeros(1, 1, 1, 1, device=self.device)

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

    @torch.inference_mode()
    def _check_head(self, model: PreTrainedModel) -> None:
        """Make sure that body + head is the whole model: some scale their logits in between."""
        ids = torch.arange(1, 6, device=self.device)[None]
        whole = model(input_ids=ids, use_cache=False).logits[0].float()
        ours = self._logits(self._body(input_ids=ids, use_cache=False).last_hidden_state[0]).float()
        if not torch.allclose(whole, ours, rtol=1e-3, atol=1e-3):
            raise ModelError(
                f"{type(model).__name__} changes its logits after the output layer in a way this "
                "engine does not know; it would decode wrongly"
            )


def _windows_of(config: PreTrainedConfig) -> tuple[int, ...]:
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
