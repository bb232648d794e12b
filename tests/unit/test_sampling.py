"""Sampling is lossless: whatever is drafted, outputs are distributed as the model alone has it."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pipeline.config import EngineSettings
from pipeline.engine.branch import NO_TOKEN, Verdict
from pipeline.engine.budget import FREE, CostTable
from pipeline.engine.draft_model import DraftModelDrafter
from pipeline.engine.engine import Engine
from pipeline.engine.processors import Processors
from pipeline.engine.sampling import Sampled, Sampling, draw
from pipeline.engine.stops import Stops
from pipeline.engine.types import DraftTree, NoDraft, Request

VOCAB, STOP, NEW = 7, 2, 3
PROMPT = np.array([3, 5, 4, 6], np.int32)
ROWS = 1500
SIZES = EngineSettings(batch_rows=40, max_length=32, prefill_tokens=512, draft_nodes=16)
UNLIKELY = 1e-3  # of a right sampler to do worse; seeds are fixed, so it never does
PLAIN = Sampling()
WARPED = Sampling(temperature=0.8, top_k=5, top_p=0.9)
PENALTY = 1.3


def free():
    """Nodes cost nothing, so that every draft is verified; the engine refines its own table."""
    return FREE.copy()


def make_model(seed=7, layers=1, scale=6.0):
    """Mild logits: several tokens are likely everywhere."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=STOP,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model


def make_engine(penalty=1.0, sizes=SIZES, model=None):
    stops = Stops([STOP])
    return Engine(model or make_model(), sizes, stops, Processors(stops.ids, penalty), costs=free())


def make_draft_model(model, sampling, penalty=1.0, tokens=2):
    return DraftModelDrafter(
        model, VOCAB, tokens, SIZES, Processors(frozenset([STOP]), penalty), free(), sampling,
        replace(FREE, seconds=np.full((1, 1, 2), 1e-4)),
    )  # fmt: skip


def sample(drafter, sampling=PLAIN, penalty=1.0, rows=ROWS, rule=None, costs=None):
    """Outputs of many rows that differ in their seeds only: (engine, generations)."""
    engine = make_engine(penalty)
    engine.use(drafter, rule or Sampled(sampling), costs or free())
    requests = [Request(str(seed), PROMPT, NEW, seed=seed) for seed in range(rows)]
    return engine, list(engine.generate(requests))


def observed(generations):
    return Counter(
        (*done.token_ids.tolist(), *([STOP] if done.finish_reason == "stop" else []))
        for done in generations
    )


@torch.inference_mode()
def exact(sampling=PLAIN, penalty=1.0):
    """Probability of every output, stop token included, by transformers' own processors."""
    model = make_model()
    processors = LogitsProcessorList()
    if penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(penalty))
    processors.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        processors.append(TopPLogitsWarper(sampling.top_p))
    whole, open_outputs = {}, {(): 1.0}
    for _ in range(NEW):
        ids = torch.tensor([[*PROMPT.tolist(), *output] for output in open_outputs])
        probabilities = processors(ids, model(ids).logits[:, -1].clone()).softmax(-1).tolist()
        longer = {
            (*output, token): share * probability
            for (output, share), row in zip(open_outputs.items(), probabilities, strict=True)
            for token, probability in enumerate(row)
            if probability > 0.0
        }
        whole |= {output: share for output, share in longer.items() if output[-1] == STOP}
        open_outputs = {out: share for out, share in longer.items() if out[-1] != STOP}
    return whole | open_outputs


def fit(counts, expected):
    """P-value of chi-square; cells of fewer than 5 expected rows are one."""
    rows = sum(counts.values())
    if set(counts) - set(expected):
        return 0.0  # an impossible output
    large = [output for output, share in expected.items() if share * rows >= 5.0]
    share = np.array([expected[output] for output in large])
    seen = np.array([counts[output] for output in large], float)
    if 1.0 - share.sum() > 1e-9:
        share, seen = np.append(share, 1.0 - share.sum()), np.append(seen, rows - seen.sum())
    statistic = ((seen - rows * share) ** 2 / (rows * share)).sum()
    return float(chi2.sf(statistic, len(share) - 1))


class FixedTree:
    """The same tokens for every row, at every step."""

    def __init__(self, tokens, parents):
        self._tokens, self._parents = np.array(tokens, np.int32), np.array(parents, np.int32)

    def propose(self, rows, max_nodes):
        size = len(self._tokens)
        depths = DraftTree(
            self._tokens, self._parents, np.ones(size), np.ones(size), np.ones(size)
        ).depths()
        return [
            DraftTree(
                self._tokens,
                self._parents,
                (0.7**depths).astype(np.float32),
                np.zeros(size, np.int8),
                np.zeros(size, np.int32),
            )
            for _ in rows
        ]

    def observe(self, trees, outcomes):
        self.accepted = getattr(self, "accepted", 0) + sum((out == 1).sum() for out in outcomes)


