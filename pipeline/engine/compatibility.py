"""Which models the engine refuses from their configuration alone, and why.

What no configuration field gives away is found by running the model once, see `probe`.
"""

import os
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from pipeline.errors import ModelError

_KNOWN_LAYERS = {"full_attention", "sliding_attention"}
_BATCH_DEPENDENT_ROPE = {"dynamic", "longrope"}
_ROPE_BEYOND_ITS_TRAINING = {"linear", "yarn"}  # they stretch `max_position_embeddings`
_GIB = 2**30


def sliding_windows(config: PreTrainedConfig) -> tuple[int, ...]:
    """Sliding windows of the layers, 0 for full attention.

    Raises:
        ModelError: the engine cannot run such a model; the reason is named.
    """
    text: Any = config.get_text_config(decoder=True)
    reason = _reason_to_refuse(text)
    if reason:
        raise ModelError(
            f"language_model.path: the engine cannot run a model of type {config.model_type!r}: "
            f"{reason}; choose another model"
        )
    window = getattr(text, "sliding_window", None) or 0
    layers = set(getattr(text, "layer_types", None) or ())
    if not layers:
        return (window,)
    return tuple(sorted({window if layer == "sliding_attention" else 0 for layer in layers}))


def require_length(config: PreTrainedConfig, max_length: int) -> None:
    """Make sure that every position a row can reach is one the model knows.

    Raises:
        ModelError: `engine.max_length` goes past the model's positions. A table of learned
            positions would end there; with RoPE the text would get worse without a word.
    """
    limit = _position_limit(config.get_text_config(decoder=True))
    if limit and max_length > limit:
        raise ModelError(
            f"engine.max_length is {max_length}, but the language model (type "
            f"{config.model_type!r}) knows {limit} positions only; set engine.max_length to "
            f"{limit} or less, or choose a model with a longer context"
        )


def require_memory(needed: int, device: torch.device, batch_rows: int, max_length: int) -> None:
    """Make sure that the KV cache's `needed` bytes are free, before they are taken.

    Raises:
        ModelError: they are not.
    """
    available = _available_bytes(device)
    if needed > available:
        fitting = available * batch_rows // needed
        raise ModelError(
            f"the KV cache of engine.batch_rows {batch_rows} x engine.max_length {max_length} "
            f"tokens needs {needed} bytes ({needed / _GIB:.2f} GiB), but {device} has "
            f"{available / _GIB:.2f} GiB available, enough for {fitting} such rows; lower "
            "engine.batch_rows or engine.max_length"
        )


def _reason_to_refuse(text: Any) -> str:
    """Why the engine cannot run a model of this configuration; empty if it might."""
    unknown = sorted(_layer_types(text) - _KNOWN_LAYERS)
    rope_types = {str(part.get("rope_type")) for part in _rope_parts(text)}
    batch_dependent = sorted(rope_types & _BATCH_DEPENDENT_ROPE)
    if _is_stateful(text):
        return (
            "it has recurrent or linear-attention layers, whose state cannot branch into a "
            "draft tree"
        )
    if unknown:
        return f"its layers of type {', '.join(unknown)} cannot attend along a draft tree"
    if batch_dependent:
        return (
            f"its RoPE of type {', '.join(batch_dependent)} looks at the longest row of a batch, "
            "so a row's text would depend on its neighbours"
        )
    if getattr(text, "attn_logit_softcapping", None):
        return "attention soft-capping (attn_logit_softcapping) is not supported"
    if _has_alibi(text):
        return (
            "ALiBi makes attention depend on the distance in memory, which is not the distance "
            "in a draft tree"
        )
    if getattr(text, "add_cross_attention", False) or text.is_encoder_decoder:
        return "it has cross-attention to an encoder, and there is none"
    return ""


def _layer_types(text: Any) -> set[str]:
    named = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    return set(named or ())


def _is_stateful(text: Any) -> bool:
    """Whether layers keep a state that is no list of keys and values."""
    if _layer_types(text) & {"linear_attention", "hybrid", "hybrid_sliding", "conv"}:
        return True
    model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(text), None)
    return bool(getattr(model, "_is_stateful", False))


def _has_alibi(text: Any) -> bool:
    attention = getattr(text, "attn_config", None)  # MPT
    nested = getattr(attention, "alibi", False)
    return text.model_type == "bloom" or bool(getattr(text, "alibi", False) or nested)


def _rope_parts(text: Any) -> list[dict[str, Any]]:
    """RoPE parameters of the model, or of each of its kinds of layers."""
    rope = getattr(text, "rope_parameters", None) or {}
    nested = [part for part in rope.values() if isinstance(part, dict)]
    return nested or [rope]


def _position_limit(text: Any) -> int | None:
    """Longest text the model is made for.

    Linear and YaRN scaling are an addition by the user: in such folders
    `max_position_embeddings` usually still is the length before it (Qwen2.5 says so itself). Where
    each kind of layer has its own scaling (Gemma3) it is the length after it.
    """
    trained: int | None = getattr(text, "max_position_embeddings", None)
    parts = _rope_parts(text)
    if not trained or len(parts) > 1 or parts[0].get("rope_type") not in _ROPE_BEYOND_ITS_TRAINING:
        return trained
    original = parts[0].get("original_max_position_embeddings") or trained
    return max(trained, int(original * (parts[0].get("factor") or 1)))


def _available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    container = _container_headroom(Path("/sys/fs/cgroup"))
    host = _host_headroom(Path("/proc/meminfo"))
    return host if container is None else min(host, container)


def _host_headroom(meminfo: Path) -> int:
    """Memory the system can hand out; where it does not tell, all that it has.

    Not the free pages: they leave out the file cache, which holds the model just read.
    """
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _container_headroom(folder: Path) -> int | None:
    """Memory left under a container's limit (cgroup v2), past which its processes are killed."""
    limit = folder / "memory.max"
    if not limit.is_file() or (most := limit.read_text().strip()) == "max":
        return None
    statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    in_use = int((folder / "memory.current").read_text()) - int(statistics["inactive_file"])
    return max(0, int(most) - in_use)
