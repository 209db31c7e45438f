"""Normalizer-free network: standardized weights, kept variance, no normalizer."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from normscope.zoo.networks.nfnet import RELU_GAIN, NFNet, NormalizerFreeBlock, StandardizedConv2d


def test_weight_is_standardized_per_output_channel() -> None:
    """A numpy formula gives the same weight, and the convolution uses it."""
    torch.manual_seed(0)
    layer = StandardizedConv2d(3, 5, 3, stride=2).double()
    nn.init.uniform_(layer.gain, 0.5, 2.0)
    w = layer.weight.detach().numpy().reshape(5, -1)
    standard = (w - w.mean(axis=1, keepdims=True)) / np.sqrt(np.maximum(w.var(axis=1, keepdims=True) * 27, 1e-4))
    standard = torch.from_numpy(standard).reshape(layer.weight.shape) * layer.gain
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    expected = nn.functional.conv2d(x, standard, layer.bias, stride=2, padding=1)
    torch.testing.assert_close(layer(x), expected)


def test_gain_keeps_unit_variance_of_a_normal_input() -> None:
    """The variance of relu of a standard normal is (1 - 1/pi) / 2."""
    x = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert math.isclose(float((RELU_GAIN * x.relu()).var()), 1.0, abs_tol=0.01)


def test_no_layer_normalizes_activations() -> None:
    """And every convolution is standardized."""
    norms = (nn.BatchNorm2d, nn.GroupNorm, nn.InstanceNorm2d, nn.LayerNorm)
    model = NFNet()
    assert not any(isinstance(m, norms) for m in model.modules())
    assert all(isinstance(m, StandardizedConv2d) for m in model.modules() if isinstance(m, nn.Conv2d))


def test_expected_deviations_start_again_where_channels_change() -> None:
    """The square of beta grows by a^2 with each block; after a change of channels it is 1 + a^2."""
    betas = [block.beta**2 for block in NFNet(blocks=3, alpha=0.5).blocks]
    expected = [1.0, 1.25, 1.5, 1.75, 1.25, 1.5, 1.75, 1.25, 1.5]
    assert all(math.isclose(a, b) for a, b in zip(betas, expected, strict=True))


def test_a_block_is_its_formula() -> None:
    """The branch reads the input over its expected deviation; alpha and a gain that starts at zero multiply it."""
    torch.manual_seed(0)
    block = NormalizerFreeBlock(4, 4, 1, alpha=0.5, beta=3.0).double()
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    assert torch.equal(block(x), x)
    nn.init.constant_(block.skip_gain, 0.7)
    branch = block.conv2(RELU_GAIN * block.conv1(RELU_GAIN * (x / 3.0).relu()).relu())
    torch.testing.assert_close(block(x), x + 0.5 * 0.7 * branch)
