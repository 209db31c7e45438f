"""The floor that no bound over free patterns can pass."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from normscope.lipschitz.chains.certificate import certify_form
from normscope.lipschitz.chains.chain_form import ActivationUnit, ChainForm, MatrixWithError, chain
from normscope.lipschitz.chains.pattern_floor import pattern_floor


def _random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("slopes", [(0.0, 1.0), (-0.2, 1.1)])
def test_it_is_attained_by_a_pattern_and_near_the_largest(slopes: tuple[float, float]) -> None:
    """Against all patterns of a small network."""
    weights = [_random(4, 3, seed=0), _random(4, 4, seed=1), _random(2, 4, seed=2)]
    worst = 0.0
    for corner in itertools.product(slopes, repeat=8):
        first, second = (torch.diag(torch.tensor(part, dtype=torch.float64)) for part in (corner[:4], corner[4:]))
        worst = max(worst, float(torch.linalg.matrix_norm(weights[2] @ second @ weights[1] @ first @ weights[0], 2)))
    found = pattern_floor(chain(weights, slopes))
    assert 0.9 * worst <= found <= worst * (1 + 1e-12)


def test_it_lies_below_what_is_proved_of_a_residual_part() -> None:
    """The certificate and the floor enclose the best bound of the kind."""
    eye, a, b = (
        MatrixWithError(torch.eye(4).double()[None]),
        MatrixWithError(_random(1, 4, 4, seed=3)),
        MatrixWithError(_random(1, 4, 4, seed=4)),
    )
    form = ChainForm((4,), (ActivationUnit({0: a}), ActivationUnit({0: eye, 1: b})), {1: eye, 2: b})
    proved = certify_form(form, seconds=0.3)
    assert proved is not None
    assert 0 < pattern_floor(form) <= math.exp(proved[0])
