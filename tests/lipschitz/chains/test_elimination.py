"""Elimination: the constant that multipliers give, and its gradient."""

from __future__ import annotations

import itertools

import pytest
import torch

from normscope.lipschitz.chains.chain_form import ActivationUnit, ChainForm, MatrixWithError, chain
from normscope.lipschitz.chains.elimination import eliminate, eliminate_with_repair

#: Large enough multipliers of both units.
LOGS = torch.tensor([6.0] * 3 + [3.5] * 3).double()


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _residual() -> ChainForm:
    """Return ``W (h2 + x)`` with ``h2 = g(A h1 + x)``, ``h1 = g(B x)``, slopes between -0.2 and 1.1."""
    eye, A, B, W = (
        MatrixWithError(torch.eye(3).double()[None]),
        *(MatrixWithError(_random(1, 3, 3, seed=s)) for s in range(3)),
    )
    units = (ActivationUnit({0: B}, -0.2, 1.1), ActivationUnit({0: eye, 1: A}, -0.2, 1.1))
    return ChainForm((3,), units, {0: W, 2: W})


def _square(form: ChainForm, logs: torch.Tensor) -> float:
    rest = eliminate(form, [part.exp() for part in logs.split([u.size for u in form.units])])
    assert rest is not None
    return float(torch.linalg.eigvalsh(rest.sources).max())


def test_what_remains_bounds_every_choice_of_slopes() -> None:
    """All corners of the slopes, on a residual part with slopes of both signs."""
    form = _residual()
    logs = LOGS
    bound = _square(form, logs)
    W, B = form.target[0].value[0], form.units[0].inputs[0].value[0]
    A = form.units[1].inputs[1].value[0]
    worst = 0.0
    for corner in itertools.product((-0.2, 1.1), repeat=6):
        first, second = torch.diag(torch.tensor(corner[:3]).double()), torch.diag(torch.tensor(corner[3:]).double())
        jacobian = W @ (second @ (A @ first @ B + torch.eye(3)) + torch.eye(3))
        worst = max(worst, float(torch.linalg.matrix_norm(jacobian, 2)) ** 2)
    assert 0 < worst <= bound


def test_the_gradient_is_that_of_the_largest_eigenvalue() -> None:
    """Against differences."""
    form = _residual()
    logs = LOGS + 0.1 * _random(6, seed=5)
    rest = eliminate(form, [part.exp() for part in logs.split([3, 3])])
    assert rest is not None
    vector = torch.linalg.eigh(rest.sources)[1][:, :, -1:]
    found = torch.cat(rest.gradient(vector, torch.ones(1, 1).double())) * logs.exp()
    for i in range(6):
        step = torch.zeros(6).double()
        step[i] = 1e-5
        difference = (_square(form, logs + step) - _square(form, logs - step)) / 2e-5
        torch.testing.assert_close(found[i], torch.tensor(difference).double(), rtol=1e-5, atol=1e-7)


def test_multipliers_that_are_too_small_bound_nothing() -> None:
    """Twice the multipliers must lie above the form."""
    assert eliminate(chain([torch.eye(2), 3 * torch.eye(2)]), [torch.full((2,), 4.0).double()]) is None


def test_several_sources_remain_as_one_matrix() -> None:
    """Two sources that are added."""
    a, b = MatrixWithError(_random(1, 2, 2, seed=1)), MatrixWithError(_random(1, 2, 3, seed=2))
    form = ChainForm(
        (2, 3), (ActivationUnit({0: a, 1: b}),), {2: MatrixWithError(torch.eye(2).double()[None])}, (1.0, 1.0)
    )
    rest = eliminate(form, [torch.ones(2).double()])
    assert rest is not None
    both = torch.cat([a.value, b.value], -1)
    torch.testing.assert_close(rest.sources, both.mT @ both)


def _chain() -> tuple[ChainForm, list[torch.Tensor]]:
    weights = [_random(b, a, seed=a) for a, b in ((3, 5), (5, 4), (4, 2))]
    return chain(weights), weights


def test_multipliers_that_are_large_enough_stay() -> None:
    """And leave what elimination leaves."""
    form, _ = _chain()
    given = [torch.full((5,), 300.0).double(), torch.full((4,), 30.0).double()]
    rest, found = eliminate(form, given), eliminate_with_repair(form, given)
    assert rest is not None
    assert found is not None
    assert all(torch.equal(a, b) for a, b in zip(found.multipliers, given, strict=True))
    assert float(found.squares(torch.zeros(1))) == pytest.approx(float(torch.linalg.eigvalsh(rest.sources).max()))


def test_small_ones_are_raised_until_they_bound() -> None:
    """The result bounds the network with every activation open."""
    form, weights = _chain()
    found = eliminate_with_repair(form, [torch.ones(5).double(), 1e-3 * torch.ones(4).double()])
    assert found is not None
    assert eliminate(form, found.multipliers) is not None
    norm = float(torch.linalg.matrix_norm(weights[2] @ weights[1] @ weights[0], 2))
    assert float(found.squares(torch.zeros(1))) ** 0.5 >= norm
