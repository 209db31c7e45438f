"""Matrix groups whose directions other groups have, or that move nothing, are counted once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from normscope.geometry.discover import symmetry
from symmetric_networks import Attention, nullity, randomized


class Between(nn.Module):
    """Two linear layers between LayerNorms."""

    def __init__(self, inner: int, *, bias: bool) -> None:
        super().__init__()
        self.first, self.before = nn.Linear(3, 4), nn.LayerNorm(4)
        self.one, self.two = nn.Linear(4, inner, bias=bias), nn.Linear(inner, 5, bias=bias)
        self.after, self.last = nn.LayerNorm(5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return features."""
        return self.last(torch.tanh(self.after(self.two(self.one(self.before(self.first(x)))))))


#: name -> (network, shape of its input).
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "wide": (lambda: nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2)), (50, 3)),
    "wide, no bias": (lambda: nn.Sequential(nn.Linear(3, 8, bias=False), nn.Linear(8, 2)), (50, 3)),
    "narrow": (lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3)), (50, 3)),
    **{
        f"between LayerNorms, {inner}, {bias}": (lambda i=inner, b=bias: Between(i, bias=b), (300, 3))  # type: ignore[misc]
        for inner in (3, 4, 5, 7)
        for bias in (False, True)
    },
    "one head": (lambda: Attention(heads=1), (60, 4, 8)),
    "one head, turned": (lambda: Attention(heads=1, turned=True), (60, 4, 8)),
    "one head, turned in part": (lambda: Attention(heads=1, turned=True, still=2), (60, 4, 8)),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_dimensions_add_up(name: str) -> None:
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    found = symmetry(randomized(build()), torch.randn(shape, dtype=torch.float64), batch=shape[0])
    assert found.dimension == nullity(found.function.exact(), 1e-20)


@pytest.mark.parametrize(
    ("norm", "channels", "where"),
    [(nn.RMSNorm, 5, 5), (nn.LayerNorm, 6, 5)],  # what a LayerNorm reads may have any mean
)
@pytest.mark.parametrize("inputs", [1, 2])
def test_rotations_that_move_nothing_are_not_counted(
    norm: type[nn.Module], channels: int, where: int, inputs: int
) -> None:
    """The stream has a vector for each input and one that reads it: the others turn around those before them."""
    torch.manual_seed(0)
    stream = norm(channels, elementwise_affine=False)
    layers = nn.Linear(inputs, channels, bias=False), stream, nn.Linear(channels, 1, bias=False)
    found = symmetry(nn.Sequential(*layers, nn.Tanh()), torch.randn(20, inputs), batch=20, search="directions")
    spheres = [where - 1 - i for i in range(inputs + 1)]  # dimensions: each vector is orthogonal to those before it
    assert [g.dimension for g in found.groups if g.kind == "rotation"] == [sum(spheres)]
