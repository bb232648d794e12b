"""Drafts from a run's pools for vLLM: its `custom_class` proposer, token ids in, chains out.

vLLM makes a `PoolProposer` with its own config and asks it once a step. What it hands over are the
token ids of its rows and how many each row has, no names of requests: a row is known again by the
text that it had. Nothing of vLLM is imported. `pipeline/docs/vllm.md` says how to plug it in.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.engine.types import ROOT, DraftTree, Request
from pipeline.errors import ConfigError, DataError
from pipeline.token_identity import key_of_ids, tokenizer_fingerprint
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.pool import PoolSet
from retrieval_pools.pool_folder import open_pools

SECTION = "laser"  # of vLLM's additional_config
GROUPS = "groups.json"
_FLOOR = 0.1
_USE = ("own", "group", "global")
_WIDTH = 4  # nodes of a tree for each token of the chain that is taken from it
_TAIL = 16  # tokens by which rows are looked for, before all of them are compared
_STALE = 64  # steps that a row may sit out before it is forgotten
_ROOM = 512  # tokens that a row may say, as far as is known of it; twice as many when they are said


@dataclass
class _Row:
    """A row of vLLM's batch, as the drafter sees it."""

    request: Request
    tokens: np.ndarray  # prompt and output, (tokens,) int32
    seen: int  # step


class ChainDrafts:
    """What a row is likely to say next, as one chain of token ids."""

    def __init__(
        self,
        pools: PoolSet,
        most_tokens: int,
        max_length: int,
        groups: Mapping[str, str] | None = None,
        floor: float = _FLOOR,
    ) -> None:
        """Draft at most `most_tokens`, none of them beyond `max_length` tokens of a row.

        `groups` names the pool of a prompt by `key_of_ids` of its token ids; all other rows draft
        from what they say themselves and from the global pool. A token is left out where it is less
        likely than `floor` that it and all before it are accepted.
        """
        self._drafter = PoolDrafter(pools, most_tokens, _USE, floor)
        self._most_tokens, self._max_length = most_tokens, max_length
        self._groups = groups or {}
        self._rows: dict[bytes, list[_Row]] = {}  # by their length and last tokens
        self._step = 0

    def propose(
        self, sampled: Sequence[Sequence[int]], lengths: np.ndarray, token_ids: np.ndarray
    ) -> list[list[int]]:
        """A chain for every row; none for a row that has sampled nothing, as in its prompt's midst.

        `token_ids` (rows or more, max length) holds all of a row's tokens, those sampled just now
        at their end; `lengths` (rows or more,) says how many there are.
        """
        self._step += 1
        places, rows = [], []
        for place, new in enumerate(sampled):
            length = int(lengths[place])
            if len(new) and length + 1 < self._max_length:
                tokens = np.array(token_ids[place, :length], np.int32)
                places.append(place)
                rows.append(self._known(tokens, len(new)))
        self._forget()
        chains: list[list[int]] = [[] for _ in sampled]
        trees = self._drafter.propose(rows, _WIDTH * self._most_tokens)
        for place, row, tree in zip(places, rows, trees, strict=True):
            room = self._max_length - len(row.tokens) - 1
            chains[place] = best_chain(tree)[: min(room, self._most_tokens)]
        return chains

    def _known(self, tokens: np.ndarray, new: int) -> _Row:
        """The row that had these tokens but for the `new` last ones, or another."""
        before = tokens[: len(tokens) - new]
        candidates = self._rows.get(_mark(before), [])
        for number, row in enumerate(candidates):
            if row.seen < self._step and np.array_equal(row.tokens, before):
                del candidates[number]
                break
        else:
            group = self._groups.get(key_of_ids(before), "")
            row = _Row(Request("", before, _ROOM, group), before, 0)
        said = len(tokens) - len(row.request.prompt_ids)
        if said + self._most_tokens >= row.request.max_new_tokens:  # to the drafter another row
            row = replace(row, request=replace(row.request, max_new_tokens=2 * said + _ROOM))
        row.tokens, row.seen = tokens, self._step
        self._rows.setdefault(_mark(tokens), []).append(row)
        return row

    def _forget(self) -> None:
        """Drop rows that have ended."""
        for mark in list(self._rows):
            kept = [row for row in self._rows[mark] if self._step - row.seen < _STALE]
            if kept:
                self._rows[mark] = kept
            else:
                del self._rows[mark]


