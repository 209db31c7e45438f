"""Rows: what LayerNorm, GroupNorm, softmax and weight standardization take away."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normscope.geometry.candidates.rows import RowShifts, WeightVectorShifts
from normscope.geometry.discover import symmetry
from normscope.geometry.representative import origin
from symmetric_networks import nullity, randomized


def rows(model: nn.Module, x: Tensor, loss: str = "none") -> dict[str, int]:
    """Return the dimension of the rows by parameter."""
    torch.manual_seed(0)
    return {g.parameters[0]: g.dimension for g in symmetry(model, x, loss=loss).groups if g.kind == "row"}


def test_layer_norm_and_softmax() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2))
    assert rows(model, torch.randn(8, 3)) == {"0.weight": 3}
    assert rows(model, torch.randn(8, 3), "cross_entropy") == {"0.weight": 3, "3.weight": 4}


def test_group_norm_takes_a_mean_per_group_but_not_per_place() -> None:
    flat = nn.Sequential(nn.Linear(3, 8), nn.GroupNorm(2, 8), nn.Tanh())
    assert rows(flat, torch.randn(8, 3)) == {"0.weight": 6}
    images = nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8), nn.Tanh())
    assert rows(images, torch.randn(4, 3, 3, 3)) == {}


def test_rms_norm_takes_no_mean() -> None:
    assert rows(nn.Sequential(nn.Linear(3, 4), nn.RMSNorm(4), nn.Tanh()), torch.randn(8, 3)) == {}


class Scaled(nn.Module):
    """A branch that is scaled channel by channel on its way into a stream that a LayerNorm reads, as in ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 4)
        self.scale = nn.Parameter(torch.rand(4) + 0.5)
        self.norm, self.last = nn.LayerNorm(4), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Return features."""
        x = torch.tanh(self.stem(x))
        return torch.tanh(self.last(self.norm(x + self.scale * self.two(torch.tanh(self.one(x))))))


def test_rows_are_divided_by_a_gain_behind() -> None:
    torch.manual_seed(0)
    model = randomized(Scaled())
    found = symmetry(model, torch.randn(300, 3, dtype=torch.float64), batch=300)
    assert {g.parameters: g.dimension for g in found.groups if g.kind == "row"} == {("two.weight",): 5}
    assert ("two.bias",) in {g.parameters for g in found.groups if g.kind == "shift"}
    assert found.dimension == nullity(found.function.exact(), 1e-20)
    row = next(g.family for g in found.groups if g.kind == "row")
    assert isinstance(row, RowShifts)
    point, coefficients = found.function.point, torch.arange(1.0, 6.0).double()
    field = row.field(point, coefficients)["two.weight"]
    assert torch.allclose(field, torch.outer(1.0 / point["scale"], coefficients))
    assert torch.allclose(origin(row, {**point, row.source: field}), -coefficients)


def test_standardized_weights() -> None:
    class Standardized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 2, 3, 3))

        def forward(self, x: Tensor) -> Tensor:
            variance, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True)
            return torch.tanh(nn.functional.conv2d(x, (self.weight - mean) * torch.rsqrt(variance + 1e-5)))

    found = symmetry(Standardized(), torch.randn(3, 2, 6, 6))
    assert sorted((g.kind, g.dimension) for g in found.groups if g.kind != "permutation") == [("row", 4), ("scale", 4)]


def test_fields_have_the_shape_of_their_parameter() -> None:
    family = RowShifts("w", torch.Size([4, 3]), 0, 2)
    field = family.field({}, torch.arange(6.0).double())["w"]
    assert field.tolist()[:2] == [[0.0, 1.0, 2.0]] * 2
    assert field.tolist()[2:] == [[3.0, 4.0, 5.0]] * 2
    assert WeightVectorShifts({"w": 1.0}, torch.Size([2, 2, 1]), torch.arange(2)).field({}, torch.ones(2).double())[
        "w"
    ].shape == (
        2,
        2,
        1,
    )
