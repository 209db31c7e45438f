"""What the checks measure with, against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.papers.measure import (
    CorrectionError,
    confirm,
    confirm_bound,
    gradient,
    jacobian,
    jacobian_norm,
    norm,
    quotient,
)
from normscope.papers.tensors import gaussian, numbers


def test_jacobians_of_linear_maps_are_their_matrices() -> None:
    matrix = gaussian(1, 3, 4)
    assert torch.equal(jacobian(lambda x: matrix @ x, gaussian(2, 4)), matrix)
    assert math.isclose(norm(matrix), float(torch.linalg.svdvals(matrix)[0]), rel_tol=1e-14)
    assert math.isclose(jacobian_norm(lambda x: matrix @ x, gaussian(2, 4)), norm(matrix), rel_tol=1e-14)


def test_gradients_and_quotients() -> None:
    assert torch.allclose(gradient(lambda x: (x**3).sum(), numbers(1, 2)), numbers(3, 12))
    assert quotient(lambda x: x**2, numbers(1), numbers(3)) == 4.0


def test_corrections_are_confirmed_or_raise() -> None:
    confirm("equal", 2.0, 2.0 + 1e-12)
    confirm_bound("above", 2.0, 1.0)
    with pytest.raises(CorrectionError, match=r"^one: we state 1\.0, measured is 2\.0$"):
        confirm("one", 1.0, 2.0)
    with pytest.raises(CorrectionError, match=r"at most 1\.0"):
        confirm_bound("one", 1.0, 1.001)
    with pytest.raises(CorrectionError):
        confirm_bound("nothing", 1.0, math.nan)
