"""Inputs in the unit ball."""

from __future__ import annotations

import torch

from normscope.papers.than2025.figures.unit_ball import enlarged, into_unit_ball


def test_one_factor_for_all() -> None:
    """Quotients of norms stay, the largest becomes one; zeros stay zeros."""
    x = torch.rand(5, 2, 3, generator=torch.Generator().manual_seed(0))
    scaled = into_unit_ball(x)
    factor = x.flatten(1).norm(dim=1).max()
    assert torch.allclose(scaled * factor, x)
    assert torch.equal(into_unit_ball(torch.zeros(2, 3)), torch.zeros(2, 3))


def test_enlarging_repeats_pixels_and_channels() -> None:
    """Nothing is invented between pixels."""
    x = torch.arange(4.0).view(1, 1, 2, 2)
    y = enlarged(x, 4)
    assert y.shape == (1, 3, 4, 4)
    assert torch.equal(y[0, 0], x[0, 0].repeat_interleave(2, 0).repeat_interleave(2, 1))
    assert enlarged(torch.zeros(1, 3, 2, 2), 4).shape == (1, 3, 4, 4)
