"""Where parameters are added, and what they can take up."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normscope.geometry.candidates.biases import AddedParameter, find_biases
from normscope.geometry.function import function_of
from normscope.graph.capture import capture
from normscope.graph.inputs import ModelInputs


class Sums(nn.Module):
    """A bias behind a transposition and dropout, another one by itself, and a table."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.drop = nn.Linear(3, 4), nn.Linear(3, 4), nn.Dropout(0.1)
        self.offset, self.table = nn.Parameter(torch.zeros(1, 1, 4)), nn.Parameter(torch.randn(9, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Add them."""
        turned = self.drop(self.two(x.transpose(0, 1)).transpose(0, 1))
        return self.one(x) + turned + self.offset + self.table[torch.arange(5)]


def test_sums() -> None:
    function = function_of(capture(Sums().eval(), ModelInputs((torch.randn(6, 5, 3),))))
    found = find_biases(function)
    assert {name: a.table for name, a in found.sources.items()} == {
        "one.bias": False,
        "two.bias": False,
        "offset": False,
        "table": True,
    }
    taken = [sorted(a.parameter for a in several) for several in found.beside.values()]
    assert taken == [["one.bias", "two.bias"], ["offset"], ["table"]]


def test_absorber_takes_constants_only() -> None:
    along = AddedParameter("b", -1)
    constant = torch.tensor([1.0, 2.0]).expand(3, 2)
    taken = along.absorbed(constant, torch.Size([2]))
    assert taken is not None
    assert taken.tolist() == [-1.0, -2.0]
    assert along.absorbed(torch.randn(3, 2), torch.Size([2])) is None
    assert AddedParameter("p", None).absorbed(constant, torch.Size([1, 2])).tolist() == [[-1.0, -2.0]]  # type: ignore[union-attr]
