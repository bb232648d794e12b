"""Replays against the engine that they stand in for."""

import numpy as np
import pytest

from pipeline.config import EngineSettings
from pipeline.engine.budget import FREE, CostTable
from pipeline.engine.engine import Engine
from pipeline.engine.processors import Processors
from pipeline.engine.rules import Strict
from pipeline.engine.stops import Stops
from pipeline.engine.types import DraftTree, NoDraft, Request
from pipeline.schemas import SOURCES
from retrieval_pools.document import Document
from retrieval_pools.drafter import PoolDrafter
from retrieval_pools.pool import build_pools
from retrieval_pools.replay import Recording, replay

STOP, NEW, NODES = 2, 24, 12
STOPS = Stops([STOP])
ALONE = EngineSettings(batch_rows=1, max_length=160, prefill_tokens=24, draft_nodes=NODES)
SLOPE = 0.15  # seconds of a further token, where a step takes one
LINEAR = CostTable(
    np.array([1]), np.array([1]), np.array([1, 4096]), np.array([[[1.0, 1.0 + SLOPE * 4095]]])
)


@pytest.fixture(scope="module")
def engine(tiny_model):
    return Engine(tiny_model("llama"), ALONE, STOPS, Processors(STOPS.ids, 1.1), costs=FREE)


@pytest.fixture(scope="module")
def recordings(engine):
    """Greedy texts of ragged prompts; some end with the stop token."""
    random = np.random.default_rng(5)
    prompts = [random.integers(3, 61, int(random.integers(2, 60))) for _ in range(30)]
    requests = [
        Request(f"row {number}", prompt.astype(np.int32), NEW, "ab"[number % 2])
        for number, prompt in enumerate(prompts)
    ]
    engine.use(NoDraft(), Strict(), FREE)
    done = {one.key: one for one in engine.generate(requests)}
    texts = [done[request.key] for request in requests]
    assert {one.finish_reason for one in texts} == {"stop", "length"}
    return [
        Recording(request, one.token_ids, one.finish_reason)
        for request, one in zip(requests, texts, strict=True)
    ]


def a_pool_drafter(recordings):
    """Half of the rows find their own text in the pool of their group."""
    documents = {
        group: [Document(own.token_ids) for own in recordings[:15] if own.request.group == group]
        for group in "ab"
    }
    return PoolDrafter(build_pools(documents, 12, max_bytes=10**6), 8)


def drafters_of(kind, recordings, noise_drafter, oracle_drafter):
    """Two alike: one for the engine, one for the replay."""
    texts = {own.request.key: np.append(own.token_ids, STOP) for own in recordings}
    make = {
        "none": NoDraft,
        "noise": lambda: noise_drafter(seed=3),
        "oracle": lambda: oracle_drafter(texts),
        "pools": lambda: a_pool_drafter(recordings),
    }[kind]
    return make(), make()


@pytest.mark.parametrize("costs", [FREE, LINEAR], ids=["free", "costs"])
@pytest.mark.parametrize("kind", ["none", "noise", "oracle", "pools"])
def test_a_replay_counts_what_the_engine_counts(
    kind, costs, engine, recordings, noise_drafter, oracle_drafter
):
    one, other = drafters_of(kind, recordings, noise_drafter, oracle_drafter)
    engine.use(one, Strict(), costs)
    done = {row.key: row for row in engine.generate([own.request for own in recordings])}
    truth = [done[own.request.key] for own in recordings]
    result = replay(recordings, other, STOPS, NODES, costs)
    for place, row in enumerate(truth):
        assert row.token_ids.tolist() == recordings[place].token_ids.tolist()
        assert result.passes[place] == row.statistics.forward_passes
        assert result.tokens[place] == len(row.token_ids)
        assert result.drafted[place] == row.statistics.drafted_by_source.sum()
        for name in ("accepted_by_source", "accepted_by_depth"):
            own = getattr(row.statistics, name)
            assert getattr(result, name)[place].tolist() == own.tolist()
    if kind in ("oracle", "pools"):
        assert result.accepted_by_depth.sum() > 30  # or nothing was compared


def test_seconds_are_those_of_the_steps(recordings):
    result = replay(recordings, a_pool_drafter(recordings), STOPS, NODES, LINEAR)
    np.testing.assert_allclose(result.seconds, result.passes + SLOPE * result.drafted)
    assert result.tokens_per_pass == result.tokens.sum() / result.passes.sum() > 1.0


def a_recording(text, finish_reason, new=5, prompt=(7, 8)):
    request = Request("row", np.array(prompt, np.int32), new)
    return Recording(request, np.array(text, np.int32), finish_reason)


class Chain:
    """Drafts the same tokens at every step, and remembers what became of them."""

    def __init__(self, *tokens):
        size = len(tokens)
        self._tree = DraftTree(
            np.array(tokens, np.int32),
            np.arange(-1, size - 1, dtype=np.int32),
            np.ones(size, np.float32),
            np.full(size, SOURCES.index("group"), np.int8),
            np.zeros(size, np.int32),
        )
        self.outcomes = []

    def propose(self, rows, max_nodes):
        return [self._tree for _ in rows]

    def observe(self, trees, outcomes):
        self.outcomes += [outcome.tolist() for outcome in outcomes]


def test_a_stop_token_takes_a_pass_and_a_full_length_none():
    ended = replay([a_recording([3, 4, 5], "stop")], NoDraft(), STOPS, 4)
    full = replay([a_recording([3, 4, 5], "length", new=3)], NoDraft(), STOPS, 4)
    assert (ended.passes.tolist(), ended.tokens.tolist()) == ([4], [3])
    assert (full.passes.tolist(), full.tokens.tolist()) == ([3], [3])


def test_outcomes_are_accepted_refused_and_untested():
    drafter = Chain(3, 4, 9, 9)
    result = replay([a_recording([3, 4, 5, 6], "length", new=4)], drafter, STOPS, 4)
    assert drafter.outcomes == [[1, 1, 0, -1], [0, -1, -1, -1]]
    assert result.accepted_by_source[0, SOURCES.index("group")] == 2
    assert result.accepted_by_depth[0, :3].tolist() == [1, 1, 0]
    assert (result.passes.tolist(), result.drafted.tolist()) == ([2], [8])


def test_a_drafted_stop_token_ends_the_row_and_what_follows_is_untested():
    drafter = Chain(3, STOP, 3)
    result = replay([a_recording([3], "stop")], drafter, STOPS, 4)
    assert drafter.outcomes == [[1, 1, -1]]
    assert (result.passes.tolist(), result.tokens.tolist()) == ([1], [1])


def test_a_stop_string_ends_a_row_without_a_stop_token():
    stops = Stops([STOP], ["de"], lambda ids: "".join("abcdefgh"[token] for token in ids))
    result = replay([a_recording([0, 3, 4], "stop")], NoDraft(), stops, 4)
    assert (result.passes.tolist(), result.tokens.tolist()) == ([3], [3])


def test_a_request_for_fewer_tokens_cuts_the_text():
    result = replay([a_recording([3, 4, 5, 6], "stop", new=2)], NoDraft(), STOPS, 4)
    assert (result.passes.tolist(), result.tokens.tolist()) == ([2], [2])


def test_a_text_that_nothing_ended_is_refused():
    with pytest.raises(ValueError, match=r"row row: .* 2 of 5 tokens"):
        replay([a_recording([3, 4], "length")], NoDraft(), STOPS, 4)


def test_no_rows_are_no_passes():
    result = replay([], NoDraft(), STOPS, 4)
    assert (result.tokens_per_pass, len(result.passes)) == (0.0, 0)
