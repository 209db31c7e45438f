"""Gradients of weight normalization against torch's own parametrization."""

from __future__ import annotations

import pytest
import torch

from normscope.core.errors import InputError
from normscope.geometry.weight_norm import weight_norm_gradients


def test_gradients_are_those_of_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(4, 3, generator=generator, dtype=torch.float64).requires_grad_()
    g = torch.randn(4, generator=generator, dtype=torch.float64).requires_grad_()
    back = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    weight = torch._weight_norm(v, g[:, None], 0)
    true_v, true_g = torch.autograd.grad(weight, (v, g), back)
    ours_v, ours_g = weight_norm_gradients(v, g, back)
    assert torch.allclose(ours_v, true_v, rtol=1e-12)
    assert torch.allclose(ours_g, true_g, rtol=1e-12)
    assert torch.allclose((ours_v * v).sum(1), torch.zeros(4, dtype=torch.float64), atol=1e-14)


def test_what_is_not_defined_is_refused() -> None:
    with pytest.raises(InputError, match="nonzero"):
        weight_norm_gradients(torch.zeros(1, 2), torch.ones(1), torch.ones(1, 2))
    with pytest.raises(InputError, match="one entry per row"):
        weight_norm_gradients(torch.ones(1, 2), torch.ones(2), torch.ones(1, 2))
