"""NEZHA (WWW'26): the model reads a history once, its draft head does the whole beam search.

Nothing is verified by the model. What makes a drafted id valid is either that every prefix is one
of an item's (the released code) or a look at complete ids in a set of numbers (the paper).
"""

import torch

from pipeline.generative.beam_engine import Found
from pipeline.generative.beams import Beams, best, extend, joint_scores, root_beams
from pipeline.generative.code_tree import NONE
from pipeline.generative.drafters import Requests
from pipeline.generative.membership import Membership
from pipeline.generative.placeholder_head import PlaceholderHead
from pipeline.generative.recommender import Recommender
from pipeline.generative.session import Session
from pipeline.generative.trie_tensors import TrieTensors


class HeadBeams:
    """One model, its head and a trie; any batch of users."""

    def __init__(
        self, model: Recommender, head: PlaceholderHead, trie: TrieTensors, width: int
    ) -> None:
        """`width` beams, and so many ids are found.

        A trie that is a constraint allows prefixes of items only. With any other nothing is
        forbidden, and complete ids are looked up: who is no item has the node NONE.
        """
        self.model, self.head, self.trie, self.width = model, head, trie, width
        self._members = None if trie.is_constraint else Membership(trie)

    @torch.inference_mode()
    def search(self, requests: Requests) -> Found:
        """Find `width` ids for everybody in one call of the model."""
        trie = self.trie
        if requests.excluded is not None:
            trie = trie.without(requests.excluded)
        session = Session(self.model, requests.histories)
        session.ask_for_placeholders()
        session.hidden_of([])
        beams = self._draft(session, trie)
        nodes = self._looked_up(beams, trie) if self._members else beams.nodes
        one = torch.ones_like(beams.depth)
        return Found(
            beams.codes, nodes, beams.scores, one, one * session.num_nodes, torch.zeros_like(one)
        )

    def _draft(self, session: Session, trie: TrieTensors) -> Beams:
        """All levels, by the head alone."""
        users, width = session.end.shape
        beams = root_beams(users, trie.levels, session.end.device)
        states = session.end[:, None]  # (users, k, width)
        for level in range(trie.levels):
            log_probs = self.head.log_probs(level, states, session.placeholders[:, level, None])
            children = self._children(beams, trie)
            choice = best(joint_scores(beams.scores, log_probs, children, trie), self.width)
            beams = extend(beams, choice, children, beams.parents).trimmed()
            if level < trie.levels - 1:
                rows, codes = (own[:, : beams.width] for own in (choice.rows, choice.codes))
                own = states.gather(1, rows[..., None].expand(-1, -1, width))
                states = self.head.advance(level, own, codes)
        return beams.padded(self.width)

    def _children(self, beams: Beams, trie: TrieTensors) -> torch.Tensor:
        """Nodes that codes lead to, (users, k, codes); none is known where none is asked for."""
        if trie.is_constraint:
            return trie.children(beams.nodes)
        none = beams.nodes.new_full((1, 1, 1), NONE)
        return none.expand(*beams.nodes.shape, trie.num_codes)

    def _looked_up(self, beams: Beams, trie: TrieTensors) -> torch.Tensor:
        """Leaves of complete ids that may be recommended, (users, k)."""
        assert self._members is not None
        leaves = self._members.leaves(beams.codes).masked_fill(beams.scores == -torch.inf, NONE)
        if trie.excluded is None:
            return leaves
        is_out = trie.excluded.gather(1, leaves.clamp(min=0))
        return leaves.masked_fill(is_out, NONE)
