"""EfficientNet: published sizes and the gate."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from normscope.zoo.catalogue import build
from normscope.zoo.networks.efficientnet import SqueezeExcitation

efficientnet_b0, efficientnet_b3 = (partial(build, name) for name in ("efficientnet_b0", "efficientnet_b3"))


@pytest.mark.parametrize(("factory", "parameters"), [(efficientnet_b0, 5_288_548), (efficientnet_b3, 12_233_232)])
def test_published_sizes(factory, parameters: int) -> None:
    """With 1000 classes."""
    with torch.device("meta"):
        assert sum(p.numel() for p in factory().parameters()) == parameters


def test_gate_scales_channels_by_their_means() -> None:
    """Written out in matrices."""
    torch.manual_seed(0)
    gate = SqueezeExcitation(6, 2, "none").double()
    x = torch.randn(3, 6, 4, 5, dtype=torch.float64)
    squeezed = x.mean(dim=(2, 3)) @ gate.reduce.weight[:, :, 0, 0].T + gate.reduce.bias
    squeezed = squeezed * torch.sigmoid(squeezed)
    scale = torch.sigmoid(squeezed @ gate.expand.weight[:, :, 0, 0].T + gate.expand.bias)
    torch.testing.assert_close(gate(x), x * scale[:, :, None, None])
