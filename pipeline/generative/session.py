"""The histories of a batch of users in a model: keys and values once, shared by all their beams."""

from typing import Any, NamedTuple

import torch

from pipeline.generative.recommender import Recommender

ROOT = -1  # node of the end of a history, the parent of first codes


class Histories(NamedTuple):
    """Token ids of histories, `bos` first, padded at the end."""

    tokens: torch.Tensor  # (users, most tokens) int64
    lengths: torch.Tensor  # (users,) int64, at least 1


class Nodes(NamedTuple):
    """Codes to be scored that hang on other nodes, one level of all users."""

    codes: torch.Tensor  # (users, n) int64
    parents: torch.Tensor  # (users, n) int64, nodes of the session or ROOT
    depth: torch.Tensor  # (users,) int64, codes from the first to these: 1 for first codes


class Session:
    """Scores trees of codes over histories that are computed once.

    Every node ever scored keeps its number, keys and values, so later trees may hang on it. It
    attends to the history and its own ancestors. Memory: 2 x layers x users x (history + nodes) x
    width x bytes per element.
    """

    def __init__(self, model: Recommender, histories: Histories) -> None:
        self.model = model
        self.calls = 0
        self.num_nodes = 0
        self._tokens, self._lengths = histories
        self._cache = _Cache()
        users, most = self._tokens.shape
        steps = torch.arange(most, device=self._tokens.device)
        self._is_history = steps < self._lengths[:, None]  # (users, most)
        # Of every node, itself among them: (users, nodes, nodes).
        self._ancestors = torch.zeros(users, 0, 0, dtype=torch.bool, device=steps.device)
        self._end: torch.Tensor | None = None  # hidden state of the last token of each history
        self._wants_placeholders = False
        self._placeholders: torch.Tensor | None = None
        self._mean: torch.Tensor | None = None  # of all tokens of each history

    @property
    def is_open(self) -> bool:
        """Whether the histories have been computed."""
        return self._end is not None

    @property
    def end(self) -> torch.Tensor:
        """Hidden states of the ends of histories: (users, width)."""
        assert self._end is not None, "no call yet"
        return self._end

    def ask_for_placeholders(self) -> None:
        """Let the first call compute a placeholder for every level too; nothing else sees them."""
        assert not self.is_open, "the first call has been made"
        self._wants_placeholders = True

    @property
    def placeholders(self) -> torch.Tensor:
        """Their hidden states, (users, levels, width)."""
        assert self._placeholders is not None, "not asked for, or no call yet"
        return self._placeholders

    @property
    def mean(self) -> torch.Tensor:
        """Hidden states of histories, the mean over their tokens: (users, width)."""
        assert self._mean is not None, "no call yet"
        return self._mean

    def open(self) -> None:
        """Compute the histories, for who needs them before the first tree: a call."""
        if not self.is_open:
            self.hidden_of([])

    def hidden_of(self, levels: list[Nodes]) -> tuple[list[torch.Tensor], list[int]]:
        """One call of the model: hidden states of every level (users, n, width), and first nodes.

        The first call computes the histories too. Parents are nodes of earlier calls, or of an
        earlier level of this one: column `c` of a level is node `first + c`.
        """
        users, most = self._tokens.shape
        new_history = 0 if self.is_open else most
        firsts = self._register(levels)
        chain = self._chain() if new_history and self._wants_placeholders else []
        self._register(chain)
        counts = [level.codes.shape[1] for level in levels]
        tokens, positions = [], []
        if new_history:
            tokens.append(self._tokens)
            positions.append(torch.arange(most, device=self._tokens.device).expand(users, most))
        for level in [*levels, *chain]:
            token = (level.depth[:, None] - 1) * self.model.num_codes + level.codes
            tokens.append(token)
            positions.append((self._lengths + level.depth - 1)[:, None].expand_as(token))
        hidden = self.model(
            torch.cat(tokens, 1),
            torch.cat(positions, 1),
            self._sees(new_history, sum(counts) + len(chain)),
            self._cache,
        )
        self.calls += 1
        if new_history:
            rows = torch.arange(users, device=hidden.device)
            self._end = hidden[rows, self._lengths - 1]
            past = hidden[:, :most].masked_fill(~self._is_history[..., None], 0)
            self._mean = past.sum(1) / self._lengths[:, None]
        if chain:
            self._placeholders = hidden[:, -len(chain) :]
        return list(hidden[:, new_history:].split([*counts, len(chain)], 1))[:-1], firsts

    def _chain(self) -> list[Nodes]:
        """A placeholder a level, each below the one before."""
        one = torch.ones_like(self._lengths)
        chain = []
        for level, token in enumerate(self.model.placeholders):
            code = one * (token - level * self.model.num_codes)  # makes that token of that level
            parent = one * (self.num_nodes + level - 1 if level else ROOT)
            chain.append(Nodes(code[:, None], parent[:, None], one * (level + 1)))
        return chain

    def narrow(self, rows: torch.Tensor) -> None:
        """Go on with some of the users only."""
        self._tokens, self._lengths = self._tokens[rows], self._lengths[rows]
        self._is_history, self._ancestors = self._is_history[rows], self._ancestors[rows]
        self._end = None if self._end is None else self._end[rows]
        self._placeholders = None if self._placeholders is None else self._placeholders[rows]
        self._mean = None if self._mean is None else self._mean[rows]
        self._cache.narrow(rows)

    def forget_nodes(self) -> None:
        """Keep the histories only."""
        self.num_nodes = 0
        self._ancestors = self._ancestors[:, :0, :0]
        self._cache.crop(len(self.model.prompt) + self._tokens.shape[1])

    def _register(self, levels: list[Nodes]) -> list[int]:
        """Give every node its number and its ancestors; the first number of each level."""
        firsts = []
        for level in levels:
            users, count = level.codes.shape
            first = self.num_nodes
            firsts.append(first)
            known = level.parents.clamp(min=0)[..., None].expand(-1, -1, first)
            own = torch.eye(count, dtype=torch.bool, device=known.device).expand(users, -1, -1)
            if first:
                inherited = self._ancestors.gather(1, known)
                inherited &= (level.parents >= 0)[..., None]
                unseen = inherited.new_zeros(users, first, count)
                before = torch.cat([self._ancestors, unseen], 2)
                self._ancestors = torch.cat([before, torch.cat([inherited, own], 2)], 1)
            else:
                self._ancestors = own.clone()
            self.num_nodes += count
        return firsts

    def _sees(self, new_history: int, added: int) -> torch.Tensor:
        """Mask of a call: (users, new tokens, cached and new tokens) bool."""
        users, most = self._tokens.shape
        history = self._is_history[:, None].expand(-1, added, -1)
        nodes = torch.cat([history, self._ancestors[:, self.num_nodes - added :]], 2)
        if not new_history:
            return nodes
        causal = torch.ones(most, most, dtype=torch.bool, device=nodes.device).tril()
        past = causal & self._is_history[:, None]
        past |= torch.eye(most, dtype=torch.bool, device=nodes.device)  # padding sees itself
        blind = past.new_zeros(users, most, added)
        return torch.cat([torch.cat([past, blind], 2), nodes], 1)


