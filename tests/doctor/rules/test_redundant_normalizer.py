"""NS103: normalizers that a later one makes superfluous."""

from __future__ import annotations

import torch
from torch import nn

from checking import initialized, noise, places


def test_before_pooling_and_before_a_depthwise_convolution() -> None:
    """Both keep channels apart; in train mode the outputs are the same without the first."""
    for between in (nn.AvgPool2d(2), nn.Conv2d(4, 4, 3, groups=4, bias=False)):
        model = initialized(nn.Sequential(nn.BatchNorm2d(4), between, nn.BatchNorm2d(4), nn.ReLU()))
        assert places("NS103", model, noise(4, 4, 6, 6)) == ["0"]
        x = 100 * noise(4, 4, 6, 6, seed=3)
        model.train()
        assert torch.allclose(model(x), model[1:](x), atol=2e-3)
        assert not torch.allclose(model(x), x.new_zeros(()), atol=1e-1)


def test_not_before_what_mixes_channels_or_pads() -> None:
    """A full convolution mixes them; zero padding sees the shift; a ReLU acts in between."""
    mixing = nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4))
    padding = nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, groups=4, padding=1, bias=False), nn.BatchNorm2d(4))
    acting = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.BatchNorm2d(4))
    for model in (mixing, padding, acting):
        assert places("NS103", initialized(model), noise(4, 4, 6, 6)) == []
