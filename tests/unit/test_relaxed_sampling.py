"""Verification by sampling: what is chosen follows the model, whatever is drafted."""

import itertools

import numpy as np
import pytest
import torch

from pipeline.generative.beam_engine import BeamEngine
from pipeline.generative.beams import chosen_by
from pipeline.generative.common_noise import CommonNoise
from pipeline.generative.drafters import NoDraft, Requests
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.noise import gumbel, path_keys
from pipeline.generative.recommender import make_recommender
from pipeline.generative.sampling import Sampling
from pipeline.generative.session import Histories
from pipeline.generative.small_model_draft import SmallModelDraft
from pipeline.generative.trie_tensors import trie_tensors
from pipeline.generative.verification import NOT_DRAFTED
from pipeline.generative_config import RecommenderSettings

LEVELS, CODES, ITEMS = 3, 5, 60
SETTINGS = RecommenderSettings(hidden_dim=16, layers=1, heads=2, history_length=4)
USERS = 20000
P = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05, 0.0])
Q = torch.tensor([0.05, 0.5, 0.1, 0.05, 0.3, 0.0])


def a_model(seed, scale=0.5):
    """Of probabilities that are not near 0 or 1."""
    model = make_recommender(SETTINGS, LEVELS, CODES, seed).eval()
    generator = torch.Generator().manual_seed(seed)
    for weights in (model.heads, model.tokens.weight):
        weights.data = scale * torch.randn(weights.shape, generator=generator)
    return model


@pytest.fixture(scope="module")
def catalog():
    every = np.stack(np.unravel_index(np.arange(CODES**LEVELS), [CODES] * LEVELS), 1)
    codes = np.random.default_rng(0).permutation(every)[:ITEMS]
    return trie_tensors(ItemTrie(np.arange(ITEMS), codes, np.ones(ITEMS, bool)), CODES, "cpu")


def requests(histories, seeds):
    """Users who liked items with such codes, as token ids."""
    most = max(map(len, histories))
    tokens = torch.full((len(histories), most + 1), LEVELS * CODES)
    for row, own in enumerate(histories):
        tokens[row, 1 : 1 + len(own)] = torch.tensor(own, dtype=torch.int64)
    lengths = torch.tensor([1 + len(own) for own in histories])
    return Requests(Histories(tokens, lengths), torch.empty(len(lengths), 0).long(), seeds)


def chi_square(counts, probabilities):
    """Of a draw of so many, and how much would be too much in one of a thousand."""
    expected = counts.sum() * probabilities
    keep = expected > 5
    assert counts[probabilities == 0].sum() == 0
    found = ((counts - expected)[keep] ** 2 / expected[keep]).sum()
    degrees = int(keep.sum()) - 1
    return float(found), degrees + 3.1 * np.sqrt(2 * degrees) + 6


def drafted(drafts, q=Q):
    """Columns of a level of six continuations, `drafts` of them drawn from `q` for every user."""
    joint = q.log().expand(USERS, 1, -1)
    keys = torch.arange(USERS) - USERS
    choice = chosen_by(joint.flatten(1) + gumbel(keys, len(q)), joint, drafts)
    real = choice.scores > -torch.inf
    column = torch.full((USERS, len(q) + 1), NOT_DRAFTED)
    place = choice.codes.where(real, len(q))
    column = column.scatter(1, place, torch.arange(drafts).expand(USERS, -1))
    return column[:, None, :-1]


def choose(column, log_q, width, p=P, temperature=1.0, seeds=None):
    joint = (temperature * p.log()).expand(len(column), 1, -1)
    seeds = torch.arange(len(column)) if seeds is None else seeds
    return Sampling(temperature).choose(joint, column, log_q, width, seeds[:, None])


