"""The parts of extremal networks: exact norms, both sides of a product, layers without randomness."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from normscope.core.errors import InputError, NonFiniteError
from normscope.papers.than2025.extremal.extremal import (
    both_sides,
    checked_input,
    linear,
    relu_network,
    scaled_identity,
    square_norm,
)


def test_both_sides_enclose_the_product() -> None:
    """Ten factors of 0.1 and the root of two, exactly as fractions."""
    high, low = both_sides((0.1,) * 10, "than2025 Theorem 6", "here", Fraction(2))
    exact = Fraction(0.1) ** 20 * 2
    assert Fraction(low.value) ** 2 <= exact <= Fraction(high.value) ** 2
    assert high.value == pytest.approx(low.value, rel=1e-12)
    assert both_sides((), "", "")[0].value == both_sides((), "", "")[1].value == 1.0
    assert both_sides((0.0, 3.0), "", "")[0].value == 0.0


def test_norms_are_exact() -> None:
    """Also where squares leave the range of floats."""
    assert (
        square_norm(torch.tensor([1e200, 1e-200], dtype=torch.float64)) == Fraction(1e200) ** 2 + Fraction(1e-200) ** 2
    )


def test_layers() -> None:
    """Rectangular identities, a weight as given, an activation after every layer."""
    assert scaled_identity(3, 2, 2.0, torch.float32).tolist() == [[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]]
    weight = torch.tensor([[1.0, -2.0]])
    assert torch.equal(linear(weight).weight, weight)
    net = relu_network([weight, -torch.ones(1, 1)])
    assert [type(m).__name__ for m in net] == ["Linear", "ReLU", "Linear", "ReLU"]
    assert not any(p.is_meta for p in net.parameters())


def test_inputs() -> None:
    """The first unit vector, or a real finite vector that fits."""
    assert checked_input(None, 3, torch.float64).tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(InputError, match="a real vector of 3 numbers"):
        checked_input(torch.ones(2), 3, torch.float64)
    with pytest.raises(NonFiniteError):
        checked_input(torch.tensor([math.nan, 0.0]), 2, torch.float64)
