"""Labelling a network: weights and biases are found, unknown operations and frozen parameters are fixed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normscope.geometry.channels.labelling import label_channels
from normscope.geometry.channels.network import LabelledNetwork
from normscope.geometry.function import function_of
from normscope.graph.capture import capture
from normscope.graph.inputs import ModelInputs


def labelled(model: nn.Module, x: Tensor) -> LabelledNetwork:
    """Return a labelled network."""
    return label_channels(function_of(capture(model, ModelInputs((x,)))))


def test_sites_of_parameters() -> None:
    labels = labelled(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3)).labels
    assert [p.parameter for p in labels.products] == ["0.weight", "2.weight"]
    assert sorted(e.parameter for e in labels.entries) == ["0.bias", "2.bias"]
    assert len(labels.solve()[1]) == 4


def test_an_unknown_operation_fixes_what_it_reads() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cumsum(self.layer(x), 1)

    assert labelled(Odd(), torch.randn(4, 3)).labels.solve()[1] == []


def test_frozen_parameters_are_constants() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(requires_grad=False)
    net = labelled(model, torch.randn(5, 3))
    assert [p.parameter for p in net.labels.products] == ["2.weight"]
    assert net.labels.solve()[1] == []
