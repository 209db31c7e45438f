"""NS607: lengths of weights since an earlier checkpoint."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from checking import found, noise


def _pair(wrap: object) -> tuple[nn.Sequential, nn.Sequential]:
    """Return two equal networks; copies of a parametrized layer would share its class."""
    pair = []
    for _ in range(2):
        torch.manual_seed(0)
        model = nn.Sequential(wrap(nn.Linear(6, 5)), nn.ReLU(), nn.Linear(5, 2))  # type: ignore[operator]
        with torch.no_grad():
            for parameter in model[0].parameters():
                parameter.mul_(3)
        pair.append(model.eval())
    return pair[0], pair[1]


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
def test_a_normalization_removed_with_the_raw_weight(kind: str) -> None:
    """The factor is that of the lengths; with the normalized weight nothing is said."""
    wrap = getattr(nn.utils.parametrizations, kind)
    for kept in (True, False):
        old, model = _pair(wrap)
        effective = model[0].weight.detach().clone()
        raw = model[0].parametrizations.weight
        stored = (raw.original1 if kind == "weight_norm" else raw.original).detach().clone()
        nn.utils.parametrize.remove_parametrizations(model[0], "weight", leave_parametrized=True)
        with torch.no_grad():
            model[0].weight.copy_(effective if kept else 2 * stored)
        told = found("NS607", model, noise(16, 6), before=old)
        if kept:
            assert told == []
            continue
        assert [f.place for f in told] == ["0"]
        factor = (2 * stored).norm(dim=1) / effective.norm(dim=1)
        assert told[0].evidence["largest_factor"] == pytest.approx(float(factor.max()), rel=1e-5)
        assert f"its {kind} was removed" in told[0].message


def test_training_is_no_factor() -> None:
    """Directions turn; nor is a BatchNorm that is folded as it should be."""
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU()).eval()
    model[1].running_var.copy_(torch.linspace(1, 9, 5))
    old = copy.deepcopy(model)
    with torch.no_grad():
        model[0].weight.add_(0.05 * noise(5, 6))
    assert found("NS607", model, noise(16, 6), before=old) == []
    folded = nn.Sequential(nn.utils.fuse_linear_bn_eval(old[0], old[1]), nn.Identity(), nn.ReLU())
    assert found("NS607", folded, noise(16, 6), before=old) == []
    twice = nn.Sequential(copy.deepcopy(folded[0]), copy.deepcopy(old[1]), nn.ReLU())
    (one,) = found("NS607", twice, noise(16, 6), before=old)
    assert one.place == "0"
