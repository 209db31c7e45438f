"""Gated activations: the points where g'' and g' vanish are all there are."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from normscope.operators.scalar.curve import Curve
from normscope.operators.scalar.gated import gelu, mish, silu

mpmath.mp.dps = 50
FUNCTIONS: dict[str, tuple[Curve, Callable[[Tensor], Tensor]]] = {
    "gelu": (gelu(), F.gelu),
    "gelu-tanh": (gelu("tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "silu": (silu(), F.silu),
    "mish": (mish(), F.mish),
}


def changes(values: Tensor) -> int:
    """Return the number of sign changes in a sequence."""
    signs = values[values != 0].sign()
    return int((signs[1:] != signs[:-1]).sum())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_second_derivative_has_two_zeros_and_the_first_one(name: str) -> None:
    """On a dense grid of [-12, 12], where everything happens, there are no other sign changes."""
    curve, function = FUNCTIONS[name]
    x = torch.linspace(-12, 12, 24001, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(function(x).sum(), x)
    second = first.detach().diff()
    near = (x.detach()[1:].abs() < 5.5) | (second.abs() > 1e-14)
    assert changes(second[near]) == 2
    assert changes(first.detach()[first.abs() > 1e-14]) == 1
    assert len(curve.pieces[0].bends(-math.inf, math.inf)) == 2
    assert len(curve.pieces[0].turns(-math.inf, math.inf)) == 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_zeros_are_where_they_are_said_to_be(name: str) -> None:
    """The second derivative changes sign across each bend, the first across the turn."""
    curve, function = FUNCTIONS[name]
    piece = curve.pieces[0]
    for where in piece.bends(-math.inf, math.inf):
        x = torch.tensor([where - 1e-4, where, where + 1e-4], dtype=torch.float64, requires_grad=True)
        (slopes,) = torch.autograd.grad(function(x).sum(), x)
        assert slopes[1].abs() > slopes[0].abs()
        assert slopes[1].abs() > slopes[2].abs()
    (turn,) = piece.turns(-math.inf, math.inf)
    y = function(torch.tensor([turn - 1e-5, turn, turn + 1e-5], dtype=torch.float64))
    assert y[1] <= y[0]
    assert y[1] <= y[2]


@pytest.mark.parametrize("x", [-37.0, -20.0, -5.0, -1.0, -0.3, 0.0, 0.7, 3.0, 12.0, 30.0])
def test_values_and_slopes_lie_within_their_error(x: float) -> None:
    """Every evaluation encloses the fifty-digit value, also far in the tails."""
    exact = {
        "gelu": lambda t: t * mpmath.ncdf(t),
        "gelu-tanh": lambda t: (
            t / (1 + mpmath.exp(-2 * mpmath.sqrt(2 / mpmath.pi) * (t + mpmath.mpf(0.044715) * t**3)))
        ),
        "silu": lambda t: t / (1 + mpmath.exp(-t)),
        "mish": lambda t: t * mpmath.tanh(mpmath.log(1 + mpmath.exp(t))),
    }
    for name, (curve, _) in FUNCTIONS.items():
        value, error = curve.pieces[0].value(x)
        assert abs(exact[name](mpmath.mpf(x)) - value) <= error
        slope, error = curve.pieces[0].slope(x)
        assert abs(mpmath.diff(exact[name], mpmath.mpf(x)) - slope) <= error + 1e-25
        assert error <= 1e-10
