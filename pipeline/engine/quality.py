"""A criterion with a budget: so much log-probability may be lost per token, on average."""

import torch

_RATE = 0.05  # how fast the tolerance follows, per nat
_MOST = 4.0  # nats; beyond, a token has nothing to do with what the model would say
_FIRST = 10.0  # tokens' worth of allowance to begin with


class QualityBudget:
    """Accept a token that costs no more than a tolerance, which is set by what was spent.

    Of all criteria with the same mean cost, one threshold on the cost keeps the most tokens. The
    balance falls by what a step spent and rises by what it was allowed; in debt, nothing is
    spent. So the total overdrawn can never exceed the allowance of `_FIRST / _RATE` tokens and one
    step's cost, and a budget of nothing spends nothing.
    """

    def __init__(self, nats_per_token: float) -> None:
        self._allowed = nats_per_token
        # Never cut at 0: a debt that is forgiven is overdrawn for good.
        self._balance = min(_FIRST * nats_per_token, _MOST)

    @property
    def tolerance(self) -> float:
        """Nats that a token may cost now."""
        return max(self._balance, 0.0)

    def floor(self, log_probabilities: torch.Tensor) -> torch.Tensor:
        """Least acceptable log-probability (rows, 1) under `log_probabilities` (rows, vocab)."""
        return log_probabilities.amax(-1, keepdim=True) - self.tolerance

    def observe(self, tokens: int, cost: float) -> None:
        """Hear that a step wrote `tokens` tokens and gave up `cost` nats in all."""
        change = _RATE * (self._allowed * tokens - cost)
        self._balance = min(self._balance + change, _MOST)
