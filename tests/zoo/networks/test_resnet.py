"""Residual networks: published sizes, names of public checkpoints, resolutions."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from normscope.zoo.catalogue import build

resnet18, resnet34, resnet50 = (partial(build, name) for name in ("resnet18", "resnet34", "resnet50"))


@pytest.mark.parametrize(
    ("factory", "parameters", "normalizers"),
    [(resnet18, 11_689_512, 20), (resnet34, 21_797_672, 36), (resnet50, 25_557_032, 53)],
)
def test_published_sizes(factory, parameters: int, normalizers: int) -> None:
    """Parameters and BatchNorm layers are those of the originals."""
    with torch.device("meta"):
        model = factory()
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert sum(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == normalizers


def test_names_are_those_of_public_checkpoints() -> None:
    """A sample of every kind of key."""
    with torch.device("meta"):
        keys = set(resnet50().state_dict())
    assert {
        "conv1.weight", "bn1.running_var", "layer1.0.downsample.0.weight", "layer1.0.downsample.1.bias",
        "layer3.5.conv3.weight", "layer4.2.bn3.weight", "fc.bias",
    } <= keys  # fmt: skip


@pytest.mark.parametrize(("size", "last"), [(32, 4), (64, 8), (224, 7)])
def test_resolution_of_the_last_stage(size: int, last: int) -> None:
    """Small images keep their resolution in the stem; large ones are divided by 32 in all."""
    model = resnet18(width=2, classes=3, image_size=size).eval()
    seen: list[torch.Size] = []
    model.layer4.register_forward_hook(lambda _m, _i, output: seen.append(output.shape))
    assert model(torch.zeros(1, *model.input_shape)).shape == (1, 3)
    assert seen[0][2:] == (last, last)


@pytest.mark.parametrize("factory", [resnet18, resnet50])
def test_block_adds_its_shortcut(factory) -> None:
    """With zero convolutions and no normalizer a block without projection is a ReLU."""
    model = factory(norm="none", width=2, image_size=32)
    block = model.layer1[1]
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(1, 2 * block.expansion, 4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block(x), torch.relu(x))
