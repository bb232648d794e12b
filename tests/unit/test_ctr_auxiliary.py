"""A framework's adaptor and its own loss inside a CTR model: who counts, and what training does."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from features.ctr import training
from features.ctr.adaptor import HybridExpertAdaptor
from features.ctr.arms import make_arms
from features.ctr.auxiliary import AuxiliaryLoss
from features.ctr.data import CtrData
from features.ctr.fields import Fields
from features.ctr.join import KnowledgeVectors
from features.ctr.models import MODELS
from features.ctr.models.rows import KnowledgeInput, RowInput, make_batch
from features.ctr.training import Task, Trial, build_network
from features.frameworks import REGISTRY, framework_named
from pipeline.config import CtrSettings

SETTINGS = CtrSettings(
    models=["dcnv2"], seeds=2, max_epochs=2, batch_size=8, embedding_dim=4, adaptor_dim=4
)
LEARNT = ["trawl", "rlmrec"]
WIDTH = 6


def data():
    """12 rows of 4 users and 3 items; user 3 has no known id or attribute."""
    users, items = np.arange(12) % 4, np.arange(12) % 3
    return CtrData(
        user_ids=pa.chunked_array([list("abcd")]),
        item_ids=pa.chunked_array([list("xyz")]),
        users=users,
        items=items,
        timestamps=np.arange(12),
        labels=(users % 2).astype(np.float32),
        splits=dict.fromkeys(("train", "valid", "test"), np.arange(12)),
        history_items=np.zeros((12, 2), np.int32),
        history_signals=np.zeros((12, 2), np.int8),
        user_fields=Fields(("id", "job"), (3, 2), np.array([[1, 1], [2, 0], [0, 1], [0, 0]])),
        item_fields=Fields(("id",), (4,), np.array([[1], [2], [3]])),
    )


def vectors(without=()):
    """Standardised texts; the items in `without` have none."""
    rng = np.random.default_rng(0)
    users, items = (rng.normal(size=(n, WIDTH + 1)).astype(np.float32) for n in (4, 3))
    users[:, -1] = items[:, -1] = 0.0
    items[list(without)] = [0.0] * WIDTH + [1.0]
    return KnowledgeVectors(users, items)


def fit_one(data, vectors, settings, model, arm, seed, framework="kar"):
    """A fit with the first of the settings."""
    task = Task(model, arm, seed, Trial(settings.learning_rates[0], settings.dropouts[0]))
    arms = make_arms(data, vectors, {}, None)
    return training.fit_one(data, arms[arm], task, settings, framework)


class Spy(nn.Module):
    """Keeps what it is shown."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def forward(self, kind, adapted, behaviour, vector_of):
        self.seen[kind] = (adapted, behaviour, vector_of.tolist())
        return adapted.sum()


def spied(known, rows=None, of=None):
    torch.manual_seed(0)
    of = of or data()
    row_input, knowledge, spy = RowInput(of, 4), KnowledgeInput(known, 5), Spy()
    auxiliary = AuxiliaryLoss(row_input, knowledge, spy, 0.5)
    loss = auxiliary(make_batch(of, np.arange(12) if rows is None else rows))
    return row_input, knowledge, spy.seen, loss


def test_each_entity_counts_once_with_its_own_text_and_known_fields():
    known = vectors()
    rows, knowledge, seen, loss = spied(known)
    table = rows.codes.weight
    # codes: user ids from 0, jobs from 3, items from 5; an unknown code takes no part in the mean
    wanted = torch.stack([(table[1] + table[4]) / 2, table[2], table[4]])
    torch.testing.assert_close(seen["user"][1], wanted)
    torch.testing.assert_close(seen["item"][1], table[6:9])
    for kind, texts, places in (("user", known.users, [0, 1, 2]), ("item", known.items, [0, 1, 2])):
        adapted = knowledge.adaptor(kind, torch.tensor(texts[places]))
        torch.testing.assert_close(seen[kind][0], adapted)
    total = seen["user"][0].sum() + seen["item"][0].sum()
    torch.testing.assert_close(loss, 0.5 * total)


def test_the_order_of_rows_and_repeats_change_nothing():
    one, other = spied(vectors(), np.arange(12)), spied(vectors(), np.arange(12)[::-1].copy())
    torch.testing.assert_close(one[3], other[3])


def test_entities_without_text_or_behaviour_are_left_out():
    seen, loss = spied(vectors(without=[1]))[2:]
    assert seen["item"][1].shape == (2, 4)
    assert seen["user"][1].shape == (3, 4)  # user 3 is unknown
    assert seen["item"][0].shape == (2, 5)
    adapted = seen["user"][0].sum() + seen["item"][0].sum()
    torch.testing.assert_close(loss, 0.5 * adapted)
    nobody = spied(vectors(without=[0, 1, 2]), rows=np.array([3, 7, 11]))[2:]
    assert nobody[0] == {}
    assert nobody[1].item() == 0.0


def test_entities_whose_codes_are_all_the_same_have_one_vector_and_the_loss_is_told():
    """As users of one job where ids are left out."""
    codes = np.array([[0, 1], [0, 1], [1, 1], [0, 1]])
    alike = replace(data(), user_fields=Fields(("id", "job"), (2, 2), codes))
    seen = spied(vectors(), of=alike)[2]
    one, same, other, again = seen["user"][2]
    assert one == same == again != other
    assert torch.equal(seen["user"][1][0], seen["user"][1][1])
    assert len(set(seen["item"][2])) == 3


