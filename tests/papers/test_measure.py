"""What the checks measure with, against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.papers.claim import Verdict
from normscope.papers.measure import (
    CorrectionError,
    bound,
    chain,
    confirm,
    confirm_bound,
    equality,
    gaussian,
    given,
    gradient,
    holds,
    jacobian,
    jacobian_norm,
    norm,
    numbers,
    of_weight,
    padded_identity,
    quotient,
    refuted,
    standardized,
    worst,
)


def test_jacobians_of_linear_maps_are_their_matrices() -> None:
    matrix = gaussian(1, 3, 4)
    assert torch.equal(jacobian(lambda x: matrix @ x, gaussian(2, 4)), matrix)
    assert math.isclose(norm(matrix), float(torch.linalg.svdvals(matrix)[0]), rel_tol=1e-14)
    assert math.isclose(jacobian_norm(lambda x: matrix @ x, gaussian(2, 4)), norm(matrix), rel_tol=1e-14)


def test_gradients_and_quotients() -> None:
    assert torch.allclose(gradient(lambda x: (x**3).sum(), numbers(1, 2)), numbers(3, 12))
    assert quotient(lambda x: x**2, numbers(1), numbers(3)) == 4.0


def test_a_chain_is_the_network_of_the_papers() -> None:
    weights = [gaussian(3, 2, 3), gaussian(4, 4, 2)]
    x = gaussian(5, 3)
    expected = torch.relu(weights[1] @ (2 * torch.relu(weights[0] @ x)))
    assert torch.allclose(2 * chain(weights)(x), expected)
    doubled = chain(weights, lambda y, k: y * (k + 1))
    assert torch.allclose(doubled(x), torch.relu(2 * weights[1] @ torch.relu(weights[0] @ x)))


def test_a_network_as_a_function_of_one_weight() -> None:
    weights, x = [gaussian(6, 2, 3), gaussian(7, 4, 2)], gaussian(8, 3)
    assert torch.equal(of_weight(chain, weights, 1, x)(2 * weights[1]), 2 * chain(weights)(x))


def test_small_parts() -> None:
    assert padded_identity(2, 3).tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    y = standardized(gaussian(9, 50, 3))
    assert float(y.mean(0).abs().max()) < 1e-14
    assert torch.allclose(y.var(0, unbiased=False), torch.ones(3, dtype=torch.float64))


def test_verdicts_on_equalities_and_bounds() -> None:
    assert [equality(a, 1.0) for a in (1.0, 1.0 + 1e-12, 1.1, 0.9)] == [
        Verdict.HOLDS,
        Verdict.HOLDS,
        Verdict.FALSE,
        Verdict.FALSE,
    ]
    assert [bound(a, 1.0) for a in (1.0, 1.1, 0.9)] == [Verdict.HOLDS, Verdict.LOOSE, Verdict.FALSE]
    assert worst([Verdict.LOOSE, Verdict.FALSE, Verdict.HOLDS]) is Verdict.FALSE
    assert worst([]) is Verdict.HOLDS


def test_verdicts_on_conditions() -> None:
    assert [holds(c, {}, "").verdict for c in (True, False)] == [Verdict.HOLDS, Verdict.FALSE]
    assert [refuted(c, {}, "").verdict for c in (True, False)] == [Verdict.FALSE, Verdict.HOLDS]
    assert [given(c, "", {}, Verdict.LOOSE).verdict for c in (True, False)] == [Verdict.ASSUMPTION, Verdict.LOOSE]


def test_corrections_are_confirmed_or_raise() -> None:
    confirm("equal", 2.0, 2.0 + 1e-12)
    confirm_bound("above", 2.0, 1.0)
    with pytest.raises(CorrectionError, match=r"^one: we state 1\.0, measured is 2\.0$"):
        confirm("one", 1.0, 2.0)
    with pytest.raises(CorrectionError, match=r"at most 1\.0"):
        confirm_bound("one", 1.0, 1.001)
    with pytest.raises(CorrectionError):
        confirm_bound("nothing", 1.0, math.nan)
