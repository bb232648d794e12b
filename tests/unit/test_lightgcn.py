import numpy as np
import pytest
import torch

from pipeline.config import EmbeddingSettings
from pipeline.errors import ConfigError
from retrieval_pools.edges import Edges, hold_out_latest, unique_edges
from retrieval_pools.lightgcn import (
    LightGCN,
    SymmetricLightGCN,
    Trainer,
    normalised_adjacency,
    train_lightgcn,
)
from retrieval_pools.ranking import (
    embedding_scorer,
    evaluate,
    popularity_scorer,
    random_scorer,
    ranking_task,
)

NUM_USERS, NUM_ITEMS = 60, 80
SMALL = EmbeddingSettings(dim=8, layers=2, max_epochs=4, evaluate_every=2, batch_size=64)


def _edges(pairs):
    users, items = np.array(pairs, np.int64).reshape(-1, 2).T
    return Edges(users, items)


def _pairs(edges):
    return set(zip(edges.users.tolist(), edges.items.tolist(), strict=True))


def _blocks(seed=0, per_user=12):
    """Four blocks of users who like the items of their block, and now and then another."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(NUM_USERS), per_user)
    items = rng.integers(0, NUM_ITEMS // 4, len(users)) * 4 + users % 4
    stray = rng.random(len(users)) < 0.1
    items[stray] = rng.integers(0, NUM_ITEMS, stray.sum())
    order = rng.permutation(len(users))
    return unique_edges(Edges(users[order], items[order]), NUM_ITEMS)


def _dense_adjacency(edges, num_users, num_items):
    adjacency = np.zeros((num_users + num_items,) * 2)
    adjacency[edges.users, edges.items + num_users] = 1
    adjacency += adjacency.T
    degrees = adjacency.sum(1)
    scale = np.where(degrees > 0, degrees, 1) ** -0.5
    return scale[:, None] * adjacency * scale


@pytest.fixture(scope="module")
def split():
    return hold_out_latest(_blocks(), 0.2)


@pytest.fixture(scope="module")
def trained(split):
    settings = EmbeddingSettings(
        dim=16, layers=2, learning_rate=0.02, max_epochs=60, evaluate_every=3, patience=5
    )
    return settings, train_lightgcn(*split, NUM_USERS, NUM_ITEMS, settings, seed=7)


def test_sparse_propagation_is_the_mean_of_the_dense_formula_over_layers():
    edges = _edges([(0, 0), (0, 1), (1, 1), (2, 1), (2, 3)])  # item 2 is isolated
    model = SymmetricLightGCN(7, 5, layers=3)
    layer = model.embedding.weight.detach().numpy().astype(np.float64)
    dense, total = _dense_adjacency(edges, 3, 4), layer
    for _ in range(3):
        layer = dense @ layer
        total = total + layer
    ours = model.get_embedding(normalised_adjacency(edges, 3, 4)).detach().numpy()
    np.testing.assert_allclose(ours, total / 4, atol=1e-6)


def test_propagation_and_its_gradient_agree_with_message_passing(split):
    train = split[0]
    matrix = SymmetricLightGCN(NUM_USERS + NUM_ITEMS, 6, 2)
    passing = LightGCN(NUM_USERS + NUM_ITEMS, 6, 2)
    passing.load_state_dict(matrix.state_dict())
    one_way = torch.as_tensor(np.stack([train.users, train.items + NUM_USERS]))
    both_ways = torch.cat([one_way, one_way.flip(0)], dim=1)
    ours = matrix.get_embedding(normalised_adjacency(train, NUM_USERS, NUM_ITEMS))
    theirs = passing.get_embedding(both_ways)
    torch.testing.assert_close(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    torch.testing.assert_close(matrix.embedding.weight.grad, passing.embedding.weight.grad)


def test_held_out_edges_are_not_in_the_graph(split):
    train, validation = split
    assert not _pairs(train) & _pairs(validation)
    dense = normalised_adjacency(train, NUM_USERS, NUM_ITEMS).to_dense().numpy()
    assert (dense[validation.users, validation.items + NUM_USERS] == 0).all()
    np.testing.assert_allclose(dense, _dense_adjacency(train, NUM_USERS, NUM_ITEMS), atol=1e-6)


def test_validation_edges_cannot_touch_the_vectors_of_an_epoch(split):
    train, validation = split
    once = SMALL.model_copy(update={"max_epochs": 1})
    other = validation.select(np.arange(len(validation)) % 2 == 0)
    first, second = (
        train_lightgcn(train, held_out, NUM_USERS, NUM_ITEMS, once, seed=1)
        for held_out in (validation, other)
    )
    assert np.array_equal(first.user_vectors, second.user_vectors)
    assert np.array_equal(first.item_vectors, second.item_vectors)


def test_a_repeated_edge_changes_nothing(split):
    train, validation = split
    doubled = Edges(np.tile(train.users, 2), np.tile(train.items, 2))
    plain, repeated = (
        train_lightgcn(edges, validation, NUM_USERS, NUM_ITEMS, SMALL, seed=1)
        for edges in (train, doubled)
    )
    assert np.array_equal(plain.user_vectors, repeated.user_vectors)
    assert np.array_equal(plain.item_degrees, repeated.item_degrees)


def test_isolated_entities_have_degree_zero_and_a_zero_vector():
    edges = _edges([(0, 0), (0, 1), (2, 1)])
    result = train_lightgcn(edges, _edges([(1, 2)]), 3, 3, SMALL, seed=0)
    assert result.user_degrees.tolist() == [2, 0, 1]
    assert result.item_degrees.tolist() == [1, 2, 0]
    assert (result.user_vectors[1] == 0).all()
    assert (result.item_vectors[2] == 0).all()
    assert (np.abs(result.user_vectors[[0, 2]]).max(axis=1) > 0).all()
    assert result.user_vectors.dtype == np.float32


def test_the_same_seed_gives_the_same_bits_and_leaves_global_state_alone(split, request):
    threads = torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    torch.set_num_threads(threads + 1)  # more than so small a graph is given
    state = torch.get_rng_state()
    first, again, other = (
        train_lightgcn(*split, NUM_USERS, NUM_ITEMS, SMALL, seed) for seed in (3, 3, 4)
    )
    assert np.array_equal(first.user_vectors, again.user_vectors)
    assert np.array_equal(first.item_vectors, again.item_vectors)
    assert first.history == again.history
    assert not np.array_equal(first.user_vectors, other.user_vectors)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads + 1


def test_embeddings_beat_popularity_and_chance_on_a_block_graph(split, trained):
    train, validation = split
    task = ranking_task(train, validation, NUM_ITEMS)
    popular = evaluate(task, popularity_scorer(train, NUM_ITEMS))
    chance = evaluate(task, random_scorer(NUM_ITEMS, seed=0))
    ours = trained[1].best.metrics
    assert ours.recall > 1.5 * max(popular.recall, chance.recall)
    assert ours.ndcg > 1.5 * max(popular.ndcg, chance.ndcg)


def test_the_vectors_are_those_of_the_best_epoch_and_training_stops_after_it(split, trained):
    settings, result = trained
    task = ranking_task(*split, NUM_ITEMS)
    vectors = torch.as_tensor(result.user_vectors), torch.as_tensor(result.item_vectors)
    assert evaluate(task, embedding_scorer(*vectors)) == result.best.metrics
    assert result.best.metrics.recall == max(seen.metrics.recall for seen in result.history)
    waited = (result.history[-1].epoch - result.best.epoch) // settings.evaluate_every
    assert result.history[-1].epoch < settings.max_epochs
    assert waited == settings.patience


def test_without_validation_edges_the_last_epoch_counts(split):
    result = train_lightgcn(split[0], _edges([]), NUM_USERS, NUM_ITEMS, SMALL, seed=0)
    assert result.best == result.history[-1]
    assert result.best.epoch == SMALL.max_epochs


def test_without_training_edges_everything_is_isolated():
    result = train_lightgcn(_edges([]), _edges([]), 3, 4, SMALL, seed=0)
    assert result.user_vectors.shape == (3, SMALL.dim)
    assert result.item_vectors.shape == (4, SMALL.dim)
    assert not result.item_vectors.any()
    assert result.best is None


def test_users_who_have_everything_leave_finite_vectors():
    everything = _edges([(user, item) for user in range(3) for item in range(2)])
    result = train_lightgcn(everything, _edges([]), 3, 2, SMALL, seed=0)
    assert np.isfinite(result.user_vectors).all()
    assert result.user_vectors.any()


def test_batches_grow_with_the_edges_so_that_an_epoch_has_no_more_of_them(split, monkeypatch):
    monkeypatch.setattr("retrieval_pools.lightgcn._MOST_BATCHES", 3)
    steps = []
    step = Trainer._step

    def counted(trainer, *batch):
        steps.append(len(batch[0]))
        return step(trainer, *batch)

    monkeypatch.setattr(Trainer, "_step", counted)
    tiny = SMALL.model_copy(update={"batch_size": 4})
    Trainer(split[0], NUM_USERS, NUM_ITEMS, tiny, seed=0).epoch()
    assert len(steps) == 3
    assert sum(steps) == len(split[0])


def test_a_diverging_loss_names_the_setting_to_change(split):
    wild = SMALL.model_copy(update={"learning_rate": 1e30})
    with pytest.raises(ConfigError, match=r"embeddings\.learning_rate"):
        train_lightgcn(*split, NUM_USERS, NUM_ITEMS, wild, seed=0)
