"""Weight normalization: effective weight, its norm and the sandwich of its factors."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.core.errors import InputError
from normscope.operators.normalizers.weight_norm import (
    weight_norm_bounds,
    weight_norm_effective,
    weight_norm_parameter_constant,
)
from operators.normalizers.truth import digits, exact_norm, jacobian_norm, kinds, scales, seeds, vectors


@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2, 2)])
def test_effective_weight_is_that_of_pytorch(shape: tuple[int, ...], dim: int | None) -> None:
    """The parametrization of PyTorch gives the same weight."""
    layer = torch.nn.Linear(3, 4, bias=False) if len(shape) == 2 else torch.nn.Conv2d(3, 4, 2, bias=False)
    layer = layer.double()
    torch.nn.utils.parametrizations.weight_norm(layer, dim=dim)
    g, v = (p.detach() for p in layer.parametrizations.weight.parameters())
    with torch.no_grad():
        g.mul_(1.7)
    assert torch.allclose(weight_norm_effective(v, g, dim), layer.weight, rtol=1e-13, atol=1e-15)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 5), st.integers(1, 5), kinds, seeds)
def test_norm_and_sandwich(rows: int, columns: int, kind: str, seed: int) -> None:
    """The fifty-digit norm of the effective weight lies between the proved bounds, and those in the sandwich."""
    v, g = vectors(rows * columns, seed).reshape(rows, columns), scales(rows, seed, kind)
    exact_rows = []
    for row, gain in zip(v, digits(g), strict=True):
        entries = digits(row)
        length = sum(e * e for e in entries) ** 0.5
        exact_rows.append([gain * e / length for e in entries])
    truth, bounds = exact_norm(exact_rows), weight_norm_bounds(v, g)
    assert bounds.lower <= truth * (1 + 1e-40) + 1e-300
    assert truth * (1 - 1e-40) <= bounds.upper
    assert bounds.upper - bounds.lower <= 1e-12 * bounds.upper
    assert bounds.largest_gain <= truth * (1 + 1e-40)
    assert bounds.upper <= bounds.gain_norm * (1 + 1e-15)
    assert bounds.upper <= bounds.gain_times_direction * (1 + 1e-15)


def test_identical_rows_reach_the_root_of_their_number() -> None:
    """Unit rows do not make a matrix of norm one: four equal rows give two."""
    bounds = weight_norm_bounds(torch.ones(4, 7))
    assert bounds.upper == pytest.approx(2.0, rel=1e-12)
    assert weight_norm_bounds(torch.eye(4)).upper == pytest.approx(1.0, rel=1e-12)


def test_zero_gain_and_zero_direction() -> None:
    """A zero gain gives a zero weight; a zero direction has no weight."""
    assert weight_norm_bounds(torch.ones(2, 2), torch.zeros(2)).upper == 0.0
    with pytest.raises(InputError, match="nonzero"):
        weight_norm_effective(torch.zeros(2, 2))
    with pytest.raises(InputError, match="one per direction"):
        weight_norm_effective(torch.ones(2, 2), torch.ones(3))


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(1, 4), st.integers(1, 4), kinds, seeds)
def test_parameter_constant_equals_automatic_differentiation(rows: int, columns: int, kind: str, seed: int) -> None:
    """``||dw/dv|| = max |g|/||v||``, and zero for rows of one element."""
    v, g = vectors(rows * columns, seed).reshape(rows, columns), scales(rows, seed, kind)
    truth = jacobian_norm(lambda z: g[:, None] * z / z.norm(dim=1, keepdim=True), v)
    size = float((g.abs() / v.norm(dim=1)).max())
    assert weight_norm_parameter_constant(v, g) == pytest.approx(truth, rel=1e-10, abs=1e-12 * size)


def test_parameter_constant_at_zero() -> None:
    """A zero direction is a singularity."""
    assert weight_norm_parameter_constant(torch.zeros(2, 3)) == math.inf
    assert weight_norm_parameter_constant(torch.ones(3)) == 0.0
