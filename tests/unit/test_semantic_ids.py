"""Quantizers, collisions and their health, on items whose codes one can reckon by hand."""

import logging
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, DataError
from pipeline.generative.collisions import resolve
from pipeline.generative.health import (
    code_usage,
    codebook_health,
    collisions,
    neighbour_agreement,
    reconstruction_errors,
    seen_prefixes,
)
from pipeline.generative.item_vectors import ItemVectors, fit_scaling
from pipeline.generative.residual import k_means, last_level_choices, quantize, reconstruct
from pipeline.generative.rq_kmeans import RqKmeans, fit_rq_kmeans
from pipeline.generative.rq_vae import _Network, _Training
from pipeline.generative.semantic_ids import (
    ItemContents,
    fit_tokenizer,
    load_tokenizer,
    without_collaborative,
)
from pipeline.generative_config import RqVaeSettings, SemanticIdSettings

QUANTIZERS = ["rq_kmeans", "rq_vae"]
# Level 1 tells left from right, level 2 up from down.
BOOKS = np.array([[[-4, 0], [4, 0]], [[0, -1], [0, 1]]], np.float32)


def blobs(per_blob=30, blobs=4, width=6, seed=0, spread=0.05):
    """Items around a few far centres, blob by blob."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(blobs, width))
    noise = spread * rng.normal(size=(blobs * per_blob, width))
    return (np.repeat(centres, per_blob, axis=0) + noise).astype(np.float32)


def contents(content, collaborative, cold=()):
    """Items with texts of their own; those of `cold` have neither vector nor interaction."""
    warm = ~np.isin(np.arange(len(content)), cold)
    collaborative = np.where(warm[:, None], collaborative, 0).astype(np.float32)
    texts = np.ones(len(content), bool)
    return ItemContents(content, collaborative, texts, texts, warm, warm)


@pytest.fixture(params=QUANTIZERS)
def settings(request):
    vae = RqVaeSettings(hidden_dim=32, latent_dim=8, batch_size=32, max_epochs=30, patience=10)
    return SemanticIdSettings(quantizer=request.param, levels=2, codebook_size=4, rq_vae=vae)


def all_known(values, widths=None):
    widths = widths or (values.shape[1], 0)
    return ItemVectors(values, np.ones((len(values), 2), bool), widths)


def test_each_level_codes_what_the_one_before_left_over():
    vectors = np.array([[3, 2], [-5, -1], [5, -9]], np.float32)
    codes = quantize(vectors, BOOKS)
    assert codes.tolist() == [[1, 1], [0, 0], [1, 0]]
    assert reconstruct(codes, BOOKS).tolist() == [[4, 1], [-4, -1], [4, -1]]
    assert reconstruct(codes[:, :1], BOOKS).tolist() == [[4, 0], [-4, 0], [4, 0]]
    assert last_level_choices(vectors, BOOKS).tolist() == [[1, 0], [0, 1], [0, 1]]


def test_k_means_finds_far_blobs_whatever_the_seed():
    vectors = blobs()
    for seed in range(10):
        found = k_means(vectors, 4, np.random.default_rng(seed))
        groups = found.assignment.reshape(4, -1)
        assert (groups == groups[:, :1]).all()
        assert len(set(groups[:, 0].tolist())) == 4
        means = vectors.reshape(4, -1, vectors.shape[1]).mean(axis=1)
        np.testing.assert_allclose(found.centroids[groups[:, 0]], means, atol=1e-5)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 6))
def test_k_means_leaves_no_code_dead_that_a_vector_could_use(numbers, size):
    vectors = np.array(numbers, np.float32)[:, None] * [[1, 2]]
    found = k_means(vectors.astype(np.float32), size, np.random.default_rng(1))
    distinct = len(set(numbers))
    if distinct <= size:
        assert np.abs(found.centroids[found.assignment] - vectors).max() < 1e-5
    assert len(np.unique(found.assignment)) == min(distinct, size)


def test_an_item_without_a_collaborative_vector_goes_by_its_content():
    quantizer = RqKmeans(np.array([[[0, 0, 9], [1, 1, 0]]], np.float32))
    values = np.array([[0.1, 0, 0], [0.1, 0, 0], [0, 0, 1]], np.float32)
    known = np.array([[True, True], [True, False], [False, True]])
    codes = quantizer.encode(ItemVectors(values, known, (2, 1)))
    assert codes.tolist() == [[1], [0], [1]]  # its zero would have been nearer to code 1
    assert quantizer.last_level_choices(ItemVectors(values, known, (2, 1)))[1].tolist() == [0, 1]


def test_blocks_are_standardised_over_the_rows_fitted_on_and_count_by_weight():
    rng = np.random.default_rng(0)
    content = np.column_stack([rng.normal(size=(50, 8)), np.zeros(50)])  # the last says nothing
    blocks = (content, 100 * rng.normal(size=(50, 3)))
    rows = np.arange(40)
    scaling = fit_scaling(blocks, rows, (1.0, 0.5))
    known = np.ones((50, 2), bool)
    known[0, 1] = False
    found = scaling.apply(blocks, known)
    variance = found.values[rows].var(axis=0)
    assert variance[:8] == pytest.approx(np.full(8, 1 / 8), rel=1e-4)
    assert variance[8] == 0
    assert found.values[1:40].var(axis=0)[9:].sum() == pytest.approx(0.25, rel=0.1)
    assert (found.values[0, 9:] == 0).all()
    longer = tuple(7 * block for block in blocks)  # lengths do not count
    np.testing.assert_allclose(scaling.apply(longer, known).values, found.values, atol=1e-5)


def test_items_of_a_blob_share_their_first_code_and_cold_ones_join_them(settings):
    vectors = blobs()
    items = contents(vectors, vectors[:, ::-1], cold=[3, 40])
    tokenizer = fit_tokenizer(items, settings, seed=1)
    first = tokenizer.quantizer.encode(tokenizer.vectors(items))[:, 0].reshape(4, 30)
    assert len(set(first[:, 0].tolist())) == 4
    assert (first == first[:, :1]).all()


def test_one_seed_gives_one_result_and_codebooks_are_read_as_written(settings, tmp_path):
    vectors = blobs(spread=0.5)
    items = contents(vectors, vectors[:, ::-1], cold=[3, 40])
    one, again = (fit_tokenizer(items, settings, seed=7) for _ in range(2))
    one.save(tmp_path / "codebooks.npz")
    read = load_tokenizer(tmp_path / "codebooks.npz")
    for other in (again, read):
        for name, value in one.quantizer.arrays().items():
            np.testing.assert_array_equal(other.quantizer.arrays()[name], value)
        codes, expected = (t.quantizer.encode(t.vectors(items)) for t in (other, one))
        np.testing.assert_array_equal(codes, expected)
    assert read.codebook_size == 4


def test_cold_items_do_not_move_codebooks(settings):
    vectors = blobs(spread=0.5)
    items = contents(vectors, vectors, cold=[3, 40])
    moved = vectors.copy()
    moved[[3, 40]] *= -50
    same = contents(moved, vectors, cold=[3, 40])
    one, other = (fit_tokenizer(its, settings, seed=7).quantizer.arrays() for its in (items, same))
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value)


def test_the_automatic_codebook_size_is_the_root_of_the_items_fitted_on():
    vectors = blobs(per_blob=30)
    items = contents(vectors, vectors, cold=range(20))
    tokenizer = fit_tokenizer(items, SemanticIdSettings(levels=1), seed=0)
    assert tokenizer.codebook_size == 10


def test_without_collaborative_vectors_all_warm_items_are_fitted_on():
    vectors = blobs(per_blob=4)
    nobody, everybody = np.zeros(16, bool), np.ones(16, bool)
    items = ItemContents(vectors, 0 * vectors, everybody, everybody, nobody, everybody)
    with pytest.raises(ConfigError, match=r"codebook_size is 4, but only 0 of 16.*weight to 0"):
        fit_tokenizer(items, SemanticIdSettings(codebook_size=4), seed=0)
    settings = SemanticIdSettings(codebook_size=4, collaborative_weight=0.0, levels=1)
    items = without_collaborative(items)
    tokenizer = fit_tokenizer(items, settings, seed=0)
    codes = tokenizer.quantizer.encode(tokenizer.vectors(items))[:, 0]
    assert len(set(codes.tolist())) == 4
    assert (codes.reshape(4, 4) == codes[::4, None]).all()


def test_damaged_codebooks_are_named(tmp_path):
    (tmp_path / "codebooks.npz").write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"codebooks.npz is damaged"):
        load_tokenizer(tmp_path / "codebooks.npz")


CODES = np.array([[0, 1], [2, 2], [0, 1], [0, 1], [0, 0]], np.int32)
WARM = np.array([False, True, True, True, True])


def nearest_first(rows):
    return np.tile([1, 0, 2, 3], (len(rows), 1))


def test_counters_number_the_items_of_a_bucket_warm_ones_first():
    ids = resolve("counter", CODES, WARM, 4, nearest_first)
    assert ids.tolist() == [[0, 1, 2], [2, 2, 0], [0, 1, 0], [0, 1, 1], [0, 0, 0]]


def test_reassigned_items_take_the_nearest_free_last_code():
    ids = resolve("reassign", CODES, WARM, 4, nearest_first)
    # The first warm one keeps (0, 1); 0 is taken by the last item, so the next get 2 and 3.
    assert ids.tolist() == [[0, 3], [2, 2], [0, 1], [0, 2], [0, 0]]


def test_items_of_a_bucket_share_their_id():
    assert resolve("bucket", CODES, WARM, 4, nearest_first).tolist() == CODES.tolist()


@given(
    st.lists(st.tuples(*[st.integers(0, 2)] * 2, st.booleans()), max_size=12),
    st.sampled_from(["counter", "reassign"]),
)
def test_ids_are_unique_or_refused(rows, policy):
    codes = np.array([row[:2] for row in rows], np.int32).reshape(len(rows), 2)
    warm = np.array([row[2] for row in rows], bool)
    sizes = np.unique(codes[:, : 2 if policy == "counter" else 1], axis=0, return_counts=True)[1]
    if sizes.max(initial=0) > 4:
        with pytest.raises(ConfigError, match=r"semantic_ids"):
            resolve(policy, codes, warm, 4, nearest_first)
        return
    ids = resolve(policy, codes, warm, 4, nearest_first)
    assert len(np.unique(ids, axis=0)) == len(rows)
    assert ids.max(initial=0) < 4
    assert (ids[:, :1] == codes[:, :1]).all()


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        (
            "counter",
            "6 items have the same codes, and a counter ends at 3: 2 items get no id.*size",
        ),
        ("reassign", "5 items collide, and for 2 of them all codes .* are taken; raise"),
    ],
)
def test_too_many_collisions_are_an_error_that_says_how_many(policy, complaint):
    with pytest.raises(ConfigError, match=complaint):
        resolve(policy, np.zeros((6, 2), np.int32), np.ones(6, bool), 4, nearest_first)


def test_usage_counts_dead_codes_and_perplexity():
    assert code_usage(np.array([0, 0, 2, 2]), 4) == {"used": 2, "dead": 2, "perplexity": 2.0}
    assert code_usage(np.array([0, 0, 0, 1]), 2)["perplexity"] == 1.75  # exp of 0.5623
    assert code_usage(np.array([], np.int32), 2) == {"used": 0, "dead": 2, "perplexity": 1.0}


def test_collisions_and_prefixes_are_counted():
    collides, sizes = collisions(CODES)
    assert collides.tolist() == [True, False, True, True, False]
    assert sorted(sizes.tolist()) == [1, 1, 3]
    codes = np.array([[0, 0], [1, 1], [0, 0], [0, 1], [2, 0]])
    assert seen_prefixes(codes, np.array([True, True, False, False, False])) == [0.6667, 0.3333]
    assert seen_prefixes(codes, np.ones(5, bool)) == [0.0, 0.0]  # nobody is cold


def test_reconstruction_error_is_the_share_of_variance_left_over():
    values = np.array([[4, 1], [-4, -1], [4, -1], [-4, 1]], np.float32)
    vectors = all_known(values)
    items = contents(values, values[:, :0])
    tokenizer = fit_tokenizer(items, SemanticIdSettings(codebook_size=2, levels=1), 0)
    tokenizer = type(tokenizer)(tokenizer.scaling, RqKmeans(BOOKS))
    codes = tokenizer.quantizer.encode(vectors)
    found = reconstruction_errors(tokenizer, vectors, codes, np.arange(4))
    assert found == [round(1 / 17, 4), 0.0]  # of 4 * 17 the first level leaves 4 * 1


def test_neighbours_by_content_share_prefixes_more_than_chance():
    content = blobs(per_blob=11)
    codes = np.column_stack([np.repeat(np.arange(4), 11), np.arange(44)])
    found = neighbour_agreement(content, codes, seed=0)
    assert found == {"agreement": [1.0, 0.0], "chance": [round(10 / 43, 4), 0.0]}
    assert neighbour_agreement(content[:5], codes[:5], seed=0)["agreement"] == [0.0, 0.0]


def test_health_has_every_figure(settings):
    vectors = blobs()
    items = contents(vectors, vectors, cold=[3, 40])
    tokenizer = fit_tokenizer(items, settings, seed=1)
    scaled = tokenizer.vectors(items)
    codes = tokenizer.quantizer.encode(scaled)
    facts = codebook_health(items, tokenizer, scaled, codes, 0)
    assert (facts["items"], facts["warm"], facts["fitted"]) == (120, 118, 118)
    assert facts["without_collaborative"] == 2
    assert facts["levels"][0]["used"] == 4
    assert facts["levels"][0]["dead"] == 0
    assert facts["levels"][1]["error"] < facts["levels"][0]["error"] < 0.5
    assert facts["cold_prefix_seen"][0] == 1.0
    buckets = Counter(map(tuple, codes.tolist()))
    assert facts["largest_bucket"] == max(buckets.values()) > 1
    assert facts["colliding"] == sum(size for size in buckets.values() if size > 1)
    assert facts["collision_rate"] == round(facts["colliding"] / 120, 4)
    assert facts["neighbours"]["agreement"][0] == 1.0


def test_rq_kmeans_loses_less_with_every_level():
    values = blobs(spread=1.0)
    quantizer = fit_rq_kmeans(all_known(values), levels=4, size=4, seed=0)
    codes = quantizer.encode(all_known(values))
    errors = [np.square(values - quantizer.reconstruct(codes[:, :n])).sum() for n in range(5)]
    assert all(later < 0.95 * earlier for earlier, later in pairwise(errors))


def training(values, **settings):
    torch.manual_seed(0)
    network = _Network(values.shape[1], 16, 4, 2, 4)
    return network, _Training(network, all_known(values), RqVaeSettings(**settings), 0)


def test_codebooks_of_rq_vae_start_as_k_means_of_latents():
    values = blobs()
    network, started = training(values)
    started._start_codebooks()
    latents = network.encoder(torch.from_numpy(values)).detach()
    _, codes, book_loss, _ = network.quantize(latents)
    assert (codes[:, 0].reshape(4, 30) == codes[::30, :1]).all()
    assert len(set(codes[:, 0].tolist())) == 4
    assert book_loss < 0.05 * latents.var(0).sum()


def test_dead_codes_of_rq_vae_move_to_what_is_left_over_and_rest():
    network, started = training(blobs(), batch_size=32)
    started._start_codebooks()
    started._epoch(is_quantized=True)  # so that the code has moments when it dies
    with torch.no_grad():
        network.codebooks[1, 2] = 1e3
    used = started._epoch(is_quantized=True)
    assert used[1].tolist().index(0) == 2
    before = network.codebooks.detach().clone()
    started._reset_dead(used)
    moments = started._optimizer.state[network.codebooks]
    is_dead = used == 0
    assert network.codebooks[1, 2].abs().max() < 10
    assert torch.equal(network.codebooks[~is_dead], before[~is_dead])
    assert moments["exp_avg"][is_dead].abs().sum() == 0
    assert moments["exp_avg"][~is_dead].abs().sum() > 0


def test_rq_vae_stops_when_held_out_items_are_reconstructed_no_better(caplog):
    caplog.set_level(logging.INFO)
    _, stopped = training(blobs(), max_epochs=1000, patience=2, batch_size=32, learning_rate=0.05)
    stopped.run()
    kept, epochs = (int(word) for word in caplog.messages[-1].split() if word.isdigit())
    assert epochs == kept + 2 < 1000
