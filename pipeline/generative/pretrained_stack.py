"""A recommender that begins as a language model: its decoder, and codes as new tokens.

The LM's own words are left out, but for a prompt before every history. So a saved recommender is
complete without the LM's folder.
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from pipeline.decoding_config import LanguageModelSettings
from pipeline.engine.compatibility import sliding_windows
from pipeline.errors import ModelError
from pipeline.generative.recommender import Recommender, make_recommender
from pipeline.generative.session import ROOT, Histories, Nodes, Session
from pipeline.generative_config import RecommenderSettings
from pipeline.language_model import load_model, load_tokenizer
from pipeline.model_identity import model_fingerprint

_NAME = "recommender.backbone"
_SAMPLED = 10_000  # words of the LM that tell the scale of its embeddings
# Distance to what a plain pass gives over the spread of that: rounding makes some 1e-6.
_TOLERANCE = 1e-3


def new_recommender(
    settings: RecommenderSettings, levels: int, num_codes: int, seed: int
) -> Recommender:
    """A recommender to be trained: from the backbone that `settings` name, or from nothing.

    Raises:
        ModelError: there is no usable backbone.
    """
    if settings.backbone is None:
        return make_recommender(settings, levels, num_codes, seed)
    whole, prompt = _load(settings)
    stack: Any = whole.base_model
    _require_fit(stack, len(prompt) + 1 + (settings.history_length + 1) * levels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Recommender(stack, levels, num_codes, settings.dropout, len(prompt))
        _take_embeddings(model, stack, prompt)
    model.float().eval()
    _require_tree_attention(model)
    return model


def backbone_fingerprint(settings: RecommenderSettings) -> str | None:
    """Identity of the files that training begins with."""
    if settings.backbone is None:
        return None
    return model_fingerprint(LanguageModelSettings(path=settings.backbone))


def _load(settings: RecommenderSettings) -> tuple[PreTrainedModel, list[int]]:
    """The causal LM, and token ids of the prompt, behind the token that texts begin with if any."""
    assert settings.backbone is not None
    own = LanguageModelSettings(path=settings.backbone, device="cpu")
    try:
        model = load_model(own)
        sliding_windows(model.config)
        if not settings.prompt:
            return model, []
        words = load_tokenizer(own)
    except ModelError as error:
        raise ModelError(str(error).replace("language_model.path", _NAME)) from error
    prompt: list[int] = words.encode_exactly(settings.prompt).tolist()
    begin = words.tokenizer.bos_token_id
    return model, prompt if begin is None else [begin, *prompt]


def _require_fit(stack: Any, length: int) -> None:
    """Make sure that the LM can read a history of `length` tokens, and all of it at once."""
    text = stack.config.get_text_config(decoder=True)
    limits = [getattr(text, "max_position_embeddings", None), *sliding_windows(stack.config)]
    limit = min(filter(None, limits), default=length)
    if limit < length:
        raise ModelError(
            f"{_NAME}: prompt, history and one item more have {length} tokens, but the model (type "
            f"{text.model_type!r}) attends to {limit} at most; lower recommender.history_length, "
            "shorten recommender.prompt or choose another model"
        )


@torch.no_grad()
def _take_embeddings(model: Recommender, stack: Any, prompt: list[int]) -> None:
    """Embed the prompt, draw codes as if they were words too, and let the words go."""
    table: nn.Embedding = stack.get_input_embeddings()
    if table.embedding_dim != model.width or max(prompt, default=0) >= table.num_embeddings:
        raise ModelError(
            f"{_NAME}: a table of {table.num_embeddings} embeddings of {table.embedding_dim} does "
            f"not fit the tokenizer or the width of {model.width}; choose another model"
        )
    # Through the module, not from its weights: some scale what they look up.
    model.prompt.copy_(table(torch.tensor(prompt, dtype=torch.int64)))
    step = max(1, table.num_embeddings // _SAMPLED)
    words = table(torch.arange(0, table.num_embeddings, step)).float()
    tokens = model.tokens.weight
    tokens.copy_(words.mean(0) + words.std(0) * torch.randn(tokens.shape))
    table.weight = nn.Parameter(table.weight[:1].clone())
    table.num_embeddings, table.padding_idx = 1, None
    text = stack.config.get_text_config(decoder=True)
    text.vocab_size = 1
    text.pad_token_id = text.bos_token_id = text.eos_token_id = None


@torch.inference_mode()
def _require_tree_attention(model: Recommender) -> None:
    """Make sure that siblings do not see each other, in a first call and behind a cached history.

    Raises:
        ModelError: hidden states are not those of plain passes, branch by branch.
    """
    codes = [0, min(1, model.num_codes - 1)]
    history = torch.tensor([[model.bos, *range(0, model.bos, model.num_codes)]])
    size = torch.tensor([history.shape[1]])
    siblings = Nodes(torch.tensor([codes]), torch.tensor([[ROOT, ROOT]]), torch.tensor([1]))
    wanted = torch.stack([_plain(model, [*history[0].tolist(), code])[-1] for code in codes])
    for is_cached in (False, True):
        session = Session(model, Histories(history, size))
        try:
            if is_cached:
                session.hidden_of([])
            got = session.hidden_of([siblings])[0][0][0]
        except (TypeError, AttributeError, ValueError, LookupError, RuntimeError) as error:
            raise ModelError(
                f"{_NAME}: the model does not take masks, positions and a cache as they are given "
                f"({type(error).__name__}: {error}); choose another model"
            ) from error
        distance = float((got - wanted).norm() / wanted.std().clamp(min=1e-30))
        if not distance <= _TOLERANCE * wanted.numel() ** 0.5:  # NaN must not pass
            raise ModelError(
                f"{_NAME}: on a small tree of codes the model computes something else than on "
                f"each branch alone ({distance:.2g}); choose another model"
            )


def _plain(model: Recommender, tokens: list[int]) -> torch.Tensor:
    """Hidden states of one causal pass, (tokens, width)."""
    size = len(tokens)
    sees = torch.ones(1, size, size, dtype=torch.bool).tril()
    return model(torch.tensor([tokens]), torch.arange(size)[None], sees)[0]
