"""The row of a normalizer of weights holds what it says: the norm of its layer as it acts."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from normscope import analyze


class Standardized(nn.Conv2d):
    """A convolution whose kernels are standardized, written out."""

    def forward(self, x: Tensor) -> Tensor:
        """Standardize and convolve."""
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        std = self.weight.var((1, 2, 3), keepdim=True, unbiased=False).add(1e-5).sqrt()
        return nn.functional.conv2d(x, (self.weight - mean) / std, self.bias, padding=1)


def _converged(module: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Let the power iteration of a fresh layer run, as training does."""
    for _ in range(30):
        module.train()(torch.zeros(1, *shape))
    return module.eval()


def _conv() -> nn.Conv2d:
    return nn.Conv2d(2, 3, 3, padding=1)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "spectral, convolution": (lambda: parametrizations.spectral_norm(_conv()), (2, 5, 5)),
    "spectral, old hook": (lambda: spectral_norm(_conv()), (2, 5, 5)),
    "spectral, strided": (lambda: parametrizations.spectral_norm(nn.Conv2d(2, 3, 3, stride=2)), (2, 5, 5)),
    "spectral, transposed": (lambda: parametrizations.spectral_norm(nn.ConvTranspose2d(2, 3, 3)), (2, 4, 4)),
    "spectral, dense": (lambda: parametrizations.spectral_norm(nn.Linear(6, 4)), (6,)),
    "weight norm, convolution": (lambda: parametrizations.weight_norm(_conv()), (2, 5, 5)),
    "weight norm, old hook": (lambda: weight_norm(_conv()), (2, 5, 5)),
    "weight norm, dense": (lambda: parametrizations.weight_norm(nn.Linear(6, 4)), (6,)),
    "standardized": (lambda: Standardized(2, 3, 3, padding=1), (2, 5, 5)),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("converged", [False, True], ids=["fresh", "converged"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_row_is_above_the_layer(name: str, converged: bool) -> None:
    """As a dense matrix on its image, and nearly equal to it."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = make()
    layer = _converged(layer, shape) if converged else layer.eval()
    model = nn.Sequential(layer, nn.ReLU())
    result = analyze(model, torch.randn(2, *shape), points=1, ascent=0)
    (row,) = result.normalizers
    basis = torch.eye(math.prod(shape)).reshape(-1, *shape)
    with torch.no_grad():
        images = layer(basis).double() - layer(torch.zeros(1, *shape)).double()
    truth = float(torch.linalg.matrix_norm(images.flatten(1), ord=2))
    assert truth * (1 - 1e-5) <= row.proved.value <= truth * (1 + 1e-2)
    assert row.proved.log == max(x.upper.log for x in result.layers)


def test_two_layers_have_each_their_own() -> None:
    """The row of one layer is not the largest of all."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    nn.init.eye_(first.weight)
    second.weight.data = 5.0 * torch.eye(4)
    model = nn.Sequential(parametrizations.weight_norm(first), nn.ReLU(), parametrizations.weight_norm(second))
    rows = {n.name: n.proved.value for n in analyze(model, torch.randn(2, 4), points=1, ascent=0).normalizers}
    assert rows == pytest.approx({"0": 1.0, "2": 5.0}, rel=1e-3)