def _mark(tokens: np.ndarray) -> bytes:
    """What rows are looked for by: their length and their last tokens."""
    return len(tokens).to_bytes(8) + tokens[-_TAIL:].tobytes()


def best_chain(tree: DraftTree) -> list[int]:
    """Token ids of the path of a tree that is likely to have the most tokens accepted."""
    if not len(tree):
        return []
    worth = tree.survival.astype(np.float64)  # summed along a path: the tokens to be expected of it
    for node, parent in enumerate(tree.parents):
        if parent != ROOT:
            worth[node] += worth[parent]
    node, chain = int(worth.argmax()), []
    while node != ROOT:
        chain.append(int(tree.token_ids[node]))
        node = int(tree.parents[node])
    return chain[::-1]


class PoolProposer:
    """What `speculative_config.model` of vLLM names; see `pipeline/docs/vllm.md`.

    `additional_config["laser"]["drafts"]` is a folder with pools, and `groups.json` if rows are to
    draft from the pool of their group; beside it may stand `floor`, see `ChainDrafts`.

    Raises:
        ConfigError: `additional_config` does not name the folder.
        DataError: they are damaged, or hold token ids of another tokenizer than the model's.
    """

    def __init__(self, vllm_config: Any) -> None:
        folder, floor = _settings(vllm_config.additional_config)
        model = vllm_config.model_config
        tokenizer = _load_tokenizer(str(model.tokenizer or model.model))
        fingerprint = tokenizer_fingerprint(tokenizer)
        self._drafts = ChainDrafts(
            open_pools(folder, fingerprint),
            int(vllm_config.speculative_config.num_speculative_tokens),
            int(model.max_model_len),
            read_groups(folder / GROUPS, fingerprint) if (folder / GROUPS).exists() else None,
            floor,
        )

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft token ids for every row of the batch, as vLLM asks for them after a step."""
        lengths, token_ids = np.asarray(num_tokens_no_spec), np.asarray(token_ids_cpu)
        return self._drafts.propose(sampled_token_ids, lengths, token_ids)

    def load_model(self, *arguments: Any, **options: Any) -> None:
        """Nothing to load."""


def save_groups(path: Path, groups: Mapping[str, str], fingerprint: str) -> None:
    """Write which group a prompt belongs to: {`key_of_ids`: group}, and the tokenizer."""
    path.write_text(json.dumps({"tokenizer": fingerprint, "groups": dict(groups)}), "utf-8")


def read_groups(path: Path, fingerprint: str) -> dict[str, str]:
    """Which group a prompt belongs to, by `key_of_ids`.

    Raises:
        DataError: the file is missing, damaged, or of another tokenizer.
    """
    try:
        told = json.loads(path.read_text("utf-8"))
        groups, made_with = dict(told["groups"]), told["tokenizer"]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error}); run export_drafts again") from error
    if made_with != fingerprint:
        raise DataError(
            f"{path} is of prompts in tokens of tokenizer {made_with}, the model has "
            f"{fingerprint}; serve the model that the run was written with"
        )
    return groups


def _settings(additional: Any) -> tuple[Path, float]:
    """Folder and floor that vLLM's additional_config names."""
    given = additional.get(SECTION) if isinstance(additional, Mapping) else None
    if (
        not isinstance(given, Mapping)
        or not isinstance(given.get("drafts"), str)
        or not set(given) <= {"drafts", "floor"}
        or type(floor := given.get("floor", _FLOOR)) not in (int, float)
        or not 0.0 < floor < 1.0
    ):
        raise ConfigError(
            f'additional_config must hold "{SECTION}": {{"drafts": <folder of export_drafts>}}, '
            f'and may add "floor", a number above 0 and below 1; it holds {given!r}'
        )
    return Path(given["drafts"]), float(floor)


def _load_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
