"""What networks for images share."""

from __future__ import annotations

import torch
from torch import nn

from normscope.zoo.networks.layers import ImageClassifier, unit


def test_further_layers_follow_the_mean_in_their_order() -> None:
    """Under the names they are given."""
    parts = {"norm": nn.LayerNorm(4), "head": nn.Linear(4, 2)}
    model = ImageClassifier((3, 6, 6), unit(3, 4, 3, "bn", nn.ReLU, stride=2), **parts).eval()
    x = torch.randn(2, *model.input_shape, generator=torch.Generator().manual_seed(0))
    means = model.features(x).mean(dim=(2, 3))
    torch.testing.assert_close(model(x), parts["head"](parts["norm"](means)))
    assert [name for name, _ in model.named_children()] == ["features", "norm", "head"]
