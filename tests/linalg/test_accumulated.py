"""Inner products of long vectors."""

from __future__ import annotations

import torch

from normscope.linalg.accumulated import dot, dots, length, orthogonalized


def test_long_float32_products_are_exact_to_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.rand(2, 1_000_000, generator=generator)
    exact = float(a.double() @ b.double())
    assert abs(dot(a, b) - exact) < 3e-7 * exact
    assert abs(length(a) - float(a.double().norm())) < 1e-7 * float(a.norm())


def test_components_are_removed_to_rounding() -> None:
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(50_000, 4, generator=generator, dtype=torch.float64))[0].T.float().contiguous()
    left = orthogonalized(torch.randn(50_000, generator=generator), basis)
    assert float(dots(basis, left).abs().max()) < 1e-6 * length(left)