class DrawnTree:
    """Two levels of three siblings, each drawn from a distribution that knows nothing."""

    def __init__(self):
        self._random = np.random.default_rng(3)
        self._q = torch.tensor([0.02, 0.08, 0.1, 0.3, 0.1, 0.3, 0.1])

    def propose(self, rows, max_nodes):
        return [self._tree() for _ in rows]

    def _tree(self):
        tokens = self._random.choice(VOCAB, 6, p=self._q.double() / self._q.double().sum())
        return DraftTree(
            tokens.astype(np.int32),
            np.array([-1, -1, -1, 0, 0, 2], np.int32),
            np.array([0.6, 0.6, 0.6, 0.3, 0.3, 0.3], np.float32),
            np.zeros(6, np.int8),
            np.zeros(6, np.int32),
            self._q.expand(6, VOCAB).clone(),
        )

    def observe(self, trees, outcomes):
        pass


CHAIN = ([3, 5, 4], [-1, 0, 1])
TREE = ([3, 5, 3, 6, 4, 2, 4, 4, 0, 5], [-1, -1, -1, -1, 0, 0, 1, 1, 4, 4])  # 3 and 4 stand twice


def test_the_model_is_fit_for_the_test():
    """Many outputs, of either ending, and none that dominates."""
    shares = exact()
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-5)
    assert sum(share * ROWS >= 5 for share in shares.values()) > 40
    assert 0.03 < max(shares.values()) < 0.25
    assert 0.1 < sum(share for output, share in shares.items() if output[-1] == STOP) < 0.9
    assert len(exact(WARPED, PENALTY)) < len(shares)


@pytest.mark.parametrize(
    ("sampling", "penalty"), [(PLAIN, 1.0), (WARPED, PENALTY)], ids=["plain", "warped"]
)
@pytest.mark.parametrize("drafts", ["none", "chain", "tree", "drawn tree"])
def test_outputs_are_distributed_as_the_model_alone_has_them(drafts, sampling, penalty):
    drafter = {
        "none": NoDraft,
        "chain": lambda: FixedTree(*CHAIN),
        "tree": lambda: FixedTree(*TREE),
        "drawn tree": DrawnTree,
    }[drafts]()
    _, generations = sample(drafter, sampling, penalty)
    assert fit(observed(generations), exact(sampling, penalty)) > UNLIKELY
    tokens = sum(len(done.token_ids) + (done.finish_reason == "stop") for done in generations)
    passes = sum(done.statistics.forward_passes for done in generations)
    assert (tokens > 1.05 * passes) == (drafts != "none")  # drafts are really accepted


@pytest.mark.parametrize(
    ("sampling", "penalty"), [(PLAIN, 1.0), (WARPED, PENALTY)], ids=["plain", "warped"]
)
@pytest.mark.parametrize("draft_model", ["good", "bad", "same"])
def test_a_draft_model_changes_no_distribution(draft_model, sampling, penalty):
    model = make_model()
    if draft_model == "bad":
        model = make_model(seed=9, scale=9.0)
    elif draft_model == "good":
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * parameter.std() * torch.randn_like(parameter))
    drafter = make_draft_model(model, sampling, penalty)
    _, generations = sample(drafter, sampling, penalty)
    assert fit(observed(generations), exact(sampling, penalty)) > UNLIKELY
    passes = {"good": (1.0, 1.5), "bad": (1.4, 2.4), "same": (1.0, 1.0)}[draft_model]
    mean = np.mean([done.statistics.forward_passes for done in generations])
    assert passes[0] <= mean <= passes[1]  # the same model is never refused: p = q


def test_a_budget_that_cuts_drawn_trees_changes_no_distribution():
    """A node takes 0.55 of a row's time: the first level pays, but not the whole of it."""
    per_row = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 7.0])
    costs = CostTable(
        np.array([1]), np.array([1]), per_row, 1.0 + 0.55 * (per_row[None, None] - 1.0)
    )
    drafter = DrawnTree()
    engine, generations = sample(drafter, costs=costs)
    steps, rows = engine.statistics.steps, sum(d.statistics.forward_passes for d in generations)
    drafted = sum(int(done.statistics.drafted_by_source.sum()) for done in generations)
    assert 0.3 * rows < drafted < 5.0 * rows, (steps, drafted, rows)  # cut, but not to nothing
    assert fit(observed(generations), exact()) > UNLIKELY


