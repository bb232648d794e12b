"""How long the longest prompts of a catalog are, against `prompts.max_tokens`; what they say."""

from typing import Any

from jobs.sampled_prompts import likely_tokens, longest_prompts
from pipeline.catalog import Catalog
from pipeline.config import PromptSettings, RunConfig
from pipeline.decoding_config import LanguageModelSettings
from pipeline.errors import ModelError
from pipeline.proposed_settings import propose_max_tokens

_SAMPLE = 100  # prompts of a kind


def prompt_lengths(catalog: Catalog, config: RunConfig, has_model: bool) -> dict[str, Any]:
    """Of a sample of long prompts: tokens, and one of each kind.

    They are counted by the model's tokenizer if that can be loaded at once; a GGUF file that has
    not been converted takes half a minute, so there they are estimated.
    """
    from pipeline.language_model import loads_at_once  # torch takes seconds to import

    sample = longest_prompts(catalog, config.framework, config.prompts, _SAMPLE)
    texts = {kind: [one.text for one in prompts] for kind, prompts in sample.items()}
    is_counted = has_model and loads_at_once(config.language_model)
    model = config.language_model if is_counted else None
    counts = {kind: _counted(some, model) for kind, some in texts.items()}
    limit = config.prompts.max_tokens
    return {
        "limit": limit,
        "counted_by": "the model's tokenizer" if is_counted else "an estimate",
        "measured": sum(map(len, counts.values())),
        "longest": {kind: max(some, default=0) for kind, some in counts.items()},
        "too_long": sum(tokens > limit for some in counts.values() for tokens in some),
        "examples": {kind: some[0] for kind, some in texts.items() if some},
    }


def longest_prompt(
    catalog: Catalog, framework: str, settings: PromptSettings, model: LanguageModelSettings
) -> tuple[int, bool]:
    """Tokens of the longest as `prompt_lengths` has them, and whether a tokenizer counted them."""
    from pipeline.language_model import loads_at_once, require_model_files  # torch takes seconds

    sample = longest_prompts(catalog, framework, settings, _SAMPLE)
    texts = [one.text for some in sample.values() for one in some]
    try:
        require_model_files(model, "language_model")
        if loads_at_once(model):
            return max(_counted(texts, model), default=0), True
    except ModelError:  # it is not here yet
        pass
    return max(_counted(texts, None), default=0), False


def length_warnings(lengths: dict[str, Any], config: RunConfig) -> list[str]:
    """The setting to change, if prompts are too long for it."""
    if not lengths["too_long"]:
        return []
    tokens = propose_max_tokens(max(lengths["longest"].values()))
    length = tokens + config.generation.max_new_tokens + config.engine.draft_nodes
    return [
        f"{lengths['too_long']} of {lengths['measured']} long prompts have more than "
        f"prompts.max_tokens {lengths['limit']} tokens (by {lengths['counted_by']}), and would be "
        f"error rows; set prompts.max_tokens: {tokens} and engine.max_length: {length}, or lower "
        "prompts.history_limit"
    ]


def _counted(texts: list[str], model: LanguageModelSettings | None) -> list[int]:
    """By the tokenizer of a model, or an estimate."""
    if model is None or not texts:
        return [likely_tokens(text) for text in texts]
    from pipeline.language_model import load_tokenizer

    return [len(ids) for ids in load_tokenizer(model).encode_all(texts)]
