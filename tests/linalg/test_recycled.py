"""The largest eigenvalue of an operator that changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from normscope.core.errors import InputError, NonFiniteError
from normscope.linalg import recycled
from normscope.linalg.recycled import KEPT, Followed, begin, follow
from normscope.linalg.thick_restart import eigenpairs

SIZE = 120


def _drifting(moments: int, step: float) -> list[Tensor]:
    """Return symmetric matrices with close leading eigenvalues, whose eigenvectors turn, mostly among themselves."""
    generator = torch.Generator().manual_seed(0)
    values = torch.cat([torch.linspace(10.0, 6.0, 9), torch.rand(SIZE - 9, generator=generator)]).double()
    basis = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64))[0]
    found = []
    for _ in range(moments):
        turn = torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64) * step / SIZE**0.5
        turn[:9, :9] *= 10
        basis = basis @ torch.linalg.matrix_exp(turn - turn.mT)
        values = values * (1 + 0.02 * torch.randn(SIZE, generator=generator, dtype=torch.float64))
        found.append(basis @ torch.diag(values) @ basis.mT)
    return found


def _start() -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_it_follows_the_largest_eigenvalue_nearer_than_lanczos_from_the_last_vector() -> None:
    matrices = _drifting(25, 0.1)
    now = begin(lambda v: matrices[0] @ v, _start(), tolerance=1e-3)
    last, ours, lanczos = now.vectors[0], [], []
    for matrix in matrices[1:]:
        now = follow(matrix.matmul, now, tolerance=1e-6)
        spectrum = torch.linalg.eigvalsh(matrix)
        truth = float(spectrum[-1])
        assert now.products <= 4
        assert now.value <= truth * (1 + 1e-12)
        assert now.value <= now.estimate * (1 + 1e-12)
        assert float((spectrum - now.value).abs().min()) <= now.residual * (1 + 1e-9)
        ours.append(1 - now.value / truth)
        other = eigenpairs(matrix.matmul, last, largest=1, tolerance=1e-9, max_products=4, size=7)
        last = other.vectors[0]
        lanczos.append(1 - float(other.values[0]) / truth)
    assert max(ours) < 0.005
    assert np.median(ours) < np.median(lanczos) / 2


def test_a_direction_that_nothing_remembered_is_coupled_to_is_found_when_it_overtakes() -> None:
    diagonal = torch.rand(SIZE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    diagonal[:10] = torch.linspace(5.0, 4.0, 10)
    now = begin(lambda v: diagonal * v, _start(), tolerance=1e-3)
    diagonal[-1] = 8.0  # an eigenvector that was among the small ones
    assert float(now.vectors[:, -1].abs().max()) < 0.2
    found = []
    for _ in range(20):
        now = follow(lambda v: diagonal * v, now)
        found.append(now.value)
    assert found[-1] == pytest.approx(8.0, rel=1e-3)
    assert now.converged


def test_what_is_remembered_shrinks_when_the_operator_does() -> None:
    matrix = _drifting(1, 0.0)[0]
    before = begin(lambda v: matrix @ v, _start(), tolerance=1e-4)
    now = follow(lambda v: 0.1 * (matrix @ v), before, tolerance=1e-2)
    truth = 0.1 * float(torch.linalg.eigvalsh(matrix)[-1])
    assert now.value == pytest.approx(truth, rel=1e-3)
    assert now.estimate == pytest.approx(truth, rel=1e-2)
    assert now.converged


def test_a_jump_is_marked() -> None:
    first, second = _drifting(1, 0.0)[0], _drifting(2, 3.0)[1]
    before = begin(lambda v: first @ v, _start(), tolerance=1e-4)
    now = follow(lambda v: second @ v, before, tolerance=1e-2, max_products=2)
    assert not now.converged
    assert now.value < 0.99 * float(torch.linalg.eigvalsh(second)[-1])


def test_negative_and_tiny_operators() -> None:
    diagonal = torch.tensor([-3.0, -1.0, -2.0], dtype=torch.float64)
    now = follow(lambda v: diagonal * v, begin(lambda v: diagonal * v, torch.ones(3, dtype=torch.float64)))
    assert now.value == pytest.approx(-1.0)
    one = follow(lambda v: 2 * v, begin(lambda v: 3 * v, torch.ones(1)), min_products=5, max_products=5)
    assert (one.value, one.products) == (2.0, 1)


def test_memory_limits_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = _drifting(1, 0.0)[0]

    def remembered() -> tuple[Followed, Followed]:
        cold = begin(lambda v: matrix @ v, _start())
        return cold, follow(lambda v: matrix @ v, cold)

    assert [len(found.vectors) for found in remembered()] == [KEPT, KEPT]
    monkeypatch.setattr(recycled, "BASIS_BYTES", 3 * SIZE * 8)
    assert [len(found.vectors) for found in remembered()] == [3, 3]


def test_what_cannot_be_done_is_refused() -> None:
    before = begin(lambda v: 2 * v, torch.ones(4))
    with pytest.raises(InputError, match="at least one product"):
        follow(lambda v: v, before, max_products=0)
    with pytest.raises(NonFiniteError, match="not finite"):
        follow(lambda v: v * float("nan"), before)
    with pytest.raises(NonFiniteError, match="not finite"):
        begin(lambda v: v * float("inf"), torch.ones(4))
