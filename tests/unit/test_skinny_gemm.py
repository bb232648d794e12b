"""Packed products equal torch's, for every number of rows and every odd size."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipeline.engine.packed_linear import PackedLinear, pack_linears
from pipeline.engine.skinny_gemm import PackedWeight, can_pack


@settings(max_examples=60)
@given(rows=st.integers(0, 40), outputs=st.integers(1, 70), quarter=st.integers(1, 40))
def test_products_equal_torch(rows, outputs, quarter):
    torch.manual_seed(rows * 1000 + outputs)
    weight, x = torch.randn(outputs, 4 * quarter), torch.randn(rows, 4 * quarter)
    got = PackedWeight(weight).multiply(x)
    assert got.shape == (rows, outputs)
    torch.testing.assert_close(got, x @ weight.t(), rtol=1e-5, atol=1e-4)


def test_leading_dimensions_bias_and_strides_are_kept():
    linear = nn.Linear(12, 5)
    x = torch.randn(12, 3, 2).transpose(0, 2)  # not contiguous
    packed = PackedLinear(linear.weight, linear.bias)
    torch.testing.assert_close(packed(x), linear(x))


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (torch.zeros(3, 8), True),
        (torch.zeros(3, 6), False),
        (torch.zeros(3, 8, dtype=torch.bfloat16), False),
        (torch.zeros(3, 8, device="meta"), False),
    ],
)
def test_what_can_be_packed(weight, expected):
    assert can_pack(weight) == expected


def test_what_cannot_be_packed_stays():
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4))
    pack_linears(model)
    assert [type(layer) for layer in model] == [nn.Linear, PackedLinear]
