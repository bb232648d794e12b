"""Models against hand-computed answers; padding must not matter and no history must be safe."""

from dataclasses import replace
from itertools import combinations
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from features.ctr.adaptor import HybridExpertAdaptor
from features.ctr.data import CtrData
from features.ctr.fields import Fields
from features.ctr.join import KnowledgeVectors
from features.ctr.models import MODELS
from features.ctr.models.autoint import InteractingLayer
from features.ctr.models.dcnv2 import CrossNetwork
from features.ctr.models.deepfm import pairwise
from features.ctr.models.din import Din
from features.ctr.models.lr import LinearTerm, LogisticRegression
from features.ctr.models.rows import KnowledgeInput, RowInput, make_batch, mean_of_events
from features.ctr.models.xdeepfm import CompressedInteraction
from features.ctr.training import build_network
from pipeline.config import CtrSettings

SETTINGS = CtrSettings(embedding_dim=4, adaptor_dim=3)
each_model = pytest.mark.parametrize("model", MODELS)
ROWS = np.arange(3)


def data():
    """Three rows; the last has no history."""
    ids = pa.chunked_array([["a", "b"]])
    return CtrData(
        user_ids=ids,
        item_ids=ids,
        users=np.array([0, 1, 1]),
        items=np.array([1, 0, 1]),
        timestamps=np.arange(3),
        labels=np.array([0, 1, 1], np.float32),
        splits=dict.fromkeys(("train", "valid", "test"), ROWS),
        history_items=np.array([[1, 2], [2, 0], [0, 0]]),
        history_signals=np.array([[2, 1], [1, 0], [0, 0]], np.int8),
        user_fields=Fields(("id", "job"), (3, 2), np.array([[1, 1], [2, 0]])),
        item_fields=Fields(("id",), (3,), np.array([[1], [2]])),
    )


def vectors(width=5):
    rng = np.random.default_rng(0)
    return KnowledgeVectors(*(rng.normal(size=(2, width)).astype(np.float32) for _ in range(2)))


def network(model, knowledge=None):
    torch.manual_seed(1)
    return build_network(data(), knowledge, SETTINGS, model)[0]


@pytest.mark.parametrize("knowledge", [None, vectors()], ids=["base", "knowledge"])
@each_model
def test_padding_does_not_matter(model, knowledge):
    plain = data()
    padded = replace(
        plain,
        history_items=np.pad(plain.history_items, ((0, 0), (0, 6))),
        history_signals=np.pad(plain.history_signals, ((0, 0), (0, 6))),
    )
    trained = network(model, knowledge)
    spoil_padding(trained)
    torch.testing.assert_close(trained(make_batch(plain, ROWS)), trained(make_batch(padded, ROWS)))


def spoil_padding(trained):
    """A padding code that has been trained is still no event."""
    with torch.no_grad():
        for module in trained.modules():
            if isinstance(module, RowInput):
                module.signals.weight[0] = 5.0
                module.codes.weight[module.starts] = 3.0
            if isinstance(module, LinearTerm):
                module.events.weight[0] = 5.0


@each_model
def test_what_an_absent_event_holds_changes_nothing(model):
    trained, plain = network(model, vectors()), data()
    other = np.where(plain.history_signals == 0, 2, plain.history_items)
    assert (other != plain.history_items).any()
    changed = make_batch(replace(plain, history_items=other), ROWS)
    assert torch.equal(trained(make_batch(plain, ROWS)), trained(changed))


@each_model
def test_knowledge_receives_gradient_through_experts_gate_and_towers(model):
    trained = network(model, vectors())
    inputs = [module for module in trained.modules() if isinstance(module, KnowledgeInput)]
    assert len(inputs) == 1
    logits = trained(make_batch(data(), ROWS))
    torch.nn.functional.softplus(logits).sum().backward()
    for name, parameter in inputs[0].named_parameters():
        assert parameter.grad is not None, name
    for kind in ("user", "item"):
        assert inputs[0].adaptor.gate[kind].weight.grad.any()


def test_the_config_names_every_model_and_no_other():
    (choice,) = get_args(CtrSettings.model_fields["models"].annotation)
    assert list(get_args(choice)) == list(MODELS)
    assert CtrSettings().models == ["din", "dcnv2"]


