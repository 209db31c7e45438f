"""NS608: what is called a normalizer and is none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from checking import noise, places
from normscope.doctor.rules.not_normalized import is_normalized


class FeatureNorm(nn.Module):
    """A normalizer by some formula, with a scale and a shift."""

    def __init__(self, formula: object) -> None:
        super().__init__()
        self.formula = formula
        self.weight, self.bias = nn.Parameter(torch.linspace(5, 9, 6)), nn.Parameter(torch.full((6,), 50.0))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        return self.formula(x) * self.weight + self.bias  # type: ignore[operator]


RIGHT = {
    "layer": lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5),
    "length": lambda x: x / x.norm(dim=-1, keepdim=True),
    "largest": lambda x: x / x.abs().amax(-1, keepdim=True),
    "deviation": lambda x: (x - x.mean(-1, keepdim=True)) / (x - x.mean(-1, keepdim=True)).abs().mean(-1, keepdim=True),
    "mean alone": lambda x: x - x.mean(-1, keepdim=True),
}
WRONG = {
    "the variance for its root": lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5),
    "the mean is not subtracted": lambda x: x - x.mean(-1, keepdim=True) / x.std(-1, keepdim=True),
    "a root too many": lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True).sqrt(),
}


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_by_what_it_gives(name: str) -> None:
    """Scale and shift of its own are left out, whatever they are."""
    x = 100 + 20 * noise(64, 6) * torch.linspace(0.5, 2, 6)
    model = nn.Sequential(FeatureNorm((RIGHT | WRONG)[name]), nn.Linear(6, 2))
    assert places("NS608", model, x) == ([] if name in RIGHT else ["0"])


def test_another_name_is_another_matter() -> None:
    """Nothing is expected of a module that is not called a normalizer, nor of one that undoes it."""
    for kind in ("Mixer", "DeNormalize"):
        model = nn.Sequential(type(kind, (FeatureNorm,), {})(WRONG["a root too many"]), nn.Linear(6, 2))
        assert places("NS608", model, 100 + 20 * noise(64, 6)) == []


def test_sizes_of_normalized_tensors() -> None:
    """Unit variance along any axes, or equal norms; large constants have equal norms and are none of this."""
    x = noise(32, 6, 5)
    for axes in ((0, 2), (1,), (2,), (1, 2), (0, 1, 2)):
        assert is_normalized((x - x.mean(axes, keepdim=True)) / x.std(axes, keepdim=True), divides=True)
        assert is_normalized(30 * x / x.square().sum(axes, keepdim=True).sqrt(), divides=True) or axes == (0, 1, 2)
    assert not is_normalized(5000 + x, divides=True)
    assert not is_normalized(x / 10, divides=True)


class RMSNorm(nn.Module):
    """A root mean square normalizer, or one by the length of the vector."""

    def __init__(self, factor: float, *, mean: bool) -> None:
        super().__init__()
        self.factor, self.mean = factor, mean

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        square = x.square().mean(-1, keepdim=True) if self.mean else x.square().sum(-1, keepdim=True)
        return x * torch.rsqrt(square + 1e-6) * self.factor


def test_a_sum_for_a_mean() -> None:
    """Unless the factor between them is put back."""
    for factor, mean, told in ((1.0, False, ["1"]), (8.0, False, []), (1.0, True, [])):
        model = nn.Sequential(nn.Linear(6, 64), RMSNorm(factor, mean=mean), nn.Linear(64, 2))
        assert places("NS608", model, noise(16, 6)) == told
