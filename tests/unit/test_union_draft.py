"""Trees of several drafters as one."""

from collections import defaultdict

import numpy as np
import torch

from pipeline.generative.beams import Draft, Level, root_beams
from pipeline.generative.union_draft import merged

LEVELS, CODES = 4, 4


def test_merged_trees_hold_each_branch_once():
    rng = np.random.default_rng(0)
    beams = root_beams(2, LEVELS, torch.device("cpu"))
    drafts = [a_draft(rng, widths) for widths in ([5, 9, 4], [7, 3], [2, 2, 6])]
    tree = merged([draft.levels for draft in drafts], beams, CODES)
    for user in range(2):
        own = branches(tree, user)
        wanted = defaultdict(set)
        for draft in drafts:
            for depth, found in branches(draft, user).items():
                wanted[depth] |= set(found)
        assert {depth: set(found) for depth, found in own.items()} == wanted
        assert all(len(found) == len(set(found)) for found in own.values())


def a_draft(rng, widths):
    levels, above = [], torch.ones(2, 1, dtype=torch.bool)
    for width in widths:
        parents = torch.from_numpy(rng.integers(0, above.shape[1], (2, width)))
        codes = torch.from_numpy(rng.integers(0, CODES, (2, width)))
        is_real = torch.from_numpy(rng.random((2, width)) < 0.8) & above.gather(1, parents)
        levels.append(Level(codes, parents, 100 * codes, is_real))
        above = is_real
    return Draft(levels)


def branches(draft, user):
    """Code sequences that lead to the real columns of each level."""
    above, found = [()], {}
    for depth, level in enumerate(draft.levels):
        own = [
            (*above[parent], code)
            for parent, code in zip(
                level.parents[user].tolist(), level.codes[user].tolist(), strict=True
            )
        ]
        found[depth] = [
            one for one, real in zip(own, level.is_real[user].tolist(), strict=True) if real
        ]
        nodes = level.nodes[user][level.is_real[user]]
        assert nodes.tolist() == [100 * one[-1] for one in found[depth]]
        above = own
    return found
