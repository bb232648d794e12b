"""Losses of alignment, against sums over plain loops; their gradients lead to the model."""

import math

import pytest
import torch

from pipeline.generative.alignment import (
    DIVERGENCES,
    atspeed_s,
    combined,
    forward_kl,
    mean_over_beams,
    reverse_kl,
    total_variation,
)

CODES = 7


def distributions(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.log_softmax(2 * torch.randn(*shape, CODES, generator=generator), -1)


def naive(name, q, p, top_k=4):
    """One place: q and p as lists."""
    if name == "forward_kl":
        return sum(b * math.log(b / a) for a, b in zip(q, p, strict=True))
    if name == "reverse_kl":
        return sum(a * math.log(a / b) for a, b in zip(q, p, strict=True))
    if name == "atspeed_r":
        return 1 - sum(min(a, b) for a, b in zip(q, p, strict=True))
    kept = sorted(range(CODES), key=lambda code: -q[code])[:top_k]
    own = [q[code] / sum(q[other] for other in kept) for code in kept]
    other = [p[code] / sum(p[each] for each in kept) for code in kept]
    entropy = -sum(a * math.log(a) for a in own)
    return naive_kl(own, other) + sorted(p)[-top_k] * entropy


def naive_kl(a, b):
    return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", DIVERGENCES)
def test_losses_are_those_of_plain_sums(name):
    log_q, log_p = distributions(3, 2), distributions(3, 2, seed=1)
    loss = (lambda q, p: atspeed_s(q, p, 4)) if name == "atspeed_s" else DIVERGENCES[name]
    found = loss(log_q, log_p)
    assert found.shape == (3, 2)
    for row in range(3):
        for column in range(2):
            own = log_q[row, column].double().exp().tolist()
            other = log_p[row, column].double().exp().tolist()
            assert abs(float(found[row, column]) - naive(name, own, other)) < 1e-5


def test_of_fewer_codes_than_k_all_are_compared():
    log_q, log_p = distributions(5), distributions(5, seed=1)
    rest = log_p.min(-1).values.exp() * -(log_q.exp() * log_q).sum(-1)
    torch.testing.assert_close(atspeed_s(log_q, log_p, 99), reverse_kl(log_q, log_p) + rest)


@pytest.mark.parametrize("loss", [forward_kl, reverse_kl, total_variation])
def test_nothing_is_lost_where_both_agree_and_only_there(loss):
    log_q = distributions(4)
    torch.testing.assert_close(loss(log_q, log_q), torch.zeros(4), atol=1e-6, rtol=0)
    assert (loss(log_q, distributions(4, seed=1)) > 0.01).all()


@pytest.mark.parametrize("name", DIVERGENCES)
def test_gradients_lead_from_anywhere_to_the_model(name):
    """Also from far off, where logits divided by a small temperature would give none."""
    log_p = distributions(16, seed=1)
    generator = torch.Generator().manual_seed(3)
    logits = (3 * torch.randn(16, CODES, generator=generator)).requires_grad_()
    first = DIVERGENCES[name](torch.log_softmax(logits, -1), log_p).mean()
    (gradient,) = torch.autograd.grad(first, logits)
    assert (gradient.norm(dim=-1) * 16 > 1e-3).all()
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(300):
        loss = DIVERGENCES[name](torch.log_softmax(logits, -1), log_p).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    closer = total_variation(torch.log_softmax(logits.detach(), -1), log_p).mean()
    assert float(closer) < (0.2 if name == "atspeed_s" else 0.05)


def test_places_count_alike_and_beams_that_are_not_there_do_not():
    log_q = [distributions(2, 1), distributions(2, 3, seed=1), distributions(2, 3, seed=2)]
    log_p = [distributions(2, 1, seed=3), distributions(2, 3, seed=4), distributions(2, 3, seed=5)]
    is_real = torch.tensor([[True, True, False], [True, False, False]])
    found = mean_over_beams(forward_kl, log_q, log_p, is_real)
    places = []
    for user, beam in is_real.nonzero().tolist():
        for level in range(3):
            column = beam if level else 0
            places.append(forward_kl(log_q[level][user, column], log_p[level][user, column]))
    torch.testing.assert_close(found, torch.stack(places).mean())
    nothing = mean_over_beams(forward_kl, log_q, log_p, torch.zeros_like(is_real))
    assert float(nothing) == 0.0


def test_both_losses_count_by_alpha():
    one, two = torch.tensor(3.0), torch.tensor(7.0)
    assert float(combined(one, two, 0.0)) == 3.0
    assert float(combined(one, two, 1.0)) == 7.0
    assert float(combined(one, two, 0.25)) == 4.0
