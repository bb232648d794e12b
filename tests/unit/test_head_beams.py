"""NEZHA's beam search and its head as a drafter, against plain loops over beams."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.errors import DataError
from pipeline.generative.beam_engine import BeamEngine
from pipeline.generative.beams import root_beams
from pipeline.generative.code_tree import NONE
from pipeline.generative.drafters import ExhaustiveDraft, NoDraft, Requests
from pipeline.generative.head_beams import HeadBeams
from pipeline.generative.head_draft import HeadDraft
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.membership import Membership
from pipeline.generative.placeholder_head import make_placeholder_head
from pipeline.generative.recommender import make_recommender
from pipeline.generative.session import Histories, Session
from pipeline.generative.trie_tensors import trie_tensors
from pipeline.generative.union_draft import UnionDraft
from pipeline.generative.verification import StrictTopK
from pipeline.generative_config import RecommenderSettings

LEVELS, CODES, ITEMS, WIDTH = 4, 4, 90, 16
SETTINGS = RecommenderSettings(hidden_dim=WIDTH, layers=2, heads=2, history_length=4)
LENGTHS = [4, 0, 2, 1, 3]


def a_model(seed=0):
    model = make_recommender(SETTINGS, LEVELS, CODES, seed).eval()
    for weights in model.stack.parameters():
        weights.data *= 10 if weights.dim() > 1 else 1  # attention has a say
    generator = torch.Generator().manual_seed(seed)
    for weights in (model.heads, model.tokens.weight):
        weights.data = torch.randn(weights.shape, generator=generator)
    return model


def a_head():
    head = make_placeholder_head(LEVELS, CODES, WIDTH, seed=1).eval()
    head.heads.data *= 20  # far from uniform
    head.bias.data.normal_(generator=torch.Generator().manual_seed(2))
    return head


def a_trie(items=ITEMS, seed=0):
    every = np.stack(np.unravel_index(np.arange(CODES**LEVELS), [CODES] * LEVELS), 1)
    codes = np.random.default_rng(seed).permutation(every)[:items]
    return ItemTrie(np.arange(items), codes, np.ones(items, bool)), codes


def requests(codes, lengths=LENGTHS, excluded=None):
    """Users with so many items in their histories."""
    rng = np.random.default_rng(0)
    most = max(lengths)
    items = np.full((len(lengths), most), -1)
    tokens = np.full((len(lengths), 1 + most * LEVELS), LEVELS * CODES)
    for user, length in enumerate(lengths):
        items[user, :length] = rng.integers(0, len(codes), length)
        own = codes[items[user, :length]] + np.arange(LEVELS) * CODES
        tokens[user, 1 : 1 + length * LEVELS] = own.ravel()
    spans = torch.tensor([1 + length * LEVELS for length in lengths])
    histories = Histories(torch.from_numpy(tokens), spans)
    return Requests(histories, torch.from_numpy(items), torch.arange(len(lengths)), excluded)


@torch.inference_mode()
def plain_states(model, tokens):
    """h_0 to h_L of one user: one pass of history and placeholders."""
    tokens = torch.cat([tokens, torch.tensor([*model.placeholders])])
    size = len(tokens)
    sees = torch.ones(1, size, size, dtype=torch.bool).tril()
    return model(tokens[None], torch.arange(size)[None], sees)[0, -LEVELS - 1 :]


def head_state(head, state, codes):
    """The head's state after some codes."""
    for level, code in enumerate(codes):
        inner = head.from_code[level] @ head.codes[level][code] + head.bias[level]
        state = torch.tanh(inner + head.from_state[level] @ state)
    return state


@torch.inference_mode()
def plain_step(head, states, ids, beams, level):
    """Beam after beam, code after code: all that may follow, the best first; any if no `ids`."""
    prefixes = {tuple(own[: level + 1]) for own in ids.tolist()}
    found = []
    for codes, score, state in beams:
        log_probs = torch.log_softmax(head.heads[level] @ (states[level + 1] + state), 0)
        for code in range(CODES):
            if len(ids) and (*codes, code) not in prefixes:
                continue
            ahead = None
            if level < LEVELS - 1:
                inner = head.from_code[level] @ head.codes[level][code] + head.bias[level]
                ahead = torch.tanh(inner + head.from_state[level] @ state)
            found.append(((*codes, code), score + float(log_probs[code]), ahead))
    return sorted(found, key=lambda beam: -beam[1])


def plain_search(model, head, ids, tokens, width):
    states = plain_states(model, tokens)
    beams = [((), 0.0, states[0])]
    for level in range(LEVELS):
        beams = plain_step(head, states, ids, beams, level)[:width]
    return [(codes, score) for codes, score, _ in beams]


