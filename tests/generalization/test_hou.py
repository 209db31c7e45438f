"""The bound of Hou et al. as printed: its three terms, and that it is vacuous wherever distances are above one."""

from __future__ import annotations

import math

import pytest

from normscope.core.value import Kind
from normscope.generalization import hou_bound


def test_terms() -> None:
    """By hand, for a constant below and above one."""
    for constant in (0.1, 20.0):
        expected = 13 * max(1, constant) + 30 * constant * math.sqrt(math.log(80) / 5000) + math.sqrt(100 / 5000)
        found = hou_bound(math.log(13), math.log(30), math.log(constant), 100, 5000, 0.05)
        assert found.value == pytest.approx(expected)
        assert found.kind is Kind.PRINTED


def test_never_below_the_mean_distance() -> None:
    """13 on CIFAR-10 in pixels: vacuous for any network, a constant one too."""
    assert hou_bound(math.log(13), math.log(30), -100.0, 100, 10**9, 0.05).value >= 13
