"""Scales and rescalings of whole architectures."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normscope.geometry.candidates.scales import ChannelScales
from normscope.geometry.discover import symmetry


class Stream(nn.Module):
    """A pre-activation stream with two writers and a normalized end, or not."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.stem, self.one, self.two, self.head = (nn.Linear(4, 4) for _ in range(4))
        self.norm, self.last = nn.BatchNorm1d(4, affine=False), nn.BatchNorm1d(4, affine=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.stem(x)
        x = x + self.two(torch.tanh(self.one(self.norm(x))))
        return self.head(torch.tanh(x if self.last is None else self.last(x)))


def test_writers_of_a_stream_are_scaled_together_and_only_with_a_last_norm() -> None:
    torch.manual_seed(0)
    found = symmetry(Stream(True), torch.randn(16, 4))
    (group,) = [g for g in found.groups if g.kind == "scale"]
    assert group.dimension == 4
    assert set(group.parameters) == {"stem.weight", "stem.bias", "two.weight", "two.bias"}
    assert [g for g in symmetry(Stream(False), torch.randn(16, 4)).groups if g.kind == "scale"] == []


def test_orbit_is_the_exponential_of_the_field() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).double()
    for mode in ("batch", "running"):
        found = symmetry(model, torch.randn(16, 3).double(), mode=mode)
        for group in found.groups:
            if not isinstance(group.family, ChannelScales):
                continue
            coefficients = torch.ones(group.family.size, dtype=torch.float64)
            point = found.function.point
            step = {n: (v - point[n]) / 1e-7 for n, v in group.family.move(point, coefficients, 1e-7).items()}
            for name, value in group.family.field(point, coefficients).items():
                assert torch.allclose(step[name], value, atol=1e-5)


def test_running_statistics_allow_rescaling_through_gamma_and_beta() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
    with torch.no_grad():
        model[1].running_mean.copy_(torch.randn(4))
        model[1].running_var.copy_(torch.rand(4) + 0.5)
    found = symmetry(model, torch.randn(16, 3), mode="running")
    assert found.dimension == 8  # a factor and a shift per unit, taken up by gamma and beta
