"""Columns: what a weight behind a LayerNorm may have added, at which places of a kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normscope.geometry.candidates.columns import ColumnShifts
from normscope.geometry.discover import symmetry
from normscope.geometry.representative import origin
from symmetric_networks import nullity, randomized


def columns(model: nn.Module, x: Tensor) -> dict[str, int]:
    """Return the dimension of the columns by the weight they are added to."""
    return {g.parameters[0]: g.dimension for g in symmetry(model, x).groups if g.kind == "column"}


class Patches(nn.Module):
    """A convolution that reads a LayerNorm over channels."""

    def __init__(self, conv: nn.Module, *, bias: bool = True) -> None:
        super().__init__()
        self.stem, self.norm, self.conv, self.head = nn.Conv2d(2, 4, 1), nn.LayerNorm(4, bias=bias), conv, nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        """Return maps."""
        x = self.norm(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.head(self.conv(x))


def test_linear_layer() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3), nn.Tanh())
    assert columns(model, torch.randn(8, 4)) == {"1.weight": 3}


#: name -> (convolution, whether the LayerNorm has a shift, columns of the weight, and of the weight for the shift).
#: The shift of a LayerNorm reaches the three outputs as a constant, of which the border of an image with zeros around
#: it lacks a part. Where the bias does not take it up, the weight does.
CONVOLUTIONS: dict[str, tuple[nn.Module, bool, dict[str, int]]] = {
    "patches": (nn.Conv2d(4, 3, 2, stride=2), True, {"conv.weight": 3 * 4}),
    "no shift": (nn.Conv2d(4, 3, 3, padding=1), False, {"conv.weight": 3 * 9}),
    "zeros around": (nn.Conv2d(4, 3, 3, padding=1), True, {"conv.weight": 3 * 1, "norm.bias": 4}),
    # only the first row and column of places stand outside: four that never do, and two differences in pairs
    "zeros on two sides": (
        nn.Conv2d(4, 3, 3, stride=2, padding=1),
        True,
        {"conv.weight": 3 * 6, "norm.bias": 4},
    ),
    "no bias": (nn.Conv2d(4, 3, 2, stride=2, bias=False), True, {"conv.weight": 3 * 3, "norm.bias": 4}),
    "transposed": (nn.ConvTranspose2d(4, 3, 2, stride=2), True, {"conv.weight": 3 * 1, "norm.bias": 4}),
    "in groups": (nn.Conv2d(4, 4, 2, groups=4), True, {}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    conv, bias, expected = CONVOLUTIONS[name]
    torch.manual_seed(0)
    model = randomized(Patches(conv, bias=bias))
    found = symmetry(model, torch.randn(24, 2, 6, 6, dtype=torch.float64), batch=24)
    assert {g.parameters[0]: g.dimension for g in found.groups if g.kind == "column"} == expected
    assert found.dimension == nullity(found.function.exact(), 1e-20)


class Reader(nn.Module):
    """Two layers that read a LayerNorm, one without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Linear(3, 4), nn.LayerNorm(4)
        self.one, self.two = nn.Linear(4, 5, bias=False), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return a gated product."""
        x = self.norm(self.stem(x))
        return torch.tanh(self.one(x)) * torch.sigmoid(self.two(x))


def test_weights_take_up_a_shift_that_no_bias_can() -> None:
    torch.manual_seed(0)
    found = symmetry(randomized(Reader()), torch.randn(200, 3, dtype=torch.float64), batch=200)
    columns = {g.parameters: g.dimension for g in found.groups if g.kind == "column"}
    assert columns == {("two.weight", "two.bias"): 5, ("norm.bias", "one.weight", "two.weight"): 4}
    assert found.dimension == nullity(found.function.exact(), 1e-20)
    assert all(g.certificate.hessian <= 1e-9 for g in found.groups if g.dimension)  # type: ignore[operator,union-attr]


class HalfShifted(nn.Module):
    """Patches of a LayerNorm, the last two maps of which are shifted."""

    def __init__(self, kernel: int, padding: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.LayerNorm(3), nn.Conv2d(3, 4, kernel, stride=2, padding=padding, bias=False)
        self.head = nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return maps."""
        one, two = self.conv(self.norm(x).permute(0, 3, 1, 2)).chunk(2, 1)
        return torch.tanh(torch.cat([torch.sigmoid(one), self.head(two)], 1))


@pytest.mark.parametrize(("kernel", "padding", "free"), [(2, 0, 4), (3, 1, 6)])
def test_only_some_maps_of_a_convolution_have_a_bias(kernel: int, padding: int, free: int) -> None:
    """These two may have something added at each place of the kernel; with zeros on two sides see above."""
    torch.manual_seed(0)
    model = randomized(HalfShifted(kernel, padding))
    found = symmetry(model, torch.randn(12, 6, 6, 3, dtype=torch.float64), batch=12, search="directions")
    groups = {g.parameters: g for g in found.groups if g.kind == "column"}
    group = groups["conv.weight", "head.bias"]
    assert group.dimension == 2 * free
    assert isinstance(group.family, ColumnShifts)
    added = [group.family.start(found.function.point, row) for row in torch.eye(2 * free, dtype=torch.float64)]
    assert not any(bool(shift[:2].any()) for shift in added)
    assert int(torch.linalg.matrix_rank(torch.stack(added).flatten(1))) == 2 * free


def test_origin_takes_away_what_start_adds() -> None:
    torch.manual_seed(0)
    model = randomized(Patches(CONVOLUTIONS["zeros on two sides"][0]))
    found = symmetry(model, torch.randn(4, 2, 6, 6, dtype=torch.float64))
    family = next(g.family for g in found.groups if g.kind == "column")
    assert isinstance(family, ColumnShifts)
    coefficients = torch.randn(family.size, dtype=torch.float64)
    point = found.function.point
    added = {**point, family.source: family.start(point, coefficients)}
    assert torch.allclose(origin(family, added), -coefficients)
