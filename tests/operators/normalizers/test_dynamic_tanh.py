"""Dynamic tanh: its constant is attained at zero, and it is found wherever it stands."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from networks import points, program_of
from normscope.operators.normalizer import site_constants
from normscope.operators.normalizers.dynamic_tanh import dynamic_tanh_global
from operators.normalizers.truth import jacobian_norm


class DynamicTanh(nn.Module):
    """As the paper writes it, channels last or first."""

    def __init__(self, channels: int, *, first: bool = False) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor([-0.7]))
        self.weight, self.bias = nn.Parameter(points(channels)), nn.Parameter(points(channels, seed=1))
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift the tanh."""
        x = torch.tanh(self.alpha * x)
        if self.first:
            return x * self.weight[:, None, None] + self.bias[:, None, None]
        return x * self.weight + self.bias


@pytest.mark.parametrize("first", [False, True])
def test_it_is_found_with_its_constant(first: bool) -> None:
    """The row's constant is the largest Jacobian norm, which is the one at zero."""
    layer = DynamicTanh(4, first=first).double()
    shape = (4, 3, 3) if first else (5, 4)
    (site,) = program_of(nn.Sequential(layer), points(2, *shape)).sites
    constants = site_constants(site, None, "running")
    assert site.kind == "dynamic_tanh"
    norms = [jacobian_norm(lambda z: layer(z[None]), size * points(*shape)) for size in (0.0, 0.1, 1.0)]
    assert constants.proved.value == pytest.approx(norms[0], rel=1e-12)
    assert max(norms) <= constants.proved.value


def test_an_activation_is_none() -> None:
    """A tanh after a layer, with or without a fixed factor, is an activation."""
    assert program_of(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double(), points(2, 4)).sites == []


def test_the_constant() -> None:
    """Signs do not matter, and no scale means one."""
    assert dynamic_tanh_global(torch.tensor([1.0, -4.0]), -0.5) == pytest.approx(2.0, rel=1e-14)
    assert dynamic_tanh_global(None, 3.0) == pytest.approx(3.0, rel=1e-14)


def test_a_product_that_underflows_is_not_zero() -> None:
    """Only a scale or a number alpha of zero makes the map constant."""
    tiny = torch.tensor([1e-200], dtype=torch.float64)
    assert dynamic_tanh_global(tiny, -1e-200) == 5e-324
    assert dynamic_tanh_global(tiny, 0.0) == dynamic_tanh_global(torch.zeros(2), 1.0) == 0.0
