"""Permutations move every row, column and entry of a unit."""

from __future__ import annotations

import torch
from torch import nn

from normscope.geometry.candidates.permutations import permutation, permuted, places_of, spaces_of
from normscope.geometry.channels.labelling import label_channels
from normscope.geometry.function import function_of
from normscope.graph.capture import capture
from normscope.graph.inputs import ModelInputs


def test_units_of_a_convolutional_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 5), nn.Tanh(), nn.Linear(5, 3)
    )
    with torch.no_grad():
        model[1].running_mean.copy_(torch.randn(4))
    x = torch.randn(3, 2, 6, 6)
    function = function_of(capture(model, ModelInputs((x,))), mode="running")
    labels = label_channels(function).labels
    places = places_of(function, labels)
    spaces = spaces_of(labels, places)
    assert sorted(len(space.units) for space in spaces) == [4, 5]
    channels = next(space for space in spaces if len(space.units) == 4)
    moved = permuted(places, function.tensors, permutation(channels, [2, 0, 3, 1]))
    assert set(moved) == {"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "4.weight"}
    assert torch.equal(moved["0.bias"], function.tensors["0.bias"][[2, 0, 3, 1]])
    after = function.outputs({**function.tensors, **moved})[0]
    assert torch.allclose(after, function.outputs(function.point)[0], atol=1e-12)
