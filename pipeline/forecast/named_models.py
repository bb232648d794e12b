"""Configs of well-known models, as published with their weights, to plan without a download."""

from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigError
from pipeline.forecast.model_size import ModelSize, size_of_config


def _config(
    family: str,
    hidden: int,
    width: int,
    layers: int,
    heads: tuple[int, int],
    words: int,
    **more: Any,
) -> dict[str, Any]:
    return {
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "vocab_size": words,
        "tie_word_embeddings": False,
    } | more


CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "smollm2-135m": _config(
        "llama", 576, 1536, 30, (9, 3), 49_152, tie_word_embeddings=True
    ),
    "qwen2.5-0.5b": _config(
        "qwen2", 896, 4864, 24, (14, 2), 151_936, tie_word_embeddings=True
    ),
    "qwen2.5-1.5b": _config(
        "qwen2", 1536, 8960, 28, (12, 2), 151_936, tie_word_embeddings=True
    ),
    "qwen2.5-7b": _config("qwen2", 3584, 18_944, 28, (28, 4), 152_064),
    "qwen-7b": _config("qwen", 4096, 22_016, 32, (32, 32), 151_936),  # LASER's cost example
    "vicuna-7b": _config("llama", 4096, 11_008, 32, (32, 32), 32_000),
    "llama2-13b": _config("llama", 5120, 13_824, 40, (40, 40), 32_000),
    "mistral-7b": _config("mistral", 4096, 14_336, 32, (32, 8), 32_768),
    "llama-3.1-8b": _config("llama", 4096, 14_336, 32, (32, 8), 128_256),
    "llama-3.1-70b": _config("llama", 8192, 28_672, 80, (64, 8), 128_256),
    "mixtral-8x7b": _config(
        "mixtral", 4096, 14_336, 32, (32, 8), 32_000, num_local_experts=8, num_experts_per_tok=2
    ),
    "qwen3-30b-a3b": _config(
        "qwen3_moe", 2048, 6144, 48, (32, 4), 151_936, head_dim=128, num_experts=128,
        num_experts_per_tok=8, moe_intermediate_size=768,
    ),
}  # fmt: skip


def named_size(name: str) -> ModelSize:
    """Size of a model of the table.

    Raises:
        ConfigError: there is no such name.
    """
    if name not in CONFIGS:
        raise ConfigError(f"no model is named {name}; there are {', '.join(CONFIGS)}")
    return size_of_config(CONFIGS[name], name)
