"""SpecGR's loop, against one user and one candidate at a time, without cache, tree or batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.generative.beam_engine import BeamEngine
from pipeline.generative.beams import root_beams
from pipeline.generative.drafters import NoDraft, Requests
from pipeline.generative.item_trie import ItemTrie
from pipeline.generative.recommender import make_recommender
from pipeline.generative.retriever import ContentTower, EncoderTower, Retriever
from pipeline.generative.retriever_draft import RetrieverDraft, below
from pipeline.generative.retriever_leaves import leaves_of
from pipeline.generative.session import Histories
from pipeline.generative.threshold import scored_depths
from pipeline.generative.threshold_engine import ENOUGH, LEVELS, ThresholdEngine
from pipeline.generative.trie_tensors import trie_tensors
from pipeline.generative.verification import StrictTopK
from pipeline.generative_config import RecommenderSettings, ThresholdSettings

DEPTH, CODES, ITEMS = 3, 5, 60
HISTORIES = [4, 0, 2, 1, 3]
INF = float("inf")


class World:
    """A random model, catalog and retriever."""

    def __init__(self, items=ITEMS, cold=0.4, tower="content", seed=0, shared=0):
        rng = np.random.default_rng(seed)
        every = np.stack(np.unravel_index(np.arange(CODES**DEPTH), [CODES] * DEPTH), 1)
        self.codes = rng.permutation(every)[:items]
        self.codes[items - shared :] = self.codes[:shared]
        self.is_warm = rng.random(items) >= cold
        self.trie = ItemTrie(np.arange(items), self.codes, self.is_warm)
        generator = torch.Generator().manual_seed(seed)
        settings = RecommenderSettings(hidden_dim=16, layers=2, heads=2, history_length=4)
        self.model = make_recommender(settings, DEPTH, CODES, seed).eval()
        for weights in (self.model.heads, self.model.tokens.weight):
            weights.data = torch.randn(weights.shape, generator=generator)
        torch.manual_seed(seed)
        if tower == "content":
            own = ContentTower(16, 6, 8)
            with torch.no_grad():
                vectors = own.items(torch.randn(items, 6))
        else:
            own = EncoderTower(16, 8)
            vectors = own.all_items(self.model, self.codes)
        self.retriever = Retriever(own.eval(), vectors)
        self.leaves = leaves_of(self.trie, "cpu")
        self.edges = trie_tensors(self.trie, CODES, "cpu")

    def requests(self, lengths=HISTORIES, seed=0):
        rng = np.random.default_rng(seed)
        most = max(lengths)
        items = np.full((len(lengths), most), -1)
        tokens = np.full((len(lengths), 1 + most * DEPTH), DEPTH * CODES)
        for user, length in enumerate(lengths):
            items[user, :length] = rng.integers(0, len(self.codes), length)
            own = self.codes[items[user, :length]] + np.arange(DEPTH) * CODES
            tokens[user, 1 : 1 + length * DEPTH] = own.ravel()
        spans = torch.tensor([1 + length * DEPTH for length in lengths])
        histories = Histories(torch.from_numpy(tokens), spans)
        return Requests(histories, torch.from_numpy(items), torch.arange(len(lengths)))

    def engine(self, settings, width, threshold=None):
        """`threshold` may be infinite, which no config is."""
        if threshold is not None:
            settings = settings.model_copy(update={"threshold": threshold})
        return ThresholdEngine(self.model, self.edges, self.leaves, self.retriever, settings, width)

    def search(self, width=10, threshold=None, batch=None, **settings):
        engine = self.engine(ThresholdSettings(**settings), width, threshold)
        return engine.search(batch or self.requests())


class Naive:
    """The paper's loop for one user."""

    @torch.inference_mode()
    def __init__(self, world, tokens, settings, width, gamma, excluded=()):
        self.world, self.tokens, self.settings = world, tokens, settings
        self.width, self.gamma = width, gamma
        self.known = {}
        hidden = self.hidden([])
        tower, own = world.retriever.tower, world.retriever.vectors
        if isinstance(tower, ContentTower):
            user = tower.user(hidden[-1])
        else:
            user = tower.projection(hidden.mean(0))
        cosine = torch.cosine_similarity(user[None], own)
        self.scores, self.warm = {}, set()
        for item, codes in enumerate(map(tuple, world.codes.tolist())):
            if codes not in excluded:
                self.scores[codes] = max(self.scores.get(codes, -INF), float(cosine[item]))
        warm_codes = [
            codes for codes, warm in zip(world.codes.tolist(), world.is_warm, strict=True) if warm
        ]
        self.warm = {tuple(codes[:n]) for codes in warm_codes for n in range(DEPTH + 1)}

    def hidden(self, codes):
        own = [code + place * CODES for place, code in enumerate(codes)]
        sequence = torch.cat([self.tokens, torch.tensor(own, dtype=torch.int64)])[None]
        size = sequence.shape[1]
        sees = torch.ones(1, size, size, dtype=torch.bool).tril()
        return self.world.model(sequence, torch.arange(size)[None], sees)[0]

    def steps(self, codes):
        """Log-probabilities of the codes."""
        return [self.log_probs(codes[:place])[code] for place, code in enumerate(codes)]

    def log_probs(self, codes):
        """Of the code that follows, by a pass of its own."""
        if codes not in self.known:
            last = self.hidden(codes)[-1:][None]
            log_probs = self.world.model.log_probs(last, torch.tensor([len(codes)]))
            self.known[codes] = log_probs[0, 0].tolist()
        return self.known[codes]

    def value(self, codes, least):
        count = DEPTH
        if codes not in self.warm:
            count = DEPTH - 1
            if self.settings.unseen == "warm_prefix":
                count = max((n for n in range(DEPTH) if codes[:n] in self.warm), default=0)
                count = max(count, least)
        return float(np.mean(self.steps(codes)[:count]))

    @torch.inference_mode()
    def run(self):
        cold_only = self.settings.cold_only
        least = self.settings.least_prefix
        if least == "auto":
            is_encoder = isinstance(self.world.retriever.tower, EncoderTower)
            least = DEPTH - 1 if is_encoder else 2
        beams, values, accepted, rounds = [()], {}, [], 0
        while len(accepted) < self.width or cold_only:
            free = [
                codes
                for codes in self.scores
                if codes not in values
                and not (cold_only and codes in self.warm)
                and (rounds < self.settings.guided_from or codes[:rounds] in beams)
            ]
            for codes in sorted(free, key=lambda own: -self.scores[own])[: self.settings.drafted]:
                values[codes] = self.value(codes, least)
            accepted = [codes for codes, value in values.items() if value > self.gamma]
            rounds += 1
            longer = {codes[:rounds] for codes in self.scores if codes[: rounds - 1] in beams}
            room = self.width if cold_only else self.settings.beams
            beams = sorted(longer, key=lambda own: -sum(self.steps(own)))[:room]
            if rounds == DEPTH:
                break
        has_enough = len(accepted) >= self.width and not cold_only
        rest = {} if cold_only else {c: v for c, v in values.items() if c not in accepted}
        if rounds == DEPTH:
            seen = accepted if cold_only else values
            rest |= {codes: np.mean(self.steps(codes)) for codes in beams if codes not in seen}
        head = sorted(accepted, key=lambda codes: -values[codes])
        listed = [(codes, values[codes], True) for codes in head]
        listed += sorted(((c, v, False) for c, v in rest.items()), key=lambda own: -own[1])
        if cold_only:
            listed.sort(key=lambda own: -own[1])
        self.values = values | {codes: value for codes, value, _ in listed}
        return listed[: self.width], rounds, len(values), len(accepted), has_enough


