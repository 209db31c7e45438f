"""NS606: what a normalizer lost since an earlier checkpoint."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from checking import found, noise


def _trained(norm: nn.Module) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 5), norm, nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * noise(5, seed=1))
        norm.bias.copy_(0.5 * noise(5, seed=2))
        model(noise(64, 6))
    return model.eval()


@pytest.mark.parametrize(
    ("norm", "lost", "words"),
    [
        (nn.LayerNorm(5), lambda n: nn.init.zeros_(n.bias), ["shift"]),
        (nn.LayerNorm(5), lambda n: nn.init.ones_(n.weight), ["scale"]),
        (nn.GroupNorm(1, 5), lambda n: n.reset_parameters(), ["scale", "shift"]),
        (nn.BatchNorm1d(5), lambda n: n.reset_running_stats(), ["statistics"]),
        (nn.LayerNorm(5), lambda n: setattr(n, "eps", 0.1), ["eps changed from 1e-05 to 0.1"]),
    ],
)
def test_each_part_is_told(norm: nn.Module, lost: object, words: list[str]) -> None:
    """By name; nothing where it is as it was."""
    model, x = _trained(norm), noise(16, 6)
    old = copy.deepcopy(model)
    assert found("NS606", model, x, before=old) == []
    lost(model[1])  # type: ignore[operator]
    (one,) = found("NS606", model, x, before=old)
    assert one.place == "1"
    assert all(word in one.message for word in words)


def test_training_and_folding_are_no_loss() -> None:
    """Values that moved are not set back; a shift that was folded into the next layer is still there."""
    model, x = _trained(nn.LayerNorm(5)), noise(16, 6)
    old = copy.deepcopy(model)
    with torch.no_grad():
        model[1].bias.add_(0.1)
    assert found("NS606", model, x, before=old) == []
    model = nn.Sequential(*list(copy.deepcopy(old))[:2], nn.Linear(5, 2))
    folded = copy.deepcopy(model)
    with torch.no_grad():
        folded[2].bias.add_(folded[2].weight @ folded[1].bias)
        folded[1].bias.zero_()
    assert found("NS606", folded, x, before=model) == []
