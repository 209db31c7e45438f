"""Formulas: exact values, continuity of choices, and enclosures against PyTorch's own derivatives."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from normscope.operators.scalar.formula import (
    ACTIVATIONS,
    ONE,
    ZERO,
    Formula,
    X,
    affine,
    apply,
    constant,
    continuous,
    maximum,
    minimum,
    where,
)
from normscope.operators.scalar.interval import Interval

#: The same functions in PyTorch.
SAME = {
    "exp": torch.exp, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "erf": torch.erf, "atan": torch.atan,
    "sin": torch.sin, "cos": torch.cos, "relu": torch.relu, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "neg": torch.neg, "abs": torch.abs, "square": torch.square, "silu": F.silu,
    "mish": F.mish, "log_sigmoid": F.logsigmoid, "softsign": F.softsign, "tanhshrink": F.tanhshrink,
    "expm1": torch.expm1, "log1p": torch.log1p, "relu6": F.relu6,
}  # fmt: skip


def test_every_activation_is_checked() -> None:
    """No formula without its truth."""
    assert set(SAME) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", SAME)
def test_formulas_are_the_functions(name: str) -> None:
    """Value and derivative of PyTorch lie in the enclosures, and these are narrow at points."""
    x = torch.linspace(0.05, 7.0, 41, dtype=torch.float64)
    if name not in ("log", "sqrt", "rsqrt", "log1p", "reciprocal"):
        x = torch.cat((-x, x))
    x.requires_grad_()
    y = SAME[name](x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    at = x.detach().numpy()
    value, derivative, _ = ACTIVATIONS[name](X).jets(Interval(at, at))
    for true, jet in ((y.detach().numpy(), value), (slope.numpy(), derivative)):
        assert (jet.low <= true + 1e-12 * (1 + abs(true))).all()
        assert (true <= jet.high + 1e-12 * (1 + abs(true))).all()
        assert np.max(jet.high - jet.low) < 1e-9


def test_exact_values() -> None:
    """Rational where arithmetic is exact or the value is well known, and nothing otherwise."""
    third = Fraction(1, 3)
    assert (X**2 + constant(0.5)).exact(third) == third**2 + Fraction(1, 2)
    assert apply("inverse", X).exact(third) == 3
    assert apply("exp", X).exact(third) is None
    assert (X * apply("exp", constant(1.0))).exact(Fraction(0)) == 0
    assert apply("exp", X).exact(Fraction(0)) == 1
    assert where(X, ONE, constant(2.0)).exact(Fraction(-1)) == 2
    assert maximum(X, ONE).exact(third) == 1
    assert minimum(X, ONE).exact(third) == third


def test_choices_are_continuous_only_if_proved() -> None:
    """Branches agree where they switch, wherever that is, and inside other functions."""
    double = constant(2.0) * X
    assert continuous(where(X, double, X))
    assert not continuous(where(X, X + ONE, X))
    assert continuous(where(X - ONE, double, X + ONE))  # at one
    assert not continuous(where(X - ONE, double, X))
    assert continuous(where(X, X, apply("exp", X) - ONE))
    assert not continuous(where(apply("sin", X), X, ZERO))  # where it switches is not known
    assert not continuous(where(X, apply("exp", constant(1.0)), apply("exp", constant(1.0 + 1e-15))))
    mask = where(X, ONE, ZERO)
    assert continuous(X * mask)
    assert not continuous(X + mask)
    assert not continuous((X + constant(1e-300)) * mask)


def test_choices_move_outside() -> None:
    """A function of a choice is a choice of functions."""
    found = apply("tanh", X * where(X, ONE, constant(-1.0)))
    assert found.op == "where"
    assert [part.op for part in found.parts[1:]] == ["tanh", "tanh"]


def test_affine() -> None:
    """Only what is affine as written."""
    assert affine(X * constant(0.5) + constant(3.0)) == (Fraction(1, 2), Fraction(3))
    assert affine(X * X) is None
    assert affine(apply("relu", X)) is None


def test_sizes_count_every_use() -> None:
    """What keeps a formula short."""
    f: Formula = X
    for _ in range(5):
        f = f * f
    assert f.size == 2**6 - 1


def test_zero_times_what_is_not_defined_is_not_zero() -> None:
    """A mask does not hide a pole or the end of a domain."""
    assert ZERO * apply("tanh", X) == ZERO
    assert ZERO * apply("log", X) != ZERO
    assert (X * apply("inverse", X)).exact(Fraction(0)) is None
    assert not apply("sqrt", X).total