def compare(world, width, gamma, batch=None, excluded=None, **settings):
    batch = batch or world.requests()
    found = world.search(width, gamma, batch, **settings)
    for row, length in enumerate(batch.histories.lengths.tolist()):
        tokens = batch.histories.tokens[row, :length]
        own = () if excluded is None else excluded[row]
        naive = Naive(world, tokens, ThresholdSettings(**settings), width, gamma, own)
        listed, rounds, drafted, accepted, has_enough = naive.run()
        count = len(listed)
        values = [value for _, value, _ in listed]
        np.testing.assert_allclose(found.scores[row, :count], values, atol=1e-4)
        # Unseen items with the same codes that count have the same value: any of them may stand.
        own = [naive.values[tuple(codes)] for codes in found.codes[row, :count].tolist()]
        np.testing.assert_allclose(own, values, atol=1e-4)
        assert len(found.codes[row, :count].unique(dim=0)) == count
        assert found.is_accepted[row, :count].tolist() == [is_in for _, _, is_in in listed]
        assert (found.scores[row, count:] == -INF).all()
        assert (found.nodes[row, count:] == -1).all()
        assert not found.is_accepted[row, count:].any()
        assert found.rounds[row] == rounds
        assert found.calls[row] == rounds + 1 or not found.drafted.any()
        assert (found.drafted[row], found.accepted[row]) == (drafted, accepted)
        assert found.exit[row] == (ENOUGH if has_enough else LEVELS)
    return found


