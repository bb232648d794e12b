"""What the engine says of each token's origin, and of drafts by chance, against naive counting."""

import numpy as np
import pytest

from pipeline.config import EngineSettings
from pipeline.engine.branch import Branch, take
from pipeline.engine.budget import FREE
from pipeline.engine.counting import count
from pipeline.engine.engine import Engine
from pipeline.engine.processors import Processors
from pipeline.engine.row import Row
from pipeline.engine.rules import Relaxed, Strict, TopKFloor
from pipeline.engine.sampling import Sampled, Sampling
from pipeline.engine.stops import Stops
from pipeline.engine.types import RELAXED_ORIGIN, ROOT, DraftTree, NoDraft, Request

STOP, NEW = 2, 24
STOPS = Stops([STOP])
SETTINGS = EngineSettings(batch_rows=3, max_length=128, prefill_tokens=24, draft_nodes=12)
RULES = {
    "strict": lambda: Strict(),
    "relaxed": lambda: Relaxed(TopKFloor(8, 0.0), STOPS),
    "longest": lambda: Relaxed(TopKFloor(8, 0.0), STOPS, "longest"),
    "sampled": lambda: Sampled(Sampling(temperature=0.1)),
}


class Guesses:
    """Random trees around the true text; writes down what was verified, and what came of it."""

    def __init__(self, texts: dict[str, np.ndarray], seed: int = 0) -> None:
        self._texts = texts
        self._random = np.random.default_rng(seed)
        self.seen: dict[str, list[tuple[DraftTree, np.ndarray]]] = {key: [] for key in texts}

    def propose(self, rows, max_nodes):
        return [self._tree(row, max_nodes) for row in rows]

    def observe(self, trees, outcomes):
        for tree, outcome in zip(trees, outcomes, strict=True):
            self.seen[str(tree.buckets[0])].append((tree, outcome))

    def _tree(self, row, max_nodes):
        written = len(row.tokens) - len(row.request.prompt_ids)
        coming = self._texts[row.request.key][written : written + max_nodes // 2]
        if not len(coming) or self._random.random() < 0.2:
            coming = self._random.integers(3, 61, 2)  # surely wrong, nearly
        tokens, parents, parent = [], [], ROOT
        for token in coming.tolist():  # the truth, and a stray beside it
            tokens += [int(self._random.integers(3, 61)), token]
            parents += [parent, parent]
            parent = len(tokens) - 1
        survival = np.sort(self._random.random(len(tokens)))[::-1]
        return DraftTree(
            np.array(tokens, np.int32),
            np.array(parents, np.int32),
            survival.astype(np.float32),
            self._random.integers(0, 5, len(tokens)).astype(np.int8),
            np.full(len(tokens), int(row.request.key), np.int32),
        )


def engine_of(model):
    return Engine(model, SETTINGS, STOPS, Processors(STOPS.ids, 1.1), costs=FREE)


@pytest.fixture
def rows():
    random = np.random.default_rng(5)
    prompts = [random.integers(3, 61, size).astype(np.int32) for size in (5, 9, 14, 20, 31)]
    return [Request(str(n), prompt, NEW, seed=n) for n, prompt in enumerate(prompts)]


@pytest.fixture(params=RULES)
def drafted(request, rows, tiny_model):
    """Rule, generations by key, and what its drafter saw."""
    engine = engine_of(tiny_model("llama"))
    engine.use(NoDraft(), Strict())
    greedy = {done.key: done.token_ids for done in engine.generate(rows)}
    drafter = Guesses({key: np.append(text, [STOP, 7, 8]) for key, text in greedy.items()})
    engine.use(drafter, RULES[request.param](), FREE)
    return request.param, {done.key: done for done in engine.generate(rows)}, drafter.seen


def replayed(steps, most):
    """Token, source and whether a draft, one by one: the accepted nodes of a step, then one more.

    The token after the accepted nodes is not known here, so it is None.
    """
    story = []
    for tree, outcome in steps:
        kept = [node for node in range(len(tree)) if outcome[node] == 1]  # a path, parents first
        story += [(int(tree.token_ids[node]), int(tree.sources[node])) for node in kept]
        if not (kept and story[-1][0] == STOP) and len(story) < most:
            story.append((None, None))
    return story[:most]


def test_origins_are_those_of_a_replay_by_hand(drafted):
    rule, generations, seen = drafted
    drafts = 0
    for key, done in generations.items():
        assert done.origins.dtype == np.int8
        assert len(done.origins) == len(done.token_ids)
        story = replayed(seen[key], NEW)
        assert len(story) - len(done.token_ids) == (done.finish_reason == "stop")
        for token, origin, (draft, source) in zip(
            done.token_ids, done.origins, story, strict=False
        ):
            assert origin % RELAXED_ORIGIN == (0 if source is None else 1 + source)
            assert draft is None or draft == token
            drafts += draft is not None
    assert drafts > 10, rule


def test_origins_add_up_to_what_sources_earned_and_to_relaxed_tokens(drafted):
    rule, generations, _ = drafted
    relaxed = 0
    for done in generations.values():
        own = done.statistics
        counted = np.bincount(done.origins % RELAXED_ORIGIN, minlength=6)[1:]
        lost = own.accepted_by_source - counted  # a stop token that was drafted is no output
        assert lost.min() >= 0
        assert lost.sum() <= (done.finish_reason == "stop")
        assert (done.origins >= RELAXED_ORIGIN).sum() == own.relaxed_tokens
        assert ((done.origins % RELAXED_ORIGIN) > 0)[done.origins >= RELAXED_ORIGIN].all()
        relaxed += own.relaxed_tokens
    assert (relaxed > 0) == (rule in ("relaxed", "longest"))


def test_chances_are_counted_one_by_one(drafted):
    _, generations, seen = drafted
    for key, done in generations.items():
        drafts, kept, sums = np.zeros(10), np.zeros(10), np.zeros(10)
        for tree, outcome in seen[key]:
            for chance, fate in zip(tree.survival.tolist(), outcome.tolist(), strict=True):
                tenth = min(int(chance * 10), 9)
                drafts[tenth] += 1
                kept[tenth] += fate == 1
                sums[tenth] += chance
        own = done.statistics
        assert own.drafted_by_chance.tolist() == drafts.tolist()
        assert own.accepted_by_chance.tolist() == kept.tolist()
        assert np.allclose(own.chance_by_decile, sums)
        assert own.drafted_by_chance.sum() == own.drafted_by_source.sum()
        assert own.accepted_by_chance.sum() == own.accepted_by_source.sum()


def test_plain_rows_have_zeros(rows, tiny_model):
    engine = engine_of(tiny_model("llama"))
    for done in engine.generate(rows):
        assert not done.origins.any()
        assert len(done.origins) == len(done.token_ids)
        assert not done.statistics.drafted_by_chance.any()


@pytest.mark.parametrize(
    ("chance", "tenth"),
    [(0.0, 0), (0.0999, 0), (0.1, 1), (0.3, 3), (0.7, 7), (1.0, 9), (-0.5, 0), (1.5, 9)],
)
def test_the_bounds_of_the_tenths(chance, tenth):
    tree = DraftTree(
        np.array([7], np.int32),
        np.array([ROOT], np.int32),
        np.array([chance], np.float32),
        np.zeros(1, np.int8),
        np.zeros(1, np.int32),
    )
    row = Row(Request("0", np.array([5], np.int32), 4), 0)
    count([take(Branch(row, tree, 0, (0,), (0.0,)), 9, STOPS)])
    assert np.flatnonzero(row.statistics.drafted_by_chance).tolist() == [tenth]
    assert np.flatnonzero(row.statistics.accepted_by_chance).tolist() == [tenth]


def test_a_stop_string_inside_a_draft_cuts_origins_with_the_tokens():
    stops = Stops([STOP], ["c"], lambda ids: "".join(map(chr, ids)))
    tree = DraftTree(
        np.array([97, 99, 98], np.int32),
        np.array([ROOT, 0, 1], np.int32),
        np.ones(3, np.float32),
        np.array([1, 2, 3], np.int8),
        np.zeros(3, np.int32),
    )
    row = Row(Request("0", np.array([5], np.int32), 8), 0)
    take(Branch(row, tree, 0, (0, 1, 2), (0.0, 0.5, 0.0)), 9, stops)
    done = row.generation()
    assert done.token_ids.tolist() == [97, 99]
    assert done.origins.tolist() == [2, 3 + RELAXED_ORIGIN]
