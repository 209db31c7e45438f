"""The library's encoder in a classifier."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.zoo.networks.transformer import SequenceClassifier


@pytest.mark.parametrize("norm_first", [False, True])
def test_order_matters_only_through_positions(norm_first: bool) -> None:
    """Without positions, the mean over the sequence does not depend on its order."""
    torch.manual_seed(0)
    model = SequenceClassifier(width=8, depth=1, heads=2, norm_first=norm_first).double().eval()
    x = torch.randn(2, 16, 16, dtype=torch.float64)
    assert (model(x) - model(x.flip(1))).abs().max() > 1e-6
    nn.init.zeros_(model.positions)
    torch.testing.assert_close(model(x), model(x.flip(1)))


def test_layer_norms_are_two_per_layer_and_one_last_if_first() -> None:
    """Post-norm ends normalized; pre-norm needs a last one."""
    for norm_first, expected in ((False, 4), (True, 5)):
        model = SequenceClassifier(norm_first=norm_first)
        assert sum(isinstance(m, nn.LayerNorm) for m in model.modules()) == expected