@pytest.mark.parametrize("tower", ["content", "encoder"])
@pytest.mark.parametrize("guided_from", [1, 2])
@pytest.mark.parametrize(
    "rule", [{"unseen": "drop_last"}, {"least_prefix": 1}, {"least_prefix": "auto"}]
)
def test_lists_are_those_of_the_paper_for_one_user_at_a_time(tower, guided_from, rule):
    world = World(tower=tower)
    rounds = set()
    for gamma in (-3.0, -2.0, -1.5):
        found = compare(world, 6, gamma, drafted=7, beams=3, guided_from=guided_from, **rule)
        rounds |= set(found.rounds.tolist())
    assert len(rounds) > 1  # users of a batch stop at different rounds


@pytest.mark.parametrize("seed", range(3))
def test_beams_that_items_only_hang_from_do_not_go_on(seed):
    compare(World(seed=seed), 25, 0.0, drafted=4, beams=1, guided_from=2)


def test_who_goes_on_keeps_what_is_its_own():
    world, exits = World(seed=1), []
    for seed in range(3):
        batch = world.requests([2, 4, 0, 3, 1, 4, 2], seed)
        found = compare(world, 6, -3.0, batch, drafted=7, beams=3)
        exits.append(found.rounds.tolist())
    assert any(np.diff(own).max() > 0 for own in exits)  # who stands first is done first


@pytest.mark.parametrize("rule", ["drop_last", "warm_prefix"])
def test_every_candidate_has_the_value_of_its_own_sequence(rule):
    world = World()
    found = compare(world, 100, -INF, drafted=100, beams=4, unseen=rule, least_prefix=1)
    assert (found.drafted == ITEMS).all()
    assert (found.scores[:, :ITEMS] > -INF).all()


@pytest.mark.parametrize(("gamma", "cold"), [(-2.0, 0.4), (-1.0, 0.4), (-2.0, 1.0), (-2.0, 0.0)])
def test_cold_items_alone_are_drafted_beside_beams(gamma, cold):
    world = World(cold=cold)
    found = compare(world, 6, gamma, drafted=9, beams=3, cold_only=True)
    assert (found.exit == LEVELS).all()
    codes = found.codes[found.is_accepted].numpy()
    assert (world.trie.warm_depth(codes) < DEPTH).all()


def plain_beams(world, width, batch=None):
    engine = BeamEngine(world.model, world.edges, NoDraft(), StrictTopK(), width)
    return engine.search(batch or world.requests())


def test_cold_only_above_every_threshold_is_beam_search():
    world = World()
    found, beams = world.search(8, INF, drafted=20, cold_only=True), plain_beams(world, 8)
    assert torch.equal(found.codes, beams.codes)
    assert torch.equal(found.nodes, beams.nodes)
    torch.testing.assert_close(found.scores * DEPTH, beams.scores)
    assert not found.is_accepted.any()
    assert not found.accepted.any()


def test_above_every_threshold_beams_that_hold_all_decide():
    world = World(cold=0)
    found, beams = world.search(ITEMS, INF, drafted=5, beams=ITEMS), plain_beams(world, ITEMS)
    assert torch.equal(found.codes, beams.codes)
    assert not found.is_accepted.any()
    assert (found.rounds == DEPTH).all()
    some = compare(World(), 10, INF, drafted=4, beams=10)
    assert not some.is_accepted.any()


def test_below_every_threshold_the_first_draft_is_the_list():
    world = World()
    found = compare(world, 8, -INF, drafted=8, beams=4)
    assert (found.rounds == 1).all()
    assert (found.exit == ENOUGH).all()
    assert found.is_accepted.all()
    assert (found.accepted == 8).all()


def test_rounds_rise_and_acceptance_falls_with_the_threshold():
    world, lengths = World(), [0, 1, 2, 3, 4] * 8
    rounds, shares = [], []
    for gamma in (-4.0, -2.5, -2.0, -1.5, -1.0):
        found = world.search(6, gamma, world.requests(lengths), drafted=10, beams=5)
        rounds.append(float(found.rounds.double().mean()))
        shares.append(float(found.accepted.sum() / found.drafted.sum()))
    assert rounds == sorted(rounds)
    assert shares == sorted(shares, reverse=True)
    assert rounds[0] < rounds[-1]
    assert shares[0] > shares[-1]


@pytest.mark.parametrize("seed", range(4))
def test_nobody_stands_twice_in_a_list(seed):
    world = World(seed=seed)
    for gamma in (-2.5, -1.5, INF):
        for cold_only in (False, True):
            found = world.search(40, gamma, drafted=9, beams=30, cold_only=cold_only)
            for nodes in found.nodes:
                own = nodes[nodes != -1].tolist()
                assert len(set(own)) == len(own)
                assert min(own) >= world.trie.first_leaf


