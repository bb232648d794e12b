"""Random numbers that follow from seeds and places."""

import numpy as np
import torch

from pipeline.generative.noise import gumbel, keys_of, longer_keys, path_keys, uniform


def test_numbers_are_uniform_and_not_alike():
    keys = keys_of(torch.arange(400), 0)
    found = uniform(keys, 500)
    assert ((found > 0) & (found < 1)).all()
    counts = np.histogram(found.numpy(), bins=20, range=(0, 1))[0]
    assert ((counts - 1e4) ** 2 / 1e4).sum() < 44  # chi-square, 19 degrees of freedom: p = 0.001
    assert len(found.unique()) == found.numel()
    pairs = np.corrcoef(found.numpy()[:, :40].T)  # between columns, over users
    assert np.abs(pairs - np.eye(40)).max() < 0.25
    users = np.corrcoef(found.numpy()[:40])
    assert np.abs(users - np.eye(40)).max() < 0.25


def test_a_number_follows_from_seed_place_and_counter():
    seeds = torch.tensor([7, 8, 9, -1])
    whole = uniform(keys_of(seeds, 3), 10)
    assert torch.equal(uniform(keys_of(seeds[[2, 0]], 3), 4), whole[[2, 0], :4])
    places = torch.tensor([3, 2, 3, 2])
    mixed = uniform(keys_of(seeds, places), 10)
    assert torch.equal(mixed[[0, 2]], whole[[0, 2]])
    assert (mixed[[1, 3]] != whole[[1, 3]]).all()


def test_the_largest_with_gumbel_noise_is_a_draw():
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    drawn = (p.log() + gumbel(torch.arange(40000), 4)).argmax(1)
    expected = 40000 * p
    assert ((drawn.bincount(minlength=4) - expected) ** 2 / expected).sum() < 16.3  # p = 0.001


def test_keys_of_paths_follow_from_their_codes_wherever_they_stand():
    codes = torch.cartesian_prod(*[torch.arange(4)] * 3).expand(3, -1, -1)
    seeds = torch.tensor([5, 6, -5])
    whole = path_keys(seeds, codes, torch.tensor([3, 3, 3]))
    assert len(whole.unique()) == 3 * 64
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    moved = path_keys(seeds[[2, 0]], codes[[2, 0]][:, order], torch.tensor([3, 3]))
    assert torch.equal(moved, whole[[2, 0]][:, order])
    ragged = path_keys(seeds, codes, torch.tensor([2, 0, 7]))  # who is done may count on
    assert torch.equal(ragged[1], seeds[[1]].expand(64))
    assert torch.equal(ragged[2], whole[2])
    assert torch.equal(longer_keys(ragged[0], codes[0, :, 2]), whole[0])
    assert len(torch.cat([whole[0], ragged[0].unique(), seeds]).unique()) == 64 + 16 + 3


def test_noise_below_one_path_tells_nothing_of_that_below_another():
    paths = path_keys(torch.arange(400), torch.arange(20).expand(400, -1)[..., None], torch.ones(1))
    drawn = uniform(keys_of(paths, 1), 5)
    assert drawn.shape == (400, 20, 5)
    own = torch.cat([drawn.flatten(1), uniform(keys_of(torch.arange(400), 1), 20)], 1)
    assert np.abs(np.corrcoef(own.numpy().T) - np.eye(120)).max() < 0.25
