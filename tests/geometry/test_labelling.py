"""Walking a network: parameters get labels, views of them stay views, what is unknown is fixed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normscope.geometry.function import function_of
from normscope.geometry.labelling import Labelling
from normscope.graph.capture import capture
from normscope.graph.inputs import ModelInputs


def labelling(model: nn.Module, x: Tensor) -> Labelling:
    """Return a walk that was done."""
    walk = Labelling(function_of(capture(model, ModelInputs((x,)))))
    walk.run()
    return walk


def test_sites_of_parameters() -> None:
    labels = labelling(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3)).labels
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

    assert labelling(Odd(), torch.randn(4, 3)).labels.solve()[1] == []


def test_frozen_parameters_are_constants() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(requires_grad=False)
    walk = labelling(model, torch.randn(5, 3))
    assert [p.parameter for p in walk.labels.products] == ["2.weight"]
    assert walk.labels.solve()[1] == []
