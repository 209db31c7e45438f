"""DenseNet: published size and concatenation."""

from __future__ import annotations

import torch

from normscope.zoo.networks.densenet import DenseLayer, DenseNet


def test_densenet121_has_its_published_size() -> None:
    """The large arguments give the original."""
    with torch.device("meta"):
        model = DenseNet(classes=1000, image_size=224, blocks=(6, 12, 24, 16), growth=32)
    assert sum(p.numel() for p in model.parameters()) == 7_978_856


def test_layer_keeps_its_input() -> None:
    """The first channels are the input itself."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 4, 4)
    y = DenseLayer(5, 3, "bn")(x)
    assert y.shape == (2, 8, 4, 4)
    torch.testing.assert_close(y[:, :5], x, atol=0, rtol=0)
