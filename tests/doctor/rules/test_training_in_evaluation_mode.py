"""NS217: in evaluation mode while it trains."""

from __future__ import annotations

import pytest
from torch import nn

from normscope import check


@pytest.mark.parametrize(
    ("train", "purpose", "told"), [(False, "train", 1), (True, "train", 0), (False, "finetune", 0)]
)
def test_by_mode_and_purpose(train: bool, purpose: str, told: int) -> None:
    """A remark, of the first trained layer."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2)).train(train)
    found = check(model, purpose=purpose, select=["NS217"]).findings
    assert [(f.place, f.severity.value) for f in found] == [("1", "info")] * told


def test_frozen_layers_stand_still_on_purpose() -> None:
    """Without trained parameters nothing is said."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4).requires_grad_(False)).eval()
    assert check(model, purpose="train", select=["NS217"]).findings == ()
