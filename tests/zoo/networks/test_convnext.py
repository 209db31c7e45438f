"""ConvNeXt: published sizes, response normalization, layer scale."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from normscope.core.errors import FactoryError
from normscope.zoo.catalogue import build
from normscope.zoo.networks.convnext import GlobalResponseNorm

convnext_tiny, convnextv2_atto = (partial(build, name) for name in ("convnext_tiny", "convnextv2_atto"))


@pytest.mark.parametrize(("factory", "parameters"), [(convnext_tiny, 28_589_128), (convnextv2_atto, 3_708_400)])
def test_published_sizes(factory, parameters: int) -> None:
    """With 1000 classes."""
    with torch.device("meta"):
        assert sum(p.numel() for p in factory().parameters()) == parameters


def test_response_normalization_written_out() -> None:
    """Channel by channel, with loops."""
    generator = torch.Generator().manual_seed(0)
    layer = GlobalResponseNorm(3).double()
    with torch.no_grad():
        layer.weight.copy_(torch.randn(3, generator=generator, dtype=torch.float64))
        layer.bias.copy_(torch.randn(3, generator=generator, dtype=torch.float64))
    x = torch.randn(2, 4, 5, 3, generator=generator, dtype=torch.float64)
    y = layer(x)
    for n in range(2):
        sizes = [x[n, :, :, c].square().sum().sqrt() for c in range(3)]
        for c in range(3):
            share = sizes[c] / (sum(sizes) / 3 + 1e-6)
            expected = layer.weight[c] * x[n, :, :, c] * share + layer.bias[c] + x[n, :, :, c]
            torch.testing.assert_close(y[n, :, :, c], expected)


def test_version_one_scales_and_version_two_responds() -> None:
    """Only the first has layer scale, only the second response normalization."""
    first, second = (f(width=4, classes=2, image_size=32) for f in (convnext_tiny, convnextv2_atto))
    assert not any(isinstance(m, GlobalResponseNorm) for m in first.modules())
    assert sum(isinstance(m, GlobalResponseNorm) for m in second.modules()) == 12
    assert sum("layer_scale" in name for name, _ in first.named_parameters()) == 18
    assert not any("layer_scale" in name for name, _ in second.named_parameters())
    depthwise = [m for m in first.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (7, 7)]
    assert all(m.groups == m.in_channels for m in depthwise)


def test_image_size_must_fit() -> None:
    """The resolution is divided by 32."""
    with pytest.raises(FactoryError, match="multiple of 32"):
        convnext_tiny(image_size=30)