def test_lr_is_a_sum_of_weights_of_values_and_of_liked_or_disliked_items():
    lr, rows = network("lr"), data()
    assert isinstance(lr, LogisticRegression)
    values, events = 10 * lr.linear.values.weight[:, 0], 10 * lr.linear.events.weight[:, 0]
    with torch.no_grad():
        lr.linear.bias.fill_(0.05)
    # user b (code 2, job unknown: 0), item a (code 1); it disliked item b (code 2)
    wanted = 0.5 + values[2] + values[3] + values[5 + 1] + events[3 * 2 + 1]
    torch.testing.assert_close(lr(make_batch(rows, np.array([1])))[0], wanted)
    # user a (1), job 1, item b (2); it liked a and disliked b
    wanted = 0.5 + values[1] + values[4] + values[5 + 2] + (events[3 + 2] + events[6 + 1]) / 2
    torch.testing.assert_close(lr(make_batch(rows, np.array([0])))[0], wanted)


def test_the_pairwise_term_is_the_sum_over_all_pairs_of_fields():
    fields = torch.randn(3, 5, 4, dtype=torch.float64)
    wanted = sum((fields[:, i] * fields[:, j]).sum(1) for i, j in combinations(range(5), 2))
    torch.testing.assert_close(pairwise(fields), wanted)


def test_compressed_interactions_equal_a_loop_over_maps_and_fields():
    torch.manual_seed(0)
    network = CompressedInteraction(4, (3, 2)).double()
    fields = torch.randn(5, 4, 6, dtype=torch.float64)
    maps, wanted = fields, []
    for layer in network.layers:
        weights = layer.weight.unflatten(1, (maps.shape[1], 4))  # (after, before, fields)
        after = torch.zeros(5, len(weights), 6, dtype=torch.float64)
        for h in range(len(weights)):
            for i in range(maps.shape[1]):
                for j in range(4):
                    after[:, h] += weights[h, i, j] * maps[:, i] * fields[:, j]
        maps = after
        wanted.append(maps.sum(dim=2))
    torch.testing.assert_close(network(fields), torch.cat(wanted, dim=1))


