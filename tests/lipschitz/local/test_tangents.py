"""Tensors around a point: values, errors, and a product that is one."""

from __future__ import annotations

import math

import torch

from networks import points
from normscope.lipschitz.local.linear_steps import OperationBounds
from normscope.lipschitz.local.slopes import ScalarFunction
from normscope.lipschitz.local.tangents import (
    SQUARE,
    TangentAlgebra,
    TangentRows,
    TensorWithTangents,
    padded_rows,
    scalar_value,
)
from normscope.lipschitz.local.values_at_point import ValueAtPoint
from normscope.operators.scalar.activations import curve_of


def _linearized(at: ValueAtPoint, x: TangentRows, g: ScalarFunction) -> TangentRows:
    """Pass a function by its tangent at the point alone."""
    return TangentRows(x.rows * g.derivative(at.value), x.error)


def _moving(seed: int) -> TensorWithTangents:
    return TensorWithTangents(ValueAtPoint(points(3, seed=seed), 0.0), TangentRows(points(4, 3, seed=seed + 9), 0.0))


def test_the_tangent_of_a_product_is_the_product_rule() -> None:
    f, g = _moving(0), _moving(1)
    found = TangentAlgebra(_linearized).product(f, g)
    torch.testing.assert_close(found.at.value, f.at.value * g.at.value)
    assert f.rows is not None
    assert g.rows is not None
    assert found.rows is not None
    expected = f.rows.rows * g.at.value + f.at.value * g.rows.rows
    torch.testing.assert_close(found.rows.rows, expected, rtol=1e-12, atol=1e-12)


def test_sums_multiples_and_maps_are_linear() -> None:
    algebra, f, g = TangentAlgebra(_linearized), _moving(0), _moving(1)
    total = algebra.plus(f, algebra.times(g, 3.0), -1.0)
    assert f.rows is not None
    assert g.rows is not None
    assert total.rows is not None
    torch.testing.assert_close(total.rows.rows, f.rows.rows - 3.0 * g.rows.rows)
    halved = algebra.mapped(total, lambda z: z[:2], OperationBounds(1.0, 1.0, 0))
    assert halved.at.value.shape == (2,)
    assert 0 < halved.at.error < 1e-14
    assert algebra.shifted(f, 1.0).rows is f.rows


def test_values_alone_have_no_rows_and_errors_grow_by_the_slope() -> None:
    found = TangentAlgebra().product(
        TensorWithTangents(ValueAtPoint(points(3), 0.0)), TensorWithTangents(ValueAtPoint(points(3, seed=1), 1e-3))
    )
    assert found.rows is None
    assert found.at.error >= 1e-3 * float(points(3).abs().max())
    three = torch.full((1,), 3.0, dtype=torch.float64)
    assert 6e-3 <= scalar_value(ValueAtPoint(three, 1e-3), SQUARE).error < 6.1e-3


def test_rounding_of_values_is_covered_where_terms_cancel() -> None:
    """Far below zero torch computes GELU as a small difference: its error is not small beside its value."""
    gelu = ScalarFunction(torch.nn.functional.gelu, curve_of("gelu"))
    for z in torch.linspace(-8.0, -1.0, 71, dtype=torch.float64).tolist():
        found = scalar_value(ValueAtPoint(torch.tensor([z], dtype=torch.float64), 0.0), gelu)
        truth = 0.5 * z * math.erfc(-z / math.sqrt(2))
        assert abs(float(found.value) - truth) <= found.error < 1e-13


def test_rows_are_filled_with_zeros() -> None:
    assert padded_rows(torch.ones(2, 3), 4).shape == (4, 3)