@pytest.mark.parametrize("q", [Q, P, P.flip(0).roll(-1), torch.tensor([0, 0, 0, 0.5, 0.5, 0])])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_one_of_one_drafted_follows_p_whatever_q_is(q, temperature):
    log_q = (temperature * q.log()).expand(USERS, 1, -1)
    found = choose(drafted(1, q), log_q, 1, temperature=temperature)
    value, most = chi_square(found.codes[:, 0].bincount(minlength=6).numpy(), P.numpy())
    assert value < most


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_p_and_q_are_of_the_same_continuations(shift):
    """What the drafter thought of dead beams, and by how much its sums are off, is no matter."""
    log_q = Q.log() + shift
    dead = torch.full((6,), -torch.inf)
    joint = torch.stack([P.log(), dead]).expand(USERS, -1, -1)
    both = torch.stack([log_q, torch.zeros(6)]).expand(USERS, -1, -1)
    column = torch.cat([drafted(1), torch.full((USERS, 1, 6), NOT_DRAFTED)], 1)
    keys = path_keys(
        torch.arange(USERS), torch.arange(2).expand(USERS, -1)[..., None], torch.ones(USERS).long()
    )
    found = Sampling().choose(joint, column, both, 1, keys)
    assert not found.rows.any()
    value, most = chi_square(found.codes[:, 0].bincount(minlength=6).numpy(), P.numpy())
    assert value < most


def test_without_a_draft_k_are_drawn_without_replacement():
    column = torch.full((USERS, 1, 6), NOT_DRAFTED)
    found = choose(column, None, 2)
    p = P.double().numpy()
    expected = np.zeros((6, 6))
    for first, second in itertools.permutations(range(6), 2):
        low, high = min(first, second), max(first, second)
        expected[low, high] += p[first] * p[second] / (1 - p[first])
    pair = found.codes.sort(1).values
    counts = (pair[:, 0] * 6 + pair[:, 1]).bincount(minlength=36).numpy()
    value, most = chi_square(counts, expected.ravel())
    assert value < most
    same = choose(column, P.log().expand(USERS, 1, -1), 2)  # a level where nothing was drafted
    assert torch.equal(same.codes, found.codes)


def test_all_drafted_stand_where_the_drafter_is_right():
    column = drafted(3, P)
    found = choose(column, P.log().expand(USERS, 1, -1), 3)
    assert (column[:, 0].gather(1, found.codes) != NOT_DRAFTED).all()
    some = choose(column, P.log().expand(USERS, 1, -1), 2)
    assert (column[:, 0].gather(1, some.codes) != NOT_DRAFTED).all()
    kept = (
        some.codes[..., None] == column[:, 0].ne(NOT_DRAFTED).nonzero()[:, 1].view(-1, 1, 3)
    ).any(1)
    # Each of the three is kept by two of three users, whatever its probability.
    assert ((kept.double().mean(0) - 2 / 3).abs() < 0.02).all()


def test_which_of_those_that_stand_are_kept_is_not_in_their_coins():
    p, q = torch.tensor([0.2, 0.2, 0.6]), torch.tensor([0.6, 0.2, 0.2])
    column = torch.tensor([0, 1, NOT_DRAFTED]).expand(USERS, 1, -1)
    found = choose(column, q.log().expand(USERS, 1, -1), 1, p=p)
    # The second always stands; the first in one case of three, and half of them are its.
    assert abs(float((found.codes == 0).double().mean()) - 1 / 6) < 0.01
    assert not (found.codes == 2).any()


def test_a_level_is_filled_up_from_what_p_has_more_of_then_from_p():
    column = torch.full((USERS, 1, 6), NOT_DRAFTED)
    column[:, 0, 4] = 0  # q has most there, p little: it stands in one case of six
    log_q = Q.log().expand(USERS, 1, -1)
    found = choose(column, log_q, 2)
    stands = (found.codes == 4).any(1)
    assert abs(float(stands.double().mean()) - 0.05 / 0.3) < 0.01
    others = found.codes[~stands].unique()
    assert others.tolist() == [0, 2, 3]  # where p > q
    everything = choose(column, log_q, 5)
    assert (everything.codes.sort(1).values == torch.arange(5)).all()
    column[:, 0, 4], column[:, 0, 0] = NOT_DRAFTED, 0
    found = choose(column, P.log().expand(USERS, 1, -1), 2)  # p - q is zero everywhere
    assert (found.codes == 0).any(1).all()
    rest = torch.where(found.codes[:, 0] == 0, found.codes[:, 1], found.codes[:, 0])
    value, most = chi_square(
        rest.bincount(minlength=6).numpy(), (P * (torch.arange(6) > 0) / 0.6).double().numpy()
    )
    assert value < most


