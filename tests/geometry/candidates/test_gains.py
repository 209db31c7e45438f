"""Gains that channels pass: parameters that multiply them, and BatchNorms with fixed statistics."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normscope.geometry.candidates.gains import Gains
from normscope.geometry.channels.labelling import label_channels
from normscope.geometry.function import function_of
from normscope.graph.capture import capture
from normscope.graph.inputs import ModelInputs


class Chain(nn.Module):
    """A convolution, a BatchNorm and a scale in two layouts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3)
        self.scale = nn.Parameter(torch.tensor([2.0, 3.0, 5.0]))

    def forward(self, x: Tensor) -> Tensor:
        """Return maps, channels last."""
        return self.norm(self.conv(x)).permute(0, 2, 3, 1) * self.scale


def test_factors_are_what_multiplies_the_channels() -> None:
    torch.manual_seed(0)
    model, x = Chain(), torch.randn(4, 2, 3, 3)
    with torch.no_grad():
        model.norm.running_var.uniform_(0.5, 2.0)
        model.norm.weight.normal_()
    function = function_of(capture(model, ModelInputs((x,))), mode="running")
    labels = label_channels(function).labels
    product = labels.products[0]
    plain, normed, scaled = Gains(labels).paths(product.outputs)
    assert plain.factors(function.point).tolist() == [1.0] * 3
    assert [name for name, _ in scaled.gains] == ["norm.weight", "scale"]
    change = function.derivative({"conv.bias": torch.ones(3, dtype=torch.float64)}).reshape(-1, 3)[0]
    assert torch.allclose(scaled.factors(function.point), change)
    assert torch.allclose(normed.factors(function.point) * torch.tensor([2.0, 3.0, 5.0]).double(), change)
    assert [name for name, _ in Gains(labels).behind("conv.bias")[-1].gains] == ["norm.weight", "scale"]


def test_batch_statistics_are_no_gain() -> None:
    function = function_of(capture(Chain(), ModelInputs((torch.randn(4, 2, 3, 3),))), mode="batch")
    labels = label_channels(function).labels
    assert len(Gains(labels).paths(labels.products[0].outputs)) == 1
