"""Several drafters at once: what any of them guesses is verified, and nothing twice."""

import torch

from pipeline.generative.beams import Beams, Draft, Level
from pipeline.generative.code_tree import NONE
from pipeline.generative.drafters import Drafter, Proposer, Requests
from pipeline.generative.session import Session
from pipeline.generative.trie_tensors import TrieTensors

_NOTHING = torch.iinfo(torch.int64).max  # key of a column that is not real


class UnionDraft:
    """The trees of several drafters, merged. For verification that keeps the best: no `log_q`."""

    def __init__(self, drafters: list[Drafter]) -> None:
        """Of the same model and trie."""
        self.drafters = drafters

    def begin(self, requests: Requests, trie: TrieTensors) -> "_Union":
        """See `Drafter`."""
        return _Union([drafter.begin(requests, trie) for drafter in self.drafters])


class _Union:
    def __init__(self, proposers: list[Proposer]) -> None:
        self._proposers = proposers

    def propose(self, session: Session, beams: Beams, trie: TrieTensors) -> Draft:
        """See `Proposer`."""
        drafts = [proposer.propose(session, beams, trie) for proposer in self._proposers]
        return merged([draft.levels for draft in drafts if draft.levels], beams, trie.num_codes)

    def narrow(self, rows: torch.Tensor) -> None:
        """See `Proposer`."""
        for proposer in self._proposers:
            proposer.narrow(rows)


def merged(drafts: list[list[Level]], beams: Beams, num_codes: int) -> Draft:
    """One tree of all that is in any: levels of equal depth are merged.

    Args:
        drafts: levels of each tree, none empty.
        beams: that all the trees hang on.
        num_codes: of a level.
    """
    columns = torch.arange(beams.width, device=beams.depth.device).expand(len(beams.depth), -1)
    above = [columns] * len(drafts)  # of each tree: where its columns are in the merged level
    merged_levels: list[Level] = []
    for depth in range(max(map(len, drafts), default=0)):
        going = [number for number, levels in enumerate(drafts) if depth < len(levels)]
        drafts, above = [drafts[number] for number in going], [above[number] for number in going]
        own = [levels[depth] for levels in drafts]
        keys = [_keys(level, place, num_codes) for level, place in zip(own, above, strict=True)]
        nodes = torch.cat([level.nodes for level in own], 1)
        level, place = _without_repeats(torch.cat(keys, 1), nodes, num_codes)
        merged_levels.append(level)
        above = list(place.split([key.shape[1] for key in keys], 1))
    return Draft(merged_levels)


def _keys(level: Level, above: torch.Tensor, num_codes: int) -> torch.Tensor:
    """The same number for the same code below the same column of the merged level above."""
    keys = above.gather(1, level.parents) * num_codes + level.codes
    return keys.masked_fill(~level.is_real, _NOTHING)


def _without_repeats(
    keys: torch.Tensor, nodes: torch.Tensor, num_codes: int
) -> tuple[Level, torch.Tensor]:
    """A level with every key once, and the column that each of `keys` (users, n) is there."""
    keys, order = keys.sort(dim=1)
    is_new = keys != _NOTHING
    is_new[:, 1:] &= keys[:, 1:] != keys[:, :-1]
    column = (is_new.cumsum(1) - 1).clamp(min=0)
    most = int(is_new.sum(1).max())
    goes_to = torch.where(is_new, column, most)  # the rest into a column that is cut off

    def kept(values: torch.Tensor, empty: int) -> torch.Tensor:
        row = values.new_full((len(values), most + 1), empty)
        return row.scatter(1, goes_to, values)[:, :most]

    found = kept(keys, _NOTHING)
    is_real = found != _NOTHING
    found = found.masked_fill(~is_real, 0)
    nodes = kept(nodes.gather(1, order), NONE)
    level = Level(found % num_codes, found // num_codes, nodes, is_real)
    return level, torch.zeros_like(order).scatter(1, order, column)