def test_lists_are_sorted_and_what_may_not_be_is_nothing():
    column = torch.full((4, 1, 6), NOT_DRAFTED)
    found = choose(column, None, 8)
    assert (found.scores.diff(dim=1)[:, :4] <= 0).all()
    assert (found.scores[:, 5:] == -torch.inf).all()
    nothing = choose(column, torch.zeros(4, 1, 6), 3, p=torch.zeros(6))
    assert (nothing.scores == -torch.inf).all()


@pytest.mark.parametrize("rule", [Sampling(), CommonNoise()])
@pytest.mark.parametrize("drafter", [None, 1, 2])
def test_single_draws_of_whole_ids_follow_the_model(catalog, drafter, rule):
    """K = N = 1: the ids that 6,000 users get, against products of the model's probabilities."""
    model = a_model(0)
    draft = NoDraft() if drafter is None else SmallModelDraft(a_model(drafter), 1, rule=rule)
    batch = requests([[1, 7, 12]] * 6000, torch.arange(6000))
    found = BeamEngine(model, catalog, draft, rule, 1).search(batch)
    expected = id_probabilities(model, catalog, batch)
    place = (found.codes[:, 0] * torch.tensor([25, 5, 1])).sum(1)
    value, most = chi_square(place.bincount(minlength=125).numpy(), expected)
    assert value < most
    assert (float(found.accepted.double().mean()) > 0.3) == (drafter is not None)
    assert torch.equal(found.calls + found.accepted, torch.full((6000,), LEVELS))


def id_probabilities(model, catalog, batch):
    """Of every triple of codes, by a product over levels within the trie."""
    tokens = batch.histories.tokens[0]
    total = np.zeros((CODES,) * LEVELS)
    todo = [((), 0, 1.0)]
    while todo:
        codes, node, probability = todo.pop()
        if len(codes) == LEVELS:
            total[codes] = probability
            continue
        own = torch.tensor([code + level * CODES for level, code in enumerate(codes)]).long()
        sequence = torch.cat([tokens, own])[None]
        size = sequence.shape[1]
        sees = torch.ones(1, size, size, dtype=torch.bool).tril()
        with torch.inference_mode():
            hidden = model(sequence, torch.arange(size)[None], sees)
            log_p = model.log_probs(hidden[:, -1:], torch.tensor([len(codes)]))[0, 0].double()
        children = catalog.children(torch.tensor([[node]]))[0, 0]
        p = log_p.exp() * (children >= 0)
        for code in p.nonzero()[:, 0].tolist():
            share = float(p[code] / p.sum())
            todo.append(((*codes, code), int(children[code]), probability * share))
    return total.ravel()


@pytest.mark.parametrize("width", [1, 4])
def test_what_is_drawn_is_the_same_in_any_batch(catalog, width):
    model = a_model(0)
    histories = [[1, 7, 12], [], [0, 5, 14, 3, 8, 10], [2, 6, 11], [4, 9, 13, 1, 7, 12]]
    seeds = torch.tensor([5, 5, 9, 2**40, -3])
    for drafter in (NoDraft(), SmallModelDraft(a_model(1), 8, rule=Sampling())):
        engine = BeamEngine(model, catalog, drafter, Sampling(), width)
        together = engine.search(requests(histories, seeds))
        for row, own in enumerate(histories):
            alone = engine.search(requests([own], seeds[[row]]))
            assert torch.equal(alone.codes[0], together.codes[row])
            assert alone.calls[0] == together.calls[row]
    other = engine.search(requests(histories, seeds + 1))
    assert not torch.equal(other.codes, together.codes)