class Largest(TorchDispatchMode):
    """The most numbers that any one tensor holds which is made meanwhile."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.numbers = max(self.numbers, made.numel())
        return made


@torch.no_grad()
def test_compressed_interactions_do_not_hold_all_products_of_two_fields():
    most = []
    for fields in (20, 40):
        network = CompressedInteraction(fields, (3, 2))
        with Largest() as largest:
            network(torch.zeros(50, fields, 6))
        most.append(largest.numbers)
    assert most[1] <= 2 * most[0] <= 2 * 50 * 20 * 6


def test_the_interacting_layer_equals_a_loop_over_heads_and_fields():
    torch.manual_seed(0)
    layer = InteractingLayer(4, 3, 2).double()
    fields = torch.randn(5, 6, 4, dtype=torch.float64)
    for row in range(5):
        for m in range(6):
            heads = []
            for h in range(2):
                part = slice(3 * h, 3 * h + 3)
                query, key, value = (
                    kind.weight[part] @ fields[row].T
                    for kind in (layer.query, layer.key, layer.value)
                )  # (3, fields)
                weights = torch.softmax(torch.stack([query[:, m] @ key[:, k] for k in range(6)]), 0)
                heads.append(sum(weights[k] * value[:, k] for k in range(6)))
            wanted = torch.relu(torch.cat(heads) + layer.residual.weight @ fields[row, m])
            torch.testing.assert_close(layer(fields)[row, m], wanted)


@each_model
def test_a_row_without_history_has_a_logit_and_gradients(model):
    trained = network(model)
    logit = trained(make_batch(data(), np.array([2])))
    logit.sum().backward()
    assert torch.isfinite(logit).all()
    gradients = [p.grad for p in trained.parameters() if p.grad is not None]
    assert gradients
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@each_model
def test_an_unknown_item_in_the_history_is_still_an_event(model):
    trained, row = network(model), np.array([2])
    unknown = replace(data(), history_signals=np.full((3, 2), 2, np.int8))
    assert not unknown.history_items[row].any()
    assert not torch.equal(trained(make_batch(data(), row)), trained(make_batch(unknown, row)))


@each_model
def test_every_input_reaches_the_logit(model):
    trained, plain = network(model, vectors()), data()
    before = trained(make_batch(plain, ROWS))
    changed = {
        "users": replace(plain, users=np.array([1, 0, 0])),
        "items": replace(plain, items=np.array([0, 1, 0])),
        "events": replace(plain, history_items=np.array([[2, 2], [1, 0], [0, 0]])),
        "signals": replace(plain, history_signals=np.array([[1, 1], [2, 0], [0, 0]], np.int8)),
    }
    for name, other in changed.items():
        after = trained(make_batch(other, ROWS))
        assert not torch.allclose(before[:2], after[:2]), name


def test_interest_is_the_weighted_sum_of_the_events_that_are_there():
    din = network("din")
    assert isinstance(din, Din)
    target, events = torch.randn(1, 4), torch.randn(1, 3, 4)
    is_there = torch.tensor([[True, False, True]])
    wanted = torch.zeros(4)
    for event, there in zip(events[0], is_there[0], strict=True):
        if there:
            pair = torch.cat([event, target[0], event - target[0], event * target[0]])
            wanted += din.attention(pair) * event
    torch.testing.assert_close(din.interest(target, events, is_there)[0], wanted)
    assert not din.interest(target, events, torch.zeros(1, 3, dtype=torch.bool)).any()


def test_cross_layers_equal_the_formula_by_hand():
    cross = CrossNetwork(2, 2)
    with torch.no_grad():
        for layer, (weight, bias) in zip(
            cross.layers, [([[1, 2], [3, 4]], [1, 0]), ([[0, 1], [1, 0]], [0, -1])], strict=True
        ):
            layer.weight.copy_(torch.tensor(weight))
            layer.bias.copy_(torch.tensor(bias))
    # x0 = (1, 2); W0 x0 + b0 = (6, 11); x1 = (1*6 + 1, 2*11 + 2) = (7, 24)
    # W1 x1 + b1 = (24, 6); x2 = (1*24 + 7, 2*6 + 24) = (31, 36)
    assert cross(torch.tensor([[1.0, 2.0]])).tolist() == [[31.0, 36.0]]


def test_mean_of_events_ignores_absent_ones():
    events = torch.tensor([[[2.0], [4.0], [99.0]], [[99.0], [99.0], [99.0]]])
    is_there = torch.tensor([[True, True, False], [False, False, False]])
    assert mean_of_events(events, is_there).tolist() == [[3.0], [0.0]]


@pytest.mark.parametrize("kind", ["user", "item"])
def test_the_adaptor_is_a_gated_sum_of_shared_and_own_experts(kind):
    torch.manual_seed(0)
    adaptor = HybridExpertAdaptor(5, 3)
    vector = torch.randn(5)
    gate = torch.softmax(adaptor.gate[kind](vector), dim=0)
    experts = [*adaptor.shared, *adaptor.own[kind]]
    wanted = sum(weight * expert(vector) for weight, expert in zip(gate, experts, strict=True))
    torch.testing.assert_close(adaptor(kind, vector[None])[0], wanted)


def test_towers_share_experts_and_keep_their_own():
    adaptor = HybridExpertAdaptor(5, 3)
    adaptor("user", torch.randn(2, 5)).sum().backward()
    assert any(p.grad is not None for p in adaptor.shared.parameters())
    assert all(p.grad is None for p in adaptor.own["item"].parameters())


def test_an_entity_is_adapted_alike_in_every_row():
    inputs = KnowledgeInput(vectors(), 3)
    adapted = inputs(make_batch(data(), ROWS))
    for row in ROWS:
        torch.testing.assert_close(adapted[row], inputs(make_batch(data(), np.array([row])))[0])
    assert not inputs.state_dict().keys() & {"users", "items"}  # tables are not weights


def test_unknown_codes_start_as_zero_vectors():
    rows = network("din").rows
    starts = rows.starts.tolist()
    assert starts == [0, 3, 5]
    assert not rows.codes.weight[starts].any()
    assert rows.codes.weight[1].all()