@pytest.mark.parametrize("items", [1, 3])
@pytest.mark.parametrize("cold", [0.0, 0.5, 1.0])
def test_a_catalog_smaller_than_what_is_wanted(items, cold):
    for gamma in (-INF, -1.5, INF):
        found = compare(World(items, cold), 10, gamma, drafted=50, beams=20)
        assert ((found.nodes != -1).sum(1) == items).all()


def test_excluded_items_are_neither_drafted_nor_filled_in():
    world = World()
    excluded = torch.zeros(len(HISTORIES), len(world.leaves.codes), dtype=torch.bool)
    excluded[:, ::3] = True
    excluded[1] = False
    batch = world.requests()._replace(excluded=excluded)
    own = [{tuple(codes) for codes in world.leaves.codes[row].tolist()} for row in excluded]
    for cold_only in (False, True):
        compare(world, 9, -1.8, batch, own, drafted=6, beams=5, cold_only=cold_only)


def test_items_that_share_an_id_are_one_candidate_the_best_of_them():
    world = World(shared=15)
    assert len(world.leaves.codes) == ITEMS - 15
    compare(world, 9, -1.8, drafted=6, beams=5)


def test_items_of_which_nothing_is_known_are_not_drafted():
    world = World()
    world.retriever.vectors[10:] = 0
    found = world.search(10, -INF, drafted=50, beams=3)
    known = {tuple(codes) for codes in world.codes[:10].tolist()}
    assert {tuple(codes) for codes in found.codes[0].tolist()} == known


@pytest.mark.parametrize("rule", ["drop_last", "warm_prefix"])
def test_codes_that_count(rule):
    codes = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]])
    trie = ItemTrie(np.arange(4), codes, np.array([True, False, False, False]))
    depths = [scored_depths(leaves_of(trie, "cpu"), rule, least).tolist() for least in (1, 2, 9)]
    if rule == "drop_last":
        assert depths == [[3, 2, 2, 2]] * 3
    else:  # of the last, no warm item has even the first code
        assert depths == [[3, 2, 1, 1], [3, 2, 2, 2], [3, 3, 3, 3]]


def test_ids_of_one_code_count_whole():
    codes = np.array([[0], [2]])
    trie = ItemTrie(np.arange(2), codes, np.array([True, False]))
    assert scored_depths(leaves_of(trie, "cpu"), "drop_last", 2).tolist() == [1, 1]


@pytest.mark.parametrize("tower", ["content", "encoder"])
@pytest.mark.parametrize("drafted", [1, 8, 100])
def test_under_strict_verification_drafted_items_change_no_list(tower, drafted):
    world = World(tower=tower)
    drafter = RetrieverDraft(world.retriever, world.leaves, drafted)
    engine = BeamEngine(world.model, world.edges, drafter, StrictTopK(), 4)
    found, beams = engine.search(world.requests()), plain_beams(world, 4)
    assert torch.equal(found.codes, beams.codes)
    torch.testing.assert_close(found.scores, beams.scores)
    if drafted == 100:  # all items: the histories, and one call for all levels
        assert (found.calls == 2).all()
        assert (found.accepted == DEPTH - 1).all()
    else:
        assert (found.calls <= DEPTH + 1).all()


def test_a_beginning_that_candidates_share_is_scored_once():
    world = World()
    found = world.search(ITEMS, -INF, drafted=ITEMS, beams=2)
    assert (
        found.scored
        == len({codes[:n] for codes in map(tuple, world.codes.tolist()) for n in (1, 2)})
    ).all()


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor that is made."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        for own in made if isinstance(made, tuple | list) else [made]:
            if isinstance(own, torch.Tensor):
                self.bytes = max(self.bytes, own.untyped_storage().nbytes())
        return made


@pytest.mark.parametrize("depths", [[2] * 16, [0, 2, 1, 3] * 4])
def test_what_is_below_beams_takes_a_byte_per_user_and_id_at_any_depths(depths):
    world = World()
    beams = root_beams(16, DEPTH, torch.device("cpu"))
    beams.depth.copy_(torch.tensor(depths))
    nodes = [world.leaves.prefixes[depth, [3, 17]] for depth in depths]
    scores = torch.tensor([[0.0, 0.0]] * 15 + [[0.0, -INF]])
    beams = replace(beams, nodes=torch.stack(nodes), scores=scores)
    with Largest() as largest:
        found = below(beams, world.leaves)
    for user, depth in enumerate(depths):
        alive = nodes[user][scores[user] > -INF].tolist()
        own = world.leaves.prefixes[depth].tolist()
        assert found[user].tolist() == [node in alive for node in own]
    room = world.leaves.first + len(world.leaves.codes) + 1
    assert largest.bytes <= max(16 * room, world.leaves.prefixes.untyped_storage().nbytes())
