"""Random numbers that follow from a user's seed and a place alone, whoever else is in the batch.

A counter-based generator: every number is a hash of where it stands, so no state is kept. Where a
code stands is told by the codes before it, not by the column they are in: whoever comes upon a
continuation, a drafter or the model, draws the same number for it.
"""

import torch

# The finaliser of SplitMix64 (Steele et al., OOPSLA'14), as signed 64-bit numbers.
_GOLDEN, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685
_PURPOSES = 16  # places below are of purposes, those from here on are codes of a path


def keys_of(seeds: torch.Tensor, place: torch.Tensor | int) -> torch.Tensor:
    """A number for each of `seeds`, int64 of any shape, and place, such as a purpose."""
    return _mixed(_mixed(seeds) + place)


def path_keys(seeds: torch.Tensor, codes: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
    """Of paths from their first code on: a number that follows from the seed and all codes.

    Args: seeds (users,) int64, codes (users, k, levels) of which the first `depth` (users,) count.
    Returns: (users, k) int64.
    """
    keys = seeds[:, None].expand(codes.shape[:2])
    for level in range(min(int(depth.max()), codes.shape[2])):
        on = longer_keys(keys, codes[..., level])
        keys = torch.where((depth > level)[:, None], on, keys)
    return keys


def longer_keys(keys: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """The same of paths one code longer: twice any one shape."""
    return keys_of(keys, codes + _PURPOSES)


def uniform(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Numbers above 0 and below 1: keys of any shape, int64 -> (..., count) float64."""
    counter = torch.arange(count, device=keys.device)
    bits = _mixed(keys)[..., None] + counter * _GOLDEN
    mantissa = (_mixed(bits) >> 12) & (2**52 - 1)
    return (mantissa.double() + 0.5) / 2**52


def gumbel(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Standard Gumbel noise: keys of any shape, int64 -> (..., count) float64.

    The n largest of log p + noise are n draws from p without replacement (Kool et al., ICML'19).
    """
    return -(-uniform(keys, count).log()).log()


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    bits = bits + _GOLDEN
    bits = (bits ^ _shifted(bits, 30)) * _FIRST
    bits = (bits ^ _shifted(bits, 27)) * _SECOND
    return bits ^ _shifted(bits, 31)


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    """To the right, with zeros from the left."""
    return (bits >> by) & (2 ** (64 - by) - 1)
