"""A check that raises."""

from __future__ import annotations

import pytest
from torch import nn

import normscope
from checking import noise
from normscope.doctor.assertion import UnhealthyError, assert_healthy


def test_it_raises_with_one_line_for_each_finding_as_grave() -> None:
    """And returns the result where there is none; codes can be left out, and the severity chosen."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())
    with pytest.raises(UnhealthyError, match=r"NS101 warning \(proved\) 0: .*Fix: build the layer") as caught:
        assert_healthy(model, noise(16, 4))
    assert isinstance(caught.value, AssertionError)
    assert caught.value.result.failed
    assert not assert_healthy(model, noise(16, 4), ignore=["NS101"]).failed
    assert {f.code for f in assert_healthy(model, noise(16, 4), fail_on="error").findings} == {"NS101"}
    assert normscope.assert_healthy is assert_healthy
