"""Plain network and its weight-normalized and spectrally normalized twins."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from normscope.zoo.catalogue import build

cnn, sn_cnn, wn_cnn = (partial(build, name) for name in ("cnn", "sn_cnn", "wn_cnn"))


def weights(model: nn.Module) -> list[nn.Module]:
    """Return the layers that have a weight."""
    return [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]


def test_every_weight_is_parametrized() -> None:
    """Three convolutions and the linear layer; none in the plain network."""
    for factory, expected in ((wn_cnn, True), (sn_cnn, True), (cnn, False)):
        layers = weights(factory(width=4))
        assert len(layers) == 4
        assert all(is_parametrized(layer) == expected for layer in layers)


def test_spectral_normalization_bounds_each_flattened_weight() -> None:
    """After some steps in training mode the largest singular value of each flattened weight is one."""
    torch.manual_seed(0)
    model = sn_cnn(width=4).double().train()
    with torch.no_grad():
        for _ in range(200):
            model(torch.zeros(1, 3, 4, 4, dtype=torch.float64))
        model.eval()
        for layer in weights(model):
            norm = torch.linalg.svdvals(layer.weight.flatten(1))[0]
            torch.testing.assert_close(norm, torch.ones_like(norm), atol=1e-3, rtol=0)
