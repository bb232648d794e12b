"""Size of a causal LM from its `config.json`: weights, what a step reads, keys and values.

Counts matrices and embeddings; norms and biases, below 0.1 % of any model worth a GPU, are left
out. Of a mixture of experts a token multiplies few experts, but a step of many tokens reads most.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import ModelError

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# Families whose feed-forward layers have two matrices; all others have a gate as well.
_UNGATED = {"gpt2", "gpt_neox", "gpt_neo", "gptj", "opt", "bloom", "falcon", "phi", "starcoder2"}
_LEARNED_POSITIONS = {"gpt2": "n_positions", "gpt_neo": "max_position_embeddings"}
_OTHER_NAMES = {  # of GPT-2
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True)
class ModelSize:
    """What has to be stored, read and multiplied."""

    parameters: int  # stored
    dense: int  # weights of matrices that every token is multiplied with, but for the output layer
    head: int  # of the output layer, for tokens that decide what comes next
    expert: int  # of one routed expert, all layers together; 0 in a dense model
    experts: int
    experts_per_token: int
    cache_per_token: int  # numbers kept of a token: keys and values of all layers
    vocabulary: int

    @property
    def active(self) -> int:
        """Weights that a decoded token is multiplied with."""
        return self.dense + self.head + self.expert * self.experts_per_token

    @property
    def prompt_share(self) -> float:
        """Work of a prompt's token, which decides nothing, over that of a decoded one."""
        return (self.active - self.head) / self.active

    def read(self, tokens: float) -> float:
        """Weights that a step of so many tokens reads; experts are chosen evenly, by assumption."""
        if not self.experts:
            return float(self.dense + self.head)
        missed = (1.0 - self.experts_per_token / self.experts) ** tokens
        return self.dense + self.head + self.expert * self.experts * (1.0 - missed)


def read_model_size(folder: Path) -> ModelSize:
    """Size of a model in a local folder (or of a `config.json`).

    Raises:
        ModelError: there is no config, or none of a model that can be counted.
    """
    file = folder / "config.json" if folder.is_dir() else folder
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read as a model's config: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file} is no config of a model: it holds no mapping")
    return size_of_config(config, str(file))


def size_of_config(config: Mapping[str, Any], where: str = "config.json") -> ModelSize:
    """Count a model by its config.

    Raises:
        ModelError: a size is missing, or attention is of a kind that is not known here.
    """
    own = config.get("text_config") or config  # of a model that sees as well
    if "kv_lora_rank" in own or "state_size" in own or own.get("is_encoder_decoder"):
        raise ModelError(
            f"{where}: {own.get('model_type')} keeps no keys and values by heads; the engine "
            "does not take it, so its cost is not forecast"
        )
    hidden, layers, heads = (
        _need(own, name, where)
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    key_heads, head_dim = _heads(own, hidden, heads)
    vocabulary = _need(own, "vocab_size", where)
    attention = layers * hidden * head_dim * 2 * (heads + key_heads)
    dense, expert = _feed_forward(own, hidden, layers, where)
    embeddings = vocabulary * hidden
    positions = own.get(_LEARNED_POSITIONS.get(str(own.get("model_type")), ""), 0) * hidden
    tied = own.get("tie_word_embeddings", str(own.get("model_type")) in _LEARNED_POSITIONS)
    experts = _experts(own)
    return ModelSize(
        parameters=attention + dense + expert * experts + embeddings * (1 if tied else 2)
        + positions,
        dense=attention + dense,
        head=embeddings,
        expert=expert,
        experts=experts,
        experts_per_token=_first(own, ("num_experts_per_tok",), 2) if experts else 0,
        cache_per_token=2 * layers * key_heads * head_dim,
        vocabulary=vocabulary,
    )  # fmt: skip


def _heads(own: Mapping[str, Any], hidden: int, heads: int) -> tuple[int, int]:
    """Heads of keys, and numbers of a head."""
    family = own.get("model_type")
    key_heads = own.get("num_key_value_heads") or heads
    if own.get("multi_query") and family == "falcon":
        key_heads = 1
    return key_heads, own.get("head_dim") or own.get("kv_channels") or hidden // heads


def _feed_forward(own: Mapping[str, Any], hidden: int, layers: int, where: str) -> tuple[int, int]:
    """Weights of feed-forward layers that all tokens pass, and of one routed expert."""
    family = own.get("model_type")
    matrices = 2 if family in _UNGATED else 3
    width = own.get("ffn_dim") or _value(own, "intermediate_size") or 4 * hidden
    if family == "qwen":  # the first Qwen's config gives both halves together
        width //= 2
    experts = _experts(own)
    if not experts:
        return layers * matrices * hidden * width, 0
    routed = _routed_layers(own, layers)
    expert_width = own.get("moe_intermediate_size") or width
    shared = own.get("shared_expert_intermediate_size", 0) or expert_width * own.get(
        "n_shared_experts", 0
    )
    router = hidden * experts
    dense = (layers - routed) * matrices * hidden * width
    dense += routed * (matrices * hidden * shared + router)
    return dense, routed * matrices * hidden * expert_width


def _routed_layers(own: Mapping[str, Any], layers: int) -> int:
    every = own.get("decoder_sparse_step") or 1
    plain = set(own.get("mlp_only_layers") or ())
    first = own.get("first_k_dense_replace") or 0
    return sum(
        (layer + 1) % every == 0 and layer not in plain and layer >= first
        for layer in range(layers)
    )


def _experts(own: Mapping[str, Any]) -> int:
    return _first(own, _EXPERTS, 0)


def _first(own: Mapping[str, Any], names: tuple[str, ...], otherwise: int) -> int:
    return next((int(own[name]) for name in names if own.get(name)), otherwise)


def _value(own: Mapping[str, Any], name: str) -> int | None:
    return own.get(name) or own.get(_OTHER_NAMES.get(name, ""))


def _need(own: Mapping[str, Any], name: str, where: str) -> int:
    value = _value(own, name)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"{where} has no {name}, so the model cannot be counted")
    return value
