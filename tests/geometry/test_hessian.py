"""The dense Hessian against torch's, and the negative eigenvalue that scale invariance forces."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.geometry.hessian import dense_hessian, nullity, smallest_eigenvalue_bound


def _loss(w: Tensor) -> Tensor:
    a = torch.diag(torch.arange(1.0, 6.0, dtype=torch.float64))
    return w @ a @ w / (w @ w) + torch.sin(w / w.norm()).sum()


@pytest.mark.parametrize("seed", range(5))
def test_the_hessian_and_its_smallest_eigenvalue(seed: int) -> None:
    w = torch.randn(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    true = torch.autograd.functional.hessian(_loss, w)
    ours = dense_hessian(lambda p: _loss(torch.cat([p["a"], p["b"]])), {"a": w[:2], "b": w[2:]})
    assert torch.allclose(ours, true, rtol=1e-10, atol=1e-12)
    gradient = torch.autograd.functional.jacobian(_loss, w)
    assert torch.allclose(ours @ w, -gradient, atol=1e-12)
    unit = gradient / gradient.norm()
    bound = smallest_eigenvalue_bound(float(unit @ true @ unit), float(gradient.norm()), float(w.norm()))
    plane = torch.stack([w / w.norm(), unit])
    assert torch.linalg.eigvalsh(true)[0] <= bound + 1e-12 < 0
    assert torch.isclose(torch.linalg.eigvalsh(plane @ true @ plane.mT)[0], torch.tensor(bound, dtype=torch.float64))


def test_constant_gradients_have_a_zero_hessian() -> None:
    assert dense_hessian(lambda p: p["a"].sum(), {"a": torch.ones(2)}).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert nullity(torch.zeros(3, 3)) == 3


def test_a_weight_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match="zero"):
        smallest_eigenvalue_bound(1.0, 1.0, 0.0)
