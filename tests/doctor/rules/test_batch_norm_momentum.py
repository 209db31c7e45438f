"""NS212: momentum."""

from __future__ import annotations

import pytest
from torch import nn

from checking import found
from normscope import check


@pytest.mark.parametrize(
    ("momentum", "told"), [(0.99, 1), (0.5, 1), (1.0, 1), (0.0, 1), (0.1, 0), (0.49, 0), (None, 0)]
)
def test_by_value(momentum: float | None, told: int) -> None:
    """At or above one half, and zero; None averages all batches."""
    assert len(found("NS212", nn.Sequential(nn.BatchNorm1d(3, momentum=momentum)))) == told


def test_the_fix_is_the_complement_and_inference_does_not_care() -> None:
    """0.99 of another framework is 0.01 here."""
    model = nn.Sequential(nn.BatchNorm1d(3, momentum=0.99))
    assert found("NS212", model)[0].fix == "momentum=0.01"
    assert "NS212" not in check(model, purpose="inference").ran
    assert found("NS212", nn.Sequential(nn.BatchNorm1d(3, momentum=0.9, track_running_stats=False))) == []
