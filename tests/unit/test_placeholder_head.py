"""NEZHA's draft head and packed windows, against plain loops and a pass per cut."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pipeline.errors import DataError
from pipeline.generative.packed_placeholders import NO_CUT, pack
from pipeline.generative.placeholder_head import load_placeholder_head, make_placeholder_head
from pipeline.generative.recommender import make_recommender
from pipeline.generative_config import RecommenderSettings

LEVELS, CODES, WIDTH = 3, 5, 16
SETTINGS = RecommenderSettings(hidden_dim=WIDTH, layers=2, heads=2, history_length=4, dropout=0.0)


def a_model():
    model = make_recommender(SETTINGS, LEVELS, CODES, 0).eval()
    for weights in model.stack.parameters():
        weights.data *= 10 if weights.dim() > 1 else 1  # attention has a say
    model.tokens.weight.data = torch.randn(model.tokens.weight.shape, generator=a_generator(1))
    return model


def a_head():
    return make_placeholder_head(LEVELS, CODES, WIDTH, seed=0)


def a_generator(seed):
    return torch.Generator().manual_seed(seed)


def windows(lengths, seed=0):
    """Items and tokens of windows of so many items."""
    most = max(lengths)
    codes = np.random.default_rng(seed).integers(0, CODES, (len(lengths), most, LEVELS))
    tokens = torch.full((len(lengths), 1 + most * LEVELS), LEVELS * CODES)
    for row, length in enumerate(lengths):
        own = torch.from_numpy(codes[row, :length] + np.arange(LEVELS) * CODES)
        tokens[row, 1 : 1 + length * LEVELS] = own.flatten()
    return codes, tokens


def plain_hidden(model, tokens):
    size = len(tokens)
    sees = torch.ones(1, size, size, dtype=torch.bool).tril()
    return model(tokens[None], torch.arange(size)[None], sees)[0]


def plain_loss(head, end, placeholders, codes):
    """One item, level by level, as the formula stands."""
    state, total = end, torch.zeros(())
    for level, code in enumerate(codes):
        logits = head.heads[level] @ (placeholders[level] + state)
        total = total - torch.log(torch.softmax(logits, 0)[code])
        if level < LEVELS - 1:
            inner = head.from_code[level] @ head.codes[level][code]
            state = torch.tanh(inner + head.from_state[level] @ state + head.bias[level])
    return total / LEVELS


def test_the_loss_is_that_of_a_plain_loop_and_so_are_its_gradients():
    head, generator = a_head(), a_generator(3)
    head.bias.data.normal_(generator=generator)
    ends = torch.randn(7, WIDTH, generator=generator, requires_grad=True)
    placeholders = torch.randn(7, LEVELS, WIDTH, generator=generator, requires_grad=True)
    codes = torch.randint(CODES, (7, LEVELS), generator=generator)
    wanted = torch.stack(
        [plain_loss(head, *one) for one in zip(ends, placeholders, codes.tolist(), strict=True)]
    ).mean()
    loss = head.loss(ends, placeholders, codes)
    torch.testing.assert_close(loss, wanted)
    inputs = [*head.parameters(), ends, placeholders]
    for own, their in zip(
        torch.autograd.grad(loss, inputs), torch.autograd.grad(wanted, inputs), strict=True
    ):
        torch.testing.assert_close(own, their, atol=1e-6, rtol=1e-4)


def test_every_parameter_is_trained():
    head = a_head()
    codes = torch.cartesian_prod(*[torch.arange(CODES)] * LEVELS)
    ends = torch.randn(len(codes), WIDTH, generator=a_generator(0))
    head.loss(ends, ends[:, None].expand(-1, LEVELS, -1), codes).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum(-1).all(), name


def test_a_saved_head_is_the_same(tmp_path):
    head = a_head()
    head.save(tmp_path)
    read = load_placeholder_head(tmp_path)
    assert not read.training
    for own, their in zip(head.parameters(), read.parameters(), strict=True):
        assert torch.equal(own, their)
    (tmp_path / "shape.json").write_text('{"levels": 2, "num_codes": 5, "width": 16}')
    with pytest.raises(DataError, match="no usable draft head"):
        load_placeholder_head(tmp_path)


def test_packed_windows_are_as_they_are_without_placeholders():
    model, (_, tokens) = a_model(), windows([4, 1, 3])
    packed = pack(model, tokens, torch.tensor([4, 1, 3]), torch.tensor([[0, 3], [0, -1], [2, 1]]))
    hidden = packed.run(model).windows
    for row, length in enumerate([4, 1, 3]):
        size = 1 + length * LEVELS
        torch.testing.assert_close(
            hidden[row, :size], plain_hidden(model, tokens[row, :size]), atol=1e-5, rtol=1e-4
        )
    assert torch.isfinite(hidden).all()


def test_every_cut_is_as_in_a_pass_of_its_own():
    lengths, cuts = [4, 1, 3], [[0, 3, 1], [NO_CUT, 0, NO_CUT], [2, NO_CUT, 2]]
    model, head, (codes, tokens) = a_model(), a_head(), windows(lengths)
    packed = pack(model, tokens, torch.tensor(lengths), torch.tensor(cuts))
    states = packed.run(model)
    wanted = [(row, cut) for row, own in enumerate(cuts) for cut in own if cut != NO_CUT]
    assert packed.rows.tolist() == [row for row, _ in wanted]
    losses = []
    for group, (row, cut) in enumerate(wanted):
        prefix = tokens[row, : 1 + cut * LEVELS]
        plain = plain_hidden(model, torch.cat([prefix, torch.tensor([*model.placeholders])]))
        torch.testing.assert_close(states.ends[group], plain[-LEVELS - 1], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(
            states.placeholders[group], plain[-LEVELS:], atol=1e-5, rtol=1e-4
        )
        assert packed.codes[group].tolist() == codes[row, cut].tolist()
        losses.append(plain_loss(head, plain[-LEVELS - 1], plain[-LEVELS:], codes[row, cut]))
    loss = head.loss(states.ends, states.placeholders, packed.codes)
    torch.testing.assert_close(loss, torch.stack(losses).mean(), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_a_level_a_row_costs_a_table_of_codes_once_however_many_rows():
    head, generator, users, beams = a_head(), a_generator(0), 40, 2
    head.bias.normal_(generator=generator)
    level = torch.randint(LEVELS - 1, (users,), generator=generator)
    states = torch.randn(users, beams, WIDTH, generator=generator)
    codes = torch.randint(CODES, (users, beams), generator=generator)
    with FlopCounterMode(display=False) as counter:
        found = head.advance(level, states, codes)
    for user, own in enumerate(level.tolist()):
        wanted = head.advance(own, states[user], codes[user])
        torch.testing.assert_close(found[user], wanted)
    square = 2 * WIDTH**2
    assert counter.get_total_flops() <= ((LEVELS - 1) * CODES + users * beams) * square