def test_a_batch_with_nobody_to_align_has_no_gradient_that_is_not_finite():
    for name in LEARNT:
        network, auxiliary = build_network(data(), vectors([0, 1, 2]), SETTINGS, "dcnv2", name)
        batch = make_batch(data(), np.array([3]))
        (network(batch).sum() + auxiliary(batch)).backward()
        assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", REGISTRY)
def test_a_network_has_its_framework_s_adaptor_and_loss(name):
    framework = framework_named(name)
    network, auxiliary = build_network(data(), vectors(), SETTINGS, "dcnv2", name)
    assert type(network.knowledge.adaptor) is type(framework.adaptor(2, 2))
    assert (auxiliary is None) == (framework.auxiliary is None)
    assert build_network(data(), None, SETTINGS, "dcnv2", name)[1] is None


def test_a_network_without_a_named_framework_is_kar_s():
    torch.manual_seed(3)
    default, _ = build_network(data(), vectors(), SETTINGS, "dcnv2")
    assert isinstance(default.knowledge.adaptor, HybridExpertAdaptor)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_that_embeds_something_has_vectors_to_align(model):
    network, auxiliary = build_network(data(), vectors(), SETTINGS, model, "rlmrec")
    assert (auxiliary is None) == (model == "lr")
    assert network(make_batch(data(), np.arange(3))).shape == (3,)


@pytest.mark.parametrize("name", LEARNT)
def test_the_bridge_of_a_loss_is_trained_with_the_network(name):
    wide = SETTINGS.model_copy(update={"adaptor_dim": 5})
    network, auxiliary = build_network(data(), vectors(), wide, "dcnv2", name)
    bridge = list(auxiliary.parameters())
    before = [parameter.clone() for parameter in bridge]
    training._train(
        network, auxiliary, data(), wide, Task("dcnv2", "knowledge", 0, Trial(1e-3, 0.0))
    )
    assert len(bridge) == 4
    assert not any(torch.equal(*pair) for pair in zip(before, bridge, strict=True))


@pytest.mark.parametrize("name", LEARNT)
def test_what_is_kept_of_a_network_holds_every_tensor_once_and_no_bridge(name):
    wide = SETTINGS.model_copy(update={"adaptor_dim": 5})
    network, auxiliary = build_network(data(), vectors(), wide, "dcnv2", name)
    kept = [value.data_ptr() for value in network.state_dict().values()]
    assert len(kept) == len(set(kept))
    assert not set(kept) & {parameter.data_ptr() for parameter in auxiliary.parameters()}


@pytest.mark.parametrize("name", REGISTRY)
def test_a_fit_with_any_framework_repeats_to_the_bit(name):
    first, again = (
        fit_one(data(), vectors(), SETTINGS, "dcnv2", "knowledge", 0, name) for _ in range(2)
    )
    assert first.test_probabilities.tobytes() == again.test_probabilities.tobytes()


@pytest.mark.parametrize("name", LEARNT)
def test_the_loss_changes_what_is_learnt_and_its_weight_how_much(name, monkeypatch):
    framework = framework_named(name)
    module = REGISTRY[name]
    fits = []
    for weight in (0.0, framework.auxiliary_weight):
        monkeypatch.setattr(f"{module}.FRAMEWORK", replace(framework, auxiliary_weight=weight))
        fits.append(fit_one(data(), vectors(), SETTINGS, "dcnv2", "knowledge", 0, name))
    assert fits[0].test_probabilities.tobytes() != fits[1].test_probabilities.tobytes()


@pytest.mark.parametrize("name", LEARNT)
def test_the_placebo_learns_nothing_by_the_loss_of_its_framework(name, monkeypatch):
    """Its texts are those of others: RLMRec's loss would draw ids toward them."""
    framework, fits = framework_named(name), []
    for weight in (0.0, 100.0):
        heavy = replace(framework, auxiliary_weight=weight)
        monkeypatch.setattr(f"{REGISTRY[name]}.FRAMEWORK", heavy)
        fits.append(fit_one(data(), vectors(), SETTINGS, "dcnv2", "shuffled", 0, name))
    assert fits[0].test_probabilities.tobytes() == fits[1].test_probabilities.tobytes()


def test_the_base_arm_is_the_same_whatever_the_framework():
    fits = [fit_one(data(), vectors(), SETTINGS, "dcnv2", "base", 0, name) for name in REGISTRY]
    assert len({fit.test_probabilities.tobytes() for fit in fits}) == 1


@pytest.mark.parametrize("name", LEARNT)
def test_training_lowers_the_framework_s_own_loss(name):
    torch.manual_seed(0)
    network, auxiliary = build_network(data(), vectors(), SETTINGS, "dcnv2", name)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    batch, labels = make_batch(data(), np.arange(12)), torch.from_numpy(data().labels)
    before = auxiliary(batch).item()
    for _ in range(40):
        loss = nn.functional.binary_cross_entropy_with_logits(network(batch), labels)
        optimizer.zero_grad()
        (loss + auxiliary(batch)).backward()
        optimizer.step()
    assert auxiliary(batch).item() < 0.5 * before
