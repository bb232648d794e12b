"""Common random numbers: any draft, and the lists of sampled beam search."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch

from pipeline.generative.beam_engine import BeamEngine
from pipeline.generative.beams import root_beams
from pipeline.generative.common_noise import CommonNoise, common_noise
from pipeline.generative.draft_ranking import Drafted, Ranking
from pipeline.generative.drafters import ExhaustiveDraft, NoDraft, Requests
from pipeline.generative.head_draft import HeadDraft
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.noise import keys_of
from pipeline.generative.placeholder_head import make_placeholder_head
from pipeline.generative.recommender import make_recommender
from pipeline.generative.sampling import Sampling
from pipeline.generative.session import Histories
from pipeline.generative.small_model_draft import SmallModelDraft
from pipeline.generative.trie_tensors import trie_tensors
from pipeline.generative.union_draft import UnionDraft
from pipeline.generative.verification import StrictTopK
from pipeline.generative_config import RecommenderSettings

LEVELS, CODES, ITEMS = 4, 4, 120
LENGTHS = [4, 0, 2, 1, 3, 4]


def a_model(seed=0, hidden_dim=16, layers=2):
    settings = RecommenderSettings(
        hidden_dim=hidden_dim, layers=layers, heads=2, history_length=4, dropout=0.0
    )
    model = make_recommender(settings, LEVELS, CODES, seed).eval()
    generator = torch.Generator().manual_seed(seed)
    for weights in model.parameters():
        if weights.dim() > 1:  # large enough that histories matter
            weights.data = 0.4 * torch.randn(weights.shape, generator=generator)
    return model


def disturbed(model, by):
    """A model that agrees with another now and then."""
    generator = torch.Generator().manual_seed(1)
    found = copy.deepcopy(model)
    for weights in (found.heads, found.tokens.weight):
        weights.data += by * torch.randn(weights.shape, generator=generator)
    return found


def a_catalog(is_constraint=True):
    every = np.stack(np.unravel_index(np.arange(CODES**LEVELS), [CODES] * LEVELS), 1)
    codes = np.random.default_rng(0).permutation(every)[:ITEMS]
    trie = ItemTrie(np.arange(ITEMS), codes, np.ones(ITEMS, bool))
    return trie_tensors(trie, CODES, "cpu", is_constraint), codes


def requests(codes, lengths=LENGTHS, first_seed=0):
    rng = np.random.default_rng(0)
    tokens = np.full((len(lengths), 1 + max(lengths) * LEVELS), LEVELS * CODES)
    for user, length in enumerate(lengths):
        own = codes[rng.integers(0, len(codes), length)] + np.arange(LEVELS) * CODES
        tokens[user, 1 : 1 + length * LEVELS] = own.ravel()
    spans = torch.tensor([1 + length * LEVELS for length in lengths])
    seeds = torch.arange(len(lengths)) + first_seed
    return Requests(Histories(torch.from_numpy(tokens), spans), spans[:, None] - 1, seeds)


def sampled(model, catalog, batch, width, drafter=None, temperature=1.0):
    rule = CommonNoise(temperature)
    return BeamEngine(model, catalog, drafter or NoDraft(), rule, width).search(batch)


def assert_same(found, plain):
    real = plain.scores > -torch.inf
    assert torch.equal(found.scores > -torch.inf, real)
    assert torch.equal(found.codes[real], plain.codes[real])
    assert torch.equal(found.nodes[real], plain.nodes[real])
    torch.testing.assert_close(found.scores, plain.scores, atol=1e-4, rtol=0)
    assert torch.equal(found.calls + found.accepted, torch.full_like(plain.calls, LEVELS))


@pytest.mark.parametrize("is_constraint", [True, False])
@pytest.mark.parametrize(("width", "temperature"), [(1, 1.0), (5, 1.0), (5, 0.4), (30, 2.0)])
def test_undrafted_beams_are_those_of_a_plain_loop(width, temperature, is_constraint):
    model, (catalog, codes) = a_model(), a_catalog(is_constraint)
    batch = requests(codes)
    found = sampled(model, catalog, batch, width, temperature=temperature)
    for user, (tokens, length, seed) in enumerate(zip(*batch.histories, batch.seeds, strict=True)):
        wanted = plain_search(
            model, tokens[:length], int(seed), width, temperature, codes if is_constraint else None
        )
        real = found.scores[user] > -torch.inf
        assert found.codes[user][real].tolist() == [list(path) for path, _ in wanted]
        scores = torch.tensor([score for _, score in wanted])
        torch.testing.assert_close(found.scores[user][real], scores, atol=1e-4, rtol=0)


@torch.inference_mode()
def plain_search(model, tokens, seed, width, temperature, codes):
    """One user, one path at a time: the best by probability and the noise of its own codes."""
    beams = [((), 0.0)]
    for depth in range(LEVELS):
        drawn = []
        for path, score in beams:
            own = [code + level * CODES for level, code in enumerate(path)]
            sequence = torch.cat([tokens, torch.tensor(own).long()])[None]
            size = sequence.shape[1]
            sees = torch.ones(1, size, size, dtype=torch.bool).tril()
            hidden = model(sequence, torch.arange(size)[None], sees)
            log_p = model.log_probs(hidden[:, -1:], torch.tensor([depth]))[0, 0].tolist()
            key = torch.tensor([seed])
            for code in path:
                key = keys_of(key, code + 16)
            noise = common_noise(key, CODES)[0].tolist()
            for code in range(CODES):
                longer = (*path, code)
                if codes is None or [*longer] in codes[:, : depth + 1].tolist():
                    total = score + log_p[code]
                    drawn.append((total / temperature + noise[code], longer, total))
        drawn.sort(reverse=True)
        beams = [(path, score) for _, path, score in drawn[:width]]
    return sorted(beams, key=lambda beam: -beam[1])


def drafters(model, width):
    """Of every kind, with the noise and without, good and bad."""
    head, rule = make_placeholder_head(LEVELS, CODES, 16, seed=3), CommonNoise()
    near, far = disturbed(model, 0.15), a_model(7, 8, 1)
    return [
        SmallModelDraft(near, 2 * width, LEVELS, rule, width),
        SmallModelDraft(near, width, LEVELS, rule),
        SmallModelDraft(near, 3 * width, 2, rule),
        SmallModelDraft(far, 2 * width, LEVELS, rule, width),
        SmallModelDraft(near, 2 * width, LEVELS),  # drafts the best: bad, and yet nothing changes
        HeadDraft(head, 3 * width, rule=rule, kept=width),
        HeadDraft(head, 2 * width, 0, rule),
        ExhaustiveDraft(30),
        UnionDraft([SmallModelDraft(near, width, LEVELS, rule), ExhaustiveDraft(20)]),
    ]


@pytest.mark.parametrize("is_constraint", [True, False])
@pytest.mark.parametrize("width", [1, 3, 8, 25])
def test_no_draft_changes_a_list(width, is_constraint):
    model, (catalog, codes) = a_model(), a_catalog(is_constraint)
    batch = requests(codes, LENGTHS * 4)
    plain = sampled(model, catalog, batch, width)
    strict = BeamEngine(model, catalog, NoDraft(), StrictTopK(), width).search(batch)
    assert not torch.equal(strict.codes, plain.codes)
    calls = set()
    for drafter in drafters(model, width):
        found = sampled(model, catalog, batch, width, drafter)
        assert_same(found, plain)
        calls |= set(found.calls.tolist())
    assert len(calls) > 1  # users were done at different calls
    relaxed = BeamEngine(model, catalog, NoDraft(), Sampling(), width).search(batch)
    assert_same(relaxed, plain)  # without a draft that too is sampled beam search


def test_whoever_else_is_in_the_batch():
    model, (catalog, codes) = a_model(), a_catalog()
    batch, width = requests(codes, LENGTHS, first_seed=2**40), 5
    plain = sampled(model, catalog, batch, width)
    for drafter in drafters(model, width):
        for rows in ([5, 1], [2], [0, 0, 3, 4]):
            some = Requests(
                Histories(*(own[rows] for own in batch.histories)),
                batch.items[rows],
                batch.seeds[rows],
            )
            found = sampled(model, catalog, some, width, drafter)
            assert torch.equal(found.codes, plain.codes[rows])
    other = sampled(model, catalog, batch._replace(seeds=batch.seeds + 1), width)
    assert (other.codes != plain.codes).flatten(1).any(1).all()


def test_what_the_user_never_gets_is_left_out():
    model, (catalog, codes) = a_model(), a_catalog()
    excluded = torch.rand(6, ITEMS, generator=torch.Generator().manual_seed(0)) < 0.8
    excluded[2] = True  # nothing is left
    batch = requests(codes)._replace(excluded=excluded)
    plain = sampled(model, catalog, batch, 20)
    assert not (plain.scores[2] > -torch.inf).any()
    for drafter in drafters(model, 20):
        assert_same(sampled(model, catalog, batch, 20, drafter), plain)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_two_of_two_beams_are_draws_without_replacement(temperature):
    """Over many seeds the first and the pair, against what follows from the probabilities."""
    users = 20000
    p = torch.tensor([[0.35, 0.05, 0.1], [0.2, 0.0, 0.3]])
    joint = (temperature * p.log() - 3.0).expand(users, -1, -1)
    keys = keys_of(torch.arange(users)[:, None], torch.arange(2))
    column = torch.zeros_like(joint).long()
    rule, own = CommonNoise(temperature), p.flatten().double().numpy()
    one = rule.choose(joint, column, None, 1, keys)
    place = (one.rows * 3 + one.codes)[:, 0]
    assert_follows(place.bincount(minlength=6).numpy(), own)
    two = rule.choose(joint, column, None, 2, keys)
    assert (two.scores.diff(dim=1) <= 0).all()
    pair = (two.rows * 3 + two.codes).sort(1).values
    expected = np.zeros((6, 6))
    for first, second in itertools.permutations(range(6), 2):
        expected[min(first, second), max(first, second)] += (
            own[first] * own[second] / (1 - own[first])
        )
    counts = (pair[:, 0] * 6 + pair[:, 1]).bincount(minlength=36).numpy()
    assert_follows(counts, expected.ravel())
    assert (pair == place[:, None]).any(1).all()  # with one more kept the first stays


def assert_follows(counts, probabilities):
    """Chi-square; it would be too much in one of a thousand."""
    expected = counts.sum() * probabilities
    assert counts[probabilities == 0].sum() == 0
    keep = expected > 5
    degrees = int(keep.sum()) - 1
    found = ((counts - expected)[keep] ** 2 / expected[keep]).sum()
    assert found < degrees + 3.1 * math.sqrt(2 * degrees) + 6


@pytest.mark.parametrize("rule", [CommonNoise(), CommonNoise(0.5), StrictTopK()])
@pytest.mark.parametrize(("width", "beams"), [(1, 1), (1, 6), (6, 6), (6, 13), (20, 25)])
def test_the_model_as_its_own_drafter_needs_one_call(rule, width, beams):
    model, (catalog, codes) = a_model(), a_catalog()
    batch = requests(codes, LENGTHS * 10)
    draft = SmallModelDraft(model, beams, LEVELS, rule, width)
    found = BeamEngine(model, catalog, draft, rule, width).search(batch)
    assert found.calls.tolist() == [1] * len(batch.seeds)


def test_as_many_levels_are_accepted_as_strictly_and_more_than_by_a_noise_of_ones_own():
    model, (catalog, codes) = a_model(), a_catalog()
    batch, small = requests(codes, LENGTHS * 40), disturbed(model, 0.1)

    def accepted(rule, drafted_for, kept=None):
        draft = SmallModelDraft(small, 9, LEVELS, drafted_for, kept)
        found = BeamEngine(model, catalog, draft, rule, 6).search(batch)
        return float(found.accepted.double().mean())

    strict, common = (accepted(rule, rule) for rule in (StrictTopK(), CommonNoise()))
    chance = accepted(CommonNoise(), Sampling())
    assert abs(common - strict) < 0.4
    assert min(common, strict) > chance + 0.4


def test_a_drafter_that_is_right_but_ranks_by_sums_is_not_always_accepted():
    """What `kept` is for: children of parents that were not drawn push out those of beams."""
    model, (catalog, codes) = a_model(), a_catalog()
    draft = SmallModelDraft(model, 13, LEVELS, CommonNoise())
    found = sampled(model, catalog, requests(codes, LENGTHS * 10), 6, draft)
    assert (found.calls > 1).any()


def test_ranks_are_by_what_a_node_and_all_above_it_lack():
    generator = torch.Generator().manual_seed(0)
    joint = torch.randn(3, 6, CODES, generator=generator)
    joint[1, :, 1:] = -torch.inf
    joint[2] = -torch.inf
    above = torch.randn(3, 6, generator=generator).double().clamp(max=0)
    keys = torch.arange(18).view(3, 6)
    kept, drafted = 4, 9
    order = CommonNoise().draft_order(joint, keys)
    choice, below = Ranking(CommonNoise(), drafted, kept).choose(joint, Drafted(keys, above))
    ends = []
    for user in range(3):
        every = [(row, code) for row in range(6) for code in range(CODES)]
        real = [at for at in every if joint[user][at] > -torch.inf]
        likely = sorted(float(order[user][at]) for at in real if above[user, at[0]] == 0)[::-1]
        least = likely[kept - 1] if len(likely) >= kept else -1e300
        short = {
            at: float(above[user, at[0]]) + min(float(order[user][at]) - least, 0) for at in real
        }
        ranks = sorted(short.values())[::-1][:drafted]
        found = list(zip(choice.rows[user].tolist(), choice.codes[user].tolist(), strict=True))
        number = len(ranks)
        assert (choice.scores[user] > -torch.inf).sum() == number
        assert len(set(found[:number])) == number
        assert below.short[user, :number].tolist() == pytest.approx(ranks)
        assert [short[at] for at in found[:number]] == pytest.approx(ranks)
        for column, (row, code) in enumerate(found[:number]):
            assert below.keys[user, column] == keys_of(keys[user, row], code + 16)
        ends.append((number, bool(ranks) and ranks[-1] < -0.1))
    assert ends == [(9, True), (6, True), (0, False)]


def test_beams_that_drafts_begin_with_lack_nothing():
    above = Ranking(CommonNoise(), 4, 2).begin(
        torch.tensor([4, 9]), root_beams(2, LEVELS, torch.device("cpu"))
    )
    assert above.keys.tolist() == [[4], [9]]
    assert not above.short.any()
