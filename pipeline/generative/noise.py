"""Random numbers that follow from a user's seed and a place alone, whoever else is in the batch.

A counter-based generator: every number is a hash of where it stands, so no state is kept.
"""

import torch

# The finaliser of SplitMix64 (Steele et al., OOPSLA'14), as signed 64-bit numbers.
_GOLDEN, _FIRST, _SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685


def keys_of(seeds: torch.Tensor, place: torch.Tensor | int) -> torch.Tensor:
    """A number for every user (users,) int64 and place, such as a level or a purpose."""
    return _mixed(_mixed(seeds) + place)


def uniform(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Numbers above 0 and below 1 of every user: (users,) int64 -> (users, count) float64."""
    counter = torch.arange(count, device=keys.device)
    bits = _mixed(keys)[:, None] + counter * _GOLDEN
    mantissa = (_mixed(bits) >> 12) & (2**52 - 1)
    return (mantissa.double() + 0.5) / 2**52


def gumbel(keys: torch.Tensor, count: int) -> torch.Tensor:
    """Standard Gumbel noise, (users,) int64 -> (users, count) float64.

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