@pytest.mark.parametrize("is_constraint", [True, False])
@pytest.mark.parametrize("width", [1, 4, 25, 300])
def test_lists_are_those_of_a_plain_loop(width, is_constraint):
    model, head, (trie, codes) = a_model(), a_head(), a_trie()
    batch = requests(codes)
    edges = trie_tensors(trie, CODES, "cpu", is_constraint)
    found = HeadBeams(model, head, edges, width).search(batch)
    assert found.codes.shape == (len(LENGTHS), width, LEVELS)
    assert found.calls.tolist() == [1] * len(LENGTHS)
    for row, length in enumerate(batch.histories.lengths.tolist()):
        tokens = batch.histories.tokens[row, :length]
        allowed = codes if is_constraint else codes[:0]
        wanted = plain_search(model, head, allowed, tokens, width)
        count = len(wanted)
        assert found.codes[row, :count].tolist() == [list(own) for own, _ in wanted]
        np.testing.assert_allclose(found.scores[row, :count], [s for _, s in wanted], atol=1e-4)
        assert (found.scores[row, count:] == -torch.inf).all()
        is_item = trie.contains(found.codes[row, :count].numpy())
        assert (found.nodes[row, :count] != NONE).tolist() == is_item.tolist()


def test_without_a_constraint_the_valid_share_is_counted_and_the_rest_left_out():
    model, head, (trie, codes) = a_model(), a_head(), a_trie()
    edges = trie_tensors(trie, CODES, "cpu", is_constraint=False)
    found = HeadBeams(model, head, edges, CODES**LEVELS).search(requests(codes))
    assert (found.nodes != NONE).float().mean(1).tolist() == [ITEMS / CODES**LEVELS] * 5
    is_item = found.nodes != NONE
    constrained = HeadBeams(model, head, trie_tensors(trie, CODES, "cpu"), ITEMS)
    wanted = constrained.search(requests(codes))
    assert torch.equal(found.codes[is_item], wanted.codes.flatten(0, 1))
    assert torch.equal(found.nodes[is_item], wanted.nodes.flatten())
    torch.testing.assert_close(found.scores[is_item], wanted.scores.flatten())


@pytest.mark.parametrize("is_constraint", [True, False])
def test_excluded_items_are_not_found(is_constraint):
    model, head, (trie, codes) = a_model(), a_head(), a_trie()
    edges = trie_tensors(trie, CODES, "cpu", is_constraint)
    beams = HeadBeams(model, head, edges, CODES**LEVELS)
    whole = items_of(beams.search(requests(codes)))
    excluded = torch.zeros(len(LENGTHS), ITEMS, dtype=torch.bool)
    excluded[0, whole[0][:7] - trie.first_leaf] = True
    rest = items_of(beams.search(requests(codes, excluded=excluded)))
    assert rest[0].tolist() == whole[0][7:].tolist()
    assert rest[1].tolist() == whole[1].tolist()


def items_of(found):
    """Leaves of each user's items, in order."""
    is_item = (found.nodes != NONE) & (found.scores > -torch.inf)
    return [own[is_real] for own, is_real in zip(found.nodes, is_item, strict=True)]


def test_membership_is_that_of_the_trie():
    trie, codes = a_trie()
    members = Membership(trie_tensors(trie, CODES, "cpu"))
    every = torch.cartesian_prod(*[torch.arange(-1, CODES + 2)] * LEVELS)
    leaves = members.leaves(every)
    assert ((leaves != NONE).numpy() == trie.contains(every.numpy())).all()
    items = trie.items_at(leaves[leaves != NONE].numpy(), 1)[:, 0]
    assert (codes[items] == every[leaves != NONE].numpy()).all()


def test_ids_that_overflow_an_integer_are_refused():
    codes = np.array([[2**16 - 1] * 4, [0] * 4])
    trie = ItemTrie(np.arange(2), codes, np.ones(2, bool))
    with pytest.raises(DataError, match="do not fit 64 bits"):
        Membership(trie_tensors(trie, 2**16, "cpu"))


