"""A decoder-only model over semantic IDs: histories in, log-probabilities of the next code out.

The stack of layers is any causal LM's of transformers, unmodified: a small Llama trained from
scratch, or a pretrained one. Codes have embeddings of their own, and every level an output head.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn
from transformers import AutoConfig, AutoModel, LlamaConfig, PreTrainedModel

from pipeline.errors import DataError
from pipeline.generative_config import RecommenderSettings

_SHAPE, _STACK, _WEIGHTS = "shape.json", "stack", "model.safetensors"


class Recommender(nn.Module):
    """Tokens: code `c` of level `l` is `l * num_codes + c`; then `bos`; then a placeholder a level.

    A placeholder stands where the code of its level would: NEZHA's head reads what the model makes
    of it, and all levels come out of one pass.
    """

    prompt: torch.Tensor  # (tokens, width), embedded: stands before everything, and all see it

    def __init__(
        self,
        stack: PreTrainedModel,
        levels: int,
        num_codes: int,
        dropout: float = 0.0,
        prompt_length: int = 0,
    ) -> None:
        """`stack` maps embedded tokens to hidden states and attends as its 4-D mask says."""
        super().__init__()
        self.levels, self.num_codes = levels, num_codes
        self.bos = levels * num_codes
        self.width = int(_text_config(stack).hidden_size)
        self.stack = stack
        self.tokens = nn.Embedding(self.bos + 1 + levels, self.width)
        self.heads = nn.Parameter(torch.empty(levels, num_codes, self.width))
        self.dropout = nn.Dropout(dropout)
        prompt = torch.zeros(prompt_length, self.width)
        self.register_buffer("prompt", prompt, persistent=prompt_length > 0)
        for weights in (self.tokens.weight, self.heads):
            nn.init.normal_(weights, std=0.02)

    @property
    def placeholders(self) -> range:
        """Tokens that stand for a code not known yet, level by level."""
        return range(self.bos + 1, self.bos + 1 + self.levels)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.heads.device

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, sees: torch.Tensor, cache: Any = None
    ) -> torch.Tensor:
        """Hidden states (rows, n, width).

        Args:
            tokens: (rows, n) int64.
            positions: (rows, n) int64.
            sees: which of the cached tokens and of its own each may attend to,
                (rows, n, cached + n) bool; each sees itself at least.
            cache: keys and values of earlier calls; takes those of this one.
        """
        embedded = self.dropout(self.tokens(tokens))
        if len(self.prompt):
            embedded, positions, sees = self._behind_prompt(embedded, positions, sees)
        output = self.stack(
            inputs_embeds=embedded,
            position_ids=positions,
            attention_mask=sees[:, None],  # 4-D: passed on as it is
            cache=cache,
            use_cache=cache is not None,
        )
        return self.dropout(output.last_hidden_state[:, -tokens.shape[1] :])

    def _behind_prompt(
        self, embedded: torch.Tensor, positions: torch.Tensor, sees: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Arguments of the stack with the prompt before them; the first call computes it too."""
        size, (rows, new, seen) = len(self.prompt), sees.shape
        positions = positions + size
        sees = torch.cat([sees.new_ones(rows, new, size), sees], 2)
        if seen > new:
            return embedded, positions, sees
        embedded = torch.cat([self.prompt.expand(rows, -1, -1), embedded], 1)
        own = torch.arange(size, device=positions.device)
        causal = sees.new_ones(size, size + new).tril().expand(rows, -1, -1)
        positions = torch.cat([own.expand(rows, -1), positions], 1)
        return embedded, positions, torch.cat([causal, sees], 1)

    def log_probs(self, hidden: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        """Of the codes that follow, (rows, n, num_codes) float32.

        Args:
            hidden: (rows, n, width).
            level: of the codes asked for, one for all tokens of a row: (rows,) int64.
        """
        heads = self.heads[level]  # (rows, num_codes, width)
        return torch.log_softmax(torch.bmm(hidden, heads.mT).float(), dim=-1)

    def save(self, folder: Path) -> None:
        """Write shape, configuration of the stack and weights; no pickle."""
        folder.mkdir(parents=True, exist_ok=True)
        _config_of(self.stack).save_pretrained(folder / _STACK)
        shape = {
            "levels": self.levels,
            "num_codes": self.num_codes,
            "dropout": self.dropout.p,
            "prompt_length": len(self.prompt),
        }
        (folder / _SHAPE).write_text(json.dumps(shape))
        save_model(self, str(folder / _WEIGHTS))


def make_recommender(
    settings: RecommenderSettings, levels: int, num_codes: int, seed: int
) -> Recommender:
    """An untrained Llama of the size that `settings` give; the global random state stays."""
    config = LlamaConfig(
        vocab_size=1,  # its own embeddings are not used
        bos_token_id=None,
        eos_token_id=None,
        hidden_size=settings.hidden_dim,
        intermediate_size=round(settings.hidden_dim * 8 / 3 / 8) * 8,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=(settings.history_length + 1) * levels + 1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stack = AutoModel.from_config(config, attn_implementation="sdpa")
        return Recommender(stack, levels, num_codes, settings.dropout)


def load_recommender(folder: Path, device: torch.device | str = "cpu") -> Recommender:
    """Read what `Recommender.save` wrote, in evaluation mode.

    Raises:
        DataError: something is missing or damaged.
    """
    try:
        shape = json.loads((folder / _SHAPE).read_text())
        config = AutoConfig.from_pretrained(folder / _STACK)
        stack = AutoModel.from_config(config, attn_implementation="sdpa")
        model = Recommender(stack, **shape)
        load_model(model, str(folder / _WEIGHTS))
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise DataError(
            f"{folder} holds no usable recommender ({error}); move it away and run again"
        ) from error
    return model.to(device).eval()


def _config_of(stack: PreTrainedModel) -> Any:
    return stack.config


def _text_config(stack: PreTrainedModel) -> Any:
    return _config_of(stack).get_text_config(decoder=True)