class _Cache:
    """Keys and values by layer, (users, heads, tokens, dim), as transformers asks for them."""

    def __init__(self) -> None:
        self._layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._used: list[int] = []

    def get_seq_length(self, *_: Any) -> int:
        """Asked for by some models; positions are always given, so it decides nothing."""
        return 0

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the keys and values of new tokens; all of the layer's are returned."""
        if layer_idx == len(self._layers):
            room = 2 * key.shape[2]
            self._layers.append((_grown(key, 0, room), _grown(value, 0, room)))
            self._used.append(0)
        used = self._used[layer_idx]
        needed = used + key.shape[2]
        if needed > self._layers[layer_idx][0].shape[2]:
            keys, values = self._layers[layer_idx]
            self._layers[layer_idx] = (
                _grown(keys, used, 2 * needed),
                _grown(values, used, 2 * needed),
            )
        keys, values = self._layers[layer_idx]
        keys[:, :, used:needed], values[:, :, used:needed] = key, value
        self._used[layer_idx] = needed
        return keys[:, :, :needed], values[:, :, :needed]

    def narrow(self, rows: torch.Tensor) -> None:
        """Keep some rows."""
        self._layers = [(keys[rows], values[rows]) for keys, values in self._layers]

    def crop(self, length: int) -> None:
        """Keep the first tokens."""
        self._used = [min(used, length) for used in self._used]


def _grown(old: torch.Tensor, used: int, room: int) -> torch.Tensor:
    """A buffer of `room` tokens that begins with the `used` ones of `old`."""
    users, heads, _, dim = old.shape
    buffer = old.new_empty(users, heads, room, dim)
    buffer[:, :, :used] = old[:, :, :used]
    return buffer
