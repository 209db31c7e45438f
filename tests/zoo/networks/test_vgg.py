"""VGG-11: published sizes and the order of its layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.zoo.networks.vgg import VGG


@pytest.mark.parametrize(("norm", "parameters"), [("none", 132_863_336), ("bn", 132_868_840)])
def test_published_sizes(norm: str, parameters: int) -> None:
    """With and without BatchNorm, 1000 classes at 224 pixels."""
    with torch.device("meta"):
        model = VGG(norm=norm, classes=1000, image_size=224)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_names_are_those_of_public_checkpoints() -> None:
    """The eighth convolution and the classifier's layers have their usual numbers."""
    with torch.device("meta"):
        plain, normalized = VGG(norm="none", image_size=224), VGG(norm="bn", image_size=224)
    assert isinstance(plain.features[18], nn.Conv2d)
    assert isinstance(normalized.features[25], nn.Conv2d)
    assert [name for name, m in plain.classifier.named_children() if isinstance(m, nn.Linear)] == ["0", "3", "6"]


def test_too_small_images_are_refused() -> None:
    """Five max pools need 32 pixels."""
    with pytest.raises(ValueError, match=">= 32"):
        VGG(image_size=16)
