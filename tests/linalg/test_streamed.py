"""Norms of matrices in blocks of rows, against dense singular values."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.core.errors import InputError, NonFiniteError
from normscope.linalg.streamed import streamed_norm


def _random(shape: tuple[int, int], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(300, 40), (40, 300), (50, 50), (1, 70), (70, 1), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_encloses_the_dense_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Encloses the dense norm."""
    A = _random(shape).to(dtype)
    truth = float(torch.linalg.matrix_norm(A.double(), ord=2))
    bounds = streamed_norm(A, numbers=64)
    assert bounds.lower <= truth * (1 + 1e-12)
    assert bounds.upper >= truth * (1 - 1e-12)
    assert bounds.width < 1e-6


def test_blocks_do_not_change_the_answer() -> None:
    """Blocks do not change the answer."""
    A = _random((200, 30))
    one, many = streamed_norm(A, numbers=10**9), streamed_norm(A, numbers=30)
    assert math.isclose(one.upper, many.upper, rel_tol=1e-9)


@pytest.mark.parametrize("exponent", [-1070, -1000, 1000])
def test_extreme_scales_neither_overflow_nor_vanish(exponent: int) -> None:
    """Extreme scales neither overflow nor vanish."""
    A = torch.ldexp(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), torch.tensor(exponent))
    bounds = streamed_norm(A)
    log = (exponent + 0.5) * math.log(2)
    assert bounds.log_lower <= log <= bounds.log_upper
    assert bounds.log_upper - bounds.log_lower < 1e-8


def test_nearly_equal_singular_values_are_still_enclosed() -> None:
    """Nearly equal singular values are still enclosed."""
    Q = torch.linalg.qr(_random((60, 60)))[0]
    values = torch.ones(60, dtype=torch.float64)
    values[0] = 1 + 1e-8
    A = (Q * values) @ torch.linalg.qr(_random((60, 60), 1))[0]
    bounds = streamed_norm(A)
    assert bounds.lower <= 1 + 1e-8 + 1e-14
    assert bounds.upper >= 1 + 1e-8 - 1e-14
    assert bounds.width < 1e-6


def test_zero_and_empty() -> None:
    """Zero and empty."""
    assert streamed_norm(torch.zeros(4, 3)).upper == 0.0
    assert streamed_norm(torch.zeros(0, 3)).upper == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_refuses_what_is_not_finite(bad: float) -> None:
    """Refuses what is not finite."""
    A = torch.ones(5, 4)
    A[3, 2] = bad
    with pytest.raises(NonFiniteError):
        streamed_norm(A, numbers=4)


def test_refuses_other_shapes() -> None:
    """Refuses other shapes."""
    with pytest.raises(InputError, match="Expected a matrix"):
        streamed_norm(torch.ones(2, 2, 2))
