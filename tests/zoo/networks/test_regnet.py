"""Grouped network: published size, groups."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.zoo.networks.regnet import RegNet


def test_regnetx_200mf_has_its_published_size() -> None:
    """The large arguments give the original."""
    with torch.device("meta"):
        model = RegNet(classes=1000, image_size=224, widths=(24, 56, 152, 368), blocks=(1, 1, 4, 7))
    assert sum(p.numel() for p in model.parameters()) == 2_684_792


def test_spatial_convolutions_are_grouped() -> None:
    """Each 3x3 convolution but the stem's has groups of eight channels."""
    convolutions = [m for m in RegNet().modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert [m.in_channels // m.groups for m in convolutions] == [3] + [8] * 6


def test_widths_must_be_whole_groups() -> None:
    """24 is three groups of eight, 20 is not."""
    with pytest.raises(ValueError, match="multiple of group=8"):
        RegNet(widths=(20,), blocks=(1,))
