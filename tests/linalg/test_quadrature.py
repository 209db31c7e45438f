"""Lanczos quadrature against moments."""

from __future__ import annotations

import numpy as np
import torch

from normscope.linalg.quadrature import lanczos_quadrature


def test_it_is_exact_for_polynomials_up_to_degree_2m_minus_1() -> None:
    generator = torch.Generator().manual_seed(0)
    d = torch.randn(60, generator=generator, dtype=torch.float64)
    q = torch.randn(60, generator=generator, dtype=torch.float64)
    rule = lanczos_quadrature(lambda v: d * v, q, 5)
    unit = q / q.norm()
    for degree in range(10):
        exact = float((unit.square() * d**degree).sum())
        assert np.isclose(float(rule.weights @ rule.nodes**degree), exact, rtol=1e-9, atol=1e-9), degree


def test_projected_directions_are_not_seen() -> None:
    d = torch.tensor([5.0, 1.0, 2.0], dtype=torch.float64)
    keep = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    rule = lanczos_quadrature(lambda v: d * v, torch.ones(3, dtype=torch.float64), 3, project=lambda v: keep * v)
    np.testing.assert_allclose(rule.nodes, [1.0, 2.0])
    nothing = lanczos_quadrature(lambda v: d * v, torch.ones(3), 3, project=torch.zeros_like)
    assert nothing.nodes.tolist() == [0.0]