@pytest.mark.parametrize("drafts", ["none", "tree", "draft model"])
def test_a_row_that_may_say_nothing_fails_alone(drafts):
    """No token may come twice, and there are seven: only the short prompt leaves room for four."""
    processors = Processors(frozenset(), no_repeat_ngram=1)
    drafter = {
        "none": NoDraft,
        "tree": lambda: FixedTree(*TREE),
        "draft model": lambda: DraftModelDrafter(
            make_model(), VOCAB, 3, SIZES, processors, free(), PLAIN,
            replace(FREE, seconds=np.full((1, 1, 2), 1e-4)),
        ),
    }[drafts]()  # fmt: skip
    engine = Engine(make_model(), SIZES, Stops([]), processors, costs=free())
    engine.use(drafter, Sampled(PLAIN), free())
    prompts = {"crowded": PROMPT, "full": np.arange(VOCAB, dtype=np.int32), "roomy": PROMPT[:1]}
    rows = [
        Request(f"{name} {seed}", prompt, 4, seed=seed)
        for name, prompt in prompts.items()
        for seed in range(8)
    ]
    for done in engine.generate(rows):
        prompt = prompts[done.key.split()[0]]
        said = done.token_ids.tolist()
        assert len(said) == min(4, VOCAB - len(prompt))  # all that may be said, drafted or not
        assert len({*prompt.tolist(), *said}) == len(prompt) + len(said)
        assert done.finish_reason == ("length" if len(said) == 4 else "error")
        assert ("every token is banned" in done.error) == (len(said) < 4)
    if drafts == "draft model":
        assert drafter.expected_speedup() > 1.0  # it did draft


class AlwaysAccepts(Sampled):
    """Wrong: takes every draft."""

    def judge(self, scores, branches):
        verdicts = super().judge(scores, branches)
        return [
            Verdict(branch.children()[:1].tolist(), [0.0], verdict.token)
            if len(branch.children())
            else verdict
            for branch, verdict in zip(branches, verdicts, strict=True)
        ]


class ForgetsTheResidual(Sampled):
    """Wrong: after a refusal draws from p, not from what is left of it."""

    def judge(self, scores, branches):
        verdicts = super().judge(scores, branches)
        probabilities = self._sampling.distribution(scores)
        uniforms = np.array([branch.row.random.random() for branch in branches])
        return [
            verdict if verdict.kept else Verdict([], [], token)
            for verdict, token in zip(verdicts, draw(probabilities, uniforms).tolist(), strict=True)
        ]


@pytest.mark.parametrize("rule", [AlwaysAccepts, ForgetsTheResidual])
def test_a_wrong_sampler_would_be_found(rule):
    _, generations = sample(DrawnTree(), rule=rule(PLAIN))
    assert fit(observed(generations), exact()) < 1e-6


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(*settings)
        for settings in itertools.product([1.0, 0.5, 1.7], [0, 1, 3, 50], [1.0, 0.6, 0.01])
    ],
    ids=str,
)
def test_distributions_are_those_of_transformers(sampling):
    """Temperature, top-k, top-p, in the order in which `generate` puts them."""
    torch.manual_seed(0)
    model = make_model()
    model.generation_config.update(
        do_sample=True,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
    )
    processors = model._get_logits_processor(
        model.generation_config, input_ids_seq_length=1, device=torch.device("cpu")
    )
    scores = torch.randn(5, VOCAB) * 3.0
    scores[1, 2:] = -torch.inf  # a processor forbade nearly all
    expected = processors(torch.zeros(5, 1, dtype=torch.long), scores.clone()).softmax(-1)
    before = scores.clone()
    assert torch.equal(sampling.distribution(scores), expected)
    assert torch.equal(scores, before)


def test_draw_inverts_the_cumulative_distribution():
    probabilities = torch.tensor([[0.0, 0.5, 0.0, 0.25, 0.25, 0.0]]).repeat(6, 1)
    uniforms = np.array([0.0, 0.499, 0.5, 0.749, 0.75, np.nextafter(1.0, 0.0)])
    assert draw(probabilities, uniforms).tolist() == [1, 1, 3, 3, 4, 4]


def test_nothing_is_drawn_where_everything_is_impossible():
    banned = torch.full((1, 3), -torch.inf).softmax(-1)
    probabilities = torch.cat([banned, torch.zeros(1, 3), torch.tensor([[0.0, 0.5, 0.5]])])
    assert draw(probabilities, np.full(3, 0.9)).tolist() == [NO_TOKEN, NO_TOKEN, 2]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_draw_needs_no_normalised_rows_and_never_takes_an_impossible_token(scale):
    random = np.random.default_rng(1)
    weights = torch.from_numpy(random.random((400, 50)).astype(np.float32))
    weights[torch.from_numpy(random.random((400, 50)) < 0.9)] = 0.0
    weights[:, 0] = 0.0
    weights[:, 7] += 1e-3
    for uniforms in (random.random(400), np.zeros(400), np.full(400, np.nextafter(1.0, 0.0))):
        tokens = draw(weights * scale, uniforms)
        assert (weights[torch.arange(400), tokens] > 0.0).all()
        assert torch.equal(tokens, draw(weights, uniforms))
