"""Noise in the weights: more of it costs errors, the divergence does not move under rescaling, nothing is touched."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from normscope.analysis.bounds.folded import LEVELS, Folded, posterior

from .conftest import captured_of


def test_posterior(trained: Any) -> None:
    """Deterministic by the seed; the noisy error is a share; a rescaled twin has the same divergence."""
    model, (x, y), _ = trained
    before = copy.deepcopy(model.state_dict())
    first = posterior(Folded(captured_of(model, 4, 2)), x, y, 0.0, 0)
    assert first == posterior(Folded(captured_of(model, 4, 2)), x, y, 0.0, 0)
    assert first.level in LEVELS
    assert 0 <= first.loss <= 1
    assert first.divergence > 0
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight *= 64
        twin[0].bias *= 64
        twin[1].running_mean *= 64
        twin[1].running_var.copy_((twin[1].running_var + twin[1].eps) * 64**2 - twin[1].eps)
        twin[1].weight.mul_(1.0)
    folded = posterior(Folded(captured_of(twin, 4, 2)), x, y, 0.0, 0)
    assert folded.level == first.level
    assert folded.divergence == pytest.approx(first.divergence, rel=0.05)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
