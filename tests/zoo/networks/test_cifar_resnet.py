"""CIFAR ResNet: published size, names of public checkpoints, and the shortcut without parameters."""

from __future__ import annotations

import torch
from torch import nn

from normscope.zoo.networks.cifar_resnet import CifarResNet, PadShortcut


def test_resnet20_has_its_published_size_and_nineteen_normalizers() -> None:
    """0.27 M parameters; one BatchNorm per convolution."""
    model = CifarResNet()
    assert sum(p.numel() for p in model.parameters()) == 269_722
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == len([m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]) == 19


def test_state_dict_has_the_names_of_public_checkpoints() -> None:
    """conv1, bn1, layerS.B.convK, layerS.B.bnK and linear, and nothing else."""
    kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = {"conv1.weight", "linear.weight", "linear.bias", *(f"bn1.{kind}" for kind in kinds)}
    for block in (f"layer{stage}.{index}" for stage in (1, 2, 3) for index in range(3)):
        for k in (1, 2):
            expected |= {f"{block}.conv{k}.weight", *(f"{block}.bn{k}.{kind}" for kind in kinds)}
    assert set(CifarResNet().state_dict()) == expected


def test_shortcut_subsamples_and_pads_channels() -> None:
    """Element by element: channel c of the input is channel c + pad of the output, at even pixels."""
    x = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    y = PadShortcut(16, 32)(x)
    assert y.shape == (2, 32, 4, 4)
    for channel in range(32):
        for row in range(4):
            inside = 8 <= channel < 24
            expected = x[:, channel - 8, 2 * row, ::2] if inside else torch.zeros(2, 4)
            torch.testing.assert_close(y[:, channel, row], expected, atol=0, rtol=0)


def test_block_is_relu_of_sum() -> None:
    """With zero convolutions a block is the ReLU of its shortcut."""
    model = CifarResNet(norm="none", width=4)
    block = model.layer2[0]
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block(x), torch.relu(PadShortcut(4, 8)(x)))
