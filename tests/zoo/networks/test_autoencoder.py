"""Autoencoder: the code is a bottleneck, the output an image."""

from __future__ import annotations

import pytest
import torch

from normscope.zoo.networks.autoencoder import Autoencoder


def test_output_is_an_image_between_zero_and_one() -> None:
    """The shape is the input's."""
    torch.manual_seed(0)
    model = Autoencoder(channels=3, image_size=32, width=4).eval()
    x = 10 * torch.randn(2, 3, 32, 32)
    y = model(x)
    assert y.shape == x.shape
    assert 0 <= y.min() <= y.max() <= 1


def test_code_bounds_the_rank() -> None:
    """The Jacobian of the whole map has at most the code's rank."""
    torch.manual_seed(0)
    model = Autoencoder(image_size=8, width=4, code=3).double().eval()
    jacobian = torch.func.jacrev(model)(torch.rand(1, 1, 8, 8, dtype=torch.float64)).reshape(64, 64)
    values = torch.linalg.svdvals(jacobian)
    assert values[2] > 1e-9
    assert values[3] < 1e-12


def test_image_size_must_fit() -> None:
    """Two halvings."""
    with pytest.raises(ValueError, match="multiple of 4"):
        Autoencoder(image_size=30)
