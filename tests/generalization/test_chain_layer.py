"""The norms of a layer, by numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from normscope.generalization import ChainLayer


def test_norms_of_a_matrix() -> None:
    """Spectral, Frobenius, the sum and the largest of the row norms."""
    matrix = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer, a = ChainLayer.of(matrix, "fc"), matrix.numpy()
    rows = np.linalg.norm(a, axis=1)
    expected = (np.linalg.norm(a, 2), np.linalg.norm(a), rows.sum(), rows.max())
    found = (layer.spectral, layer.frobenius, layer.two_one, layer.row)
    assert np.exp(found) == pytest.approx(expected, rel=1e-10)
    assert (layer.width, layer.fan_in, layer.name) == (5, 7, "fc")
    assert all(np.exp(found) >= np.array(expected) * (1 - 1e-15))