DRAFTERS = [
    lambda head: HeadDraft(head, 1),
    lambda head: HeadDraft(head, 6, most_first=0),
    lambda head: HeadDraft(head, 12),
    lambda head: HeadDraft(head, 300),
    lambda head: UnionDraft([HeadDraft(head, 5), ExhaustiveDraft(20)]),
    lambda head: UnionDraft([ExhaustiveDraft(8), HeadDraft(head, 5), HeadDraft(head, 9)]),
]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("width", [1, 4, 25, 120])
def test_verified_drafts_change_no_list(drafter, width):
    model, head, (trie, codes) = a_model(), a_head(), a_trie()
    edges, batch = trie_tensors(trie, CODES, "cpu"), requests(codes)
    plain, drafted = (
        BeamEngine(model, edges, one, StrictTopK(), width).search(batch)
        for one in (NoDraft(), drafter(head))
    )
    found = plain.scores > -torch.inf
    assert (found == (drafted.scores > -torch.inf)).all()
    assert torch.equal(plain.codes[found], drafted.codes[found])
    torch.testing.assert_close(plain.scores, drafted.scores, atol=1e-4, rtol=0)
    assert (drafted.calls <= plain.calls).all()


def test_a_head_that_drafts_all_saves_all_calls_but_two():
    model, head, (trie, codes) = a_model(), a_head(), a_trie()
    edges = trie_tensors(trie, CODES, "cpu")
    for most_first in (0, 512):
        drafter = HeadDraft(head, CODES**LEVELS, most_first)
        found = BeamEngine(model, edges, drafter, StrictTopK(), 4).search(requests(codes))
        assert found.calls.tolist() == [2] * len(LENGTHS)


@pytest.mark.parametrize(("most_first", "calls"), [(0, {2, 3, 4}), (512, {2, 3})])
def test_users_may_part_ways(most_first, calls):
    """A narrow draft is right for some of the users only, who are then levels ahead."""
    model, head, (trie, codes) = a_model(), a_head(), a_trie()
    edges, batch = trie_tensors(trie, CODES, "cpu"), requests(codes, LENGTHS * 8)
    plain, drafted = (
        BeamEngine(model, edges, one, StrictTopK(), 1).search(batch)
        for one in (NoDraft(), HeadDraft(head, 1, most_first))
    )
    assert set(drafted.calls.tolist()) == calls
    assert torch.equal(plain.codes, drafted.codes)


@torch.inference_mode()
def test_drafts_go_on_from_the_beams_of_each_user():
    """Some users of a batch are levels ahead, others have left."""
    model, head, (trie, codes) = a_model(), a_head(), a_trie()
    edges, batch = trie_tensors(trie, CODES, "cpu"), requests(codes)
    rows, depths, width = [3, 0, 4], [1, 3, 2], 5
    session = Session(model, batch.histories)
    session.ask_for_placeholders()
    session.hidden_of([])
    session.narrow(torch.tensor(rows))
    beams = some_beams(trie, codes, depths)
    proposer = HeadDraft(head, width).begin(batch, edges)
    proposer.narrow(torch.tensor(rows))
    draft = proposer.propose(session, beams, edges)
    assert len(draft.levels) == LEVELS - 1 - min(depths)
    for user, (row, depth) in enumerate(zip(rows, depths, strict=True)):
        tokens = batch.histories.tokens[row, : batch.histories.lengths[row]]
        states = plain_states(model, tokens)
        own = beams.codes[user, :, :depth].tolist()
        above = [
            (tuple(beam), float(score), head_state(head, states[0], beam))
            for beam, score in zip(own, beams.scores[user], strict=True)
            if score > -torch.inf
        ]
        columns = [tuple(beam) for beam in own]
        for number, level in enumerate(draft.levels):
            if depth + number >= LEVELS - 1:
                assert not level.is_real[user].any()
                continue
            above = plain_step(head, states, codes, above, depth + number)[:width]
            real = level.is_real[user]
            found = [
                (*columns[parent], code)
                for parent, code in zip(
                    level.parents[user], level.codes[user].tolist(), strict=True
                )
            ]
            assert [one for one, is_real in zip(found, real, strict=True) if is_real] == [
                one for one, _, _ in above
            ]
            columns = found


def some_beams(trie, codes, depths):
    """Three beams of each user: beginnings of items, and a dead one."""
    whole = root_beams(len(depths), LEVELS, torch.device("cpu"))
    rows, nodes = [], []
    for depth in depths:
        prefixes = np.unique(codes[:, :depth], axis=0)[[0, 2, 1]]
        rows.append(np.pad(prefixes, ((0, 0), (0, LEVELS - depth))))
        node = np.zeros(3, np.int64)
        for column in prefixes.T:
            node = trie.advance(node, column)
        nodes.append(node)
    scores = torch.tensor([[-1.0, -3.0, -torch.inf]] * len(depths))
    return replace(
        whole,
        codes=torch.from_numpy(np.stack(rows)).long(),
        depth=torch.tensor(depths),
        scores=scores,
        nodes=torch.from_numpy(np.stack(nodes)),
    )
