"""One forward pass of any Hugging Face causal LM over packed rows.

The model's code is unmodified: it gets a registered attention function, a duck-typed cache and
position ids. Models that cannot branch, or whose positions depend on their neighbours in the
batch, are refused.
"""

import logging
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from pipeline.engine.activations import isolate_activations
from pipeline.engine.attention import TREE_ATTENTION, register, tree_attention
from pipeline.engine.compatibility import require_length, require_memory, sliding_windows
from pipeline.engine.kv_cache import KVCache
from pipeline.engine.packed_linear import is_packed, pack_linears
from pipeline.engine.packing import Layout, Step
from pipeline.engine.probe import reference, require_same
from pipeline.engine.row_attention import can_attend
from pipeline.errors import ModelError

log = logging.getLogger(__name__)


class ModelRunner:
    """A model prepared for packed steps, and its KV cache."""

    def __init__(self, model: PreTrainedModel, batch_rows: int, max_length: int) -> None:
        """Take over `model`: attention and, on a CPU, linear layers and activations change.

        Raises:
            ModelError: the model cannot be run exactly by this engine, or its KV cache does not
                fit; the reason is named.
        """
        config: Any = model.config.get_text_config(decoder=True)
        if config._attn_implementation == TREE_ATTENTION:
            raise ModelError("this model object serves another engine; load the model once more")
        windows = sliding_windows(model.config)
        require_length(model.config, max_length)
        self.device = model.device
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._body: nn.Module = model.base_model
        self.cache = _arena_for(config, model, batch_rows, max_length)
        wanted = reference(model, batch_rows)
        _take_attention(model)
        pack_linears(model)
        if model.device.type == "cpu":
            isolate_activations(model)
        self._head = _head_of(model)
        self.vocabulary: int = model.get_input_embeddings().weight.shape[0]  # pyright: ignore
        fold = config.num_attention_heads // self.cache.num_heads
        head_dim = self.cache.keys.shape[-1]
        self.layout = Layout(max_length, windows, fold, model.dtype, model.device, head_dim)
        # A 4-D mask is passed on untouched, which keeps transformers from building its own.
        self._no_mask = torch.zeros(1, 1, 1, 1, device=self.device)
        require_same(wanted, self.forward, self.layout, model, batch_rows)
        if not (is_packed(model) and can_attend(model.device, model.dtype, head_dim)):
            log.info("logits of this model round otherwise in other steps: near-ties may flip")

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Logits of the step's deciding tokens: (decisions, vocab)."""
        output = self._body(
            input_ids=step.token_ids[None],
            position_ids=step.positions[None],
            attention_mask=self._no_mask,
            cache=_StepCache(self.cache, step),
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


class _StepCache:
    """The arena as the `cache` argument of one pass.

    It knows the step itself, because some models (GPT-NeoX) hand `update` no keyword arguments.
    """

    def __init__(self, arena: KVCache, step: Step) -> None:
        self._arena = arena
        self._step = step

    def get_seq_length(self, *_: Any) -> int:
        """Asked for by some models; positions are always given, so it decides nothing."""
        return 0

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `KVCache.update`."""
        return self._arena.update(key, value, layer_idx, {"step": self._step})


def _take_attention(model: PreTrainedModel) -> None:
    register(TREE_ATTENTION, tree_attention)
    model.set_attn_implementation(TREE_ATTENTION)
    if model.config._attn_implementation != TREE_ATTENTION:
        raise ModelError(
            f"{type(model).__name__} (type {model.config.model_type!r}) has attention code of its "
            "own, so it cannot attend along a draft tree; choose another language_model.path"
        )


def _head_of(model: PreTrainedModel) -> nn.Module:
    head = model.get_output_embeddings()
    if head is None:
        raise ModelError(f"{type(model).__name__} has no output layer over the vocabulary")
    return head


def _arena_for(config: Any, model: PreTrainedModel, batch_rows: int, max_length: int) -> KVCache:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    layers = config.num_hidden_layers
    elements = 2 * layers * batch_rows * max_length * kv_heads * head_dim
    needed = elements * model.dtype.itemsize
    require_memory(needed, model.device, batch_rows, max_length)
    log.info("KV cache: %d rows of %d tokens, %.3g GiB", batch_rows, max_length, needed / 2**30)
    return KVCache(
        layers=layers,
        rows=batch_rows,
        length=max_length,
        heads=kv_heads,
        head_dim=head_dim,
        dtype=model.dtype,
        device=model.device,
    )
