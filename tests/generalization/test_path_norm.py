"""The factor of the path-norm bound, and its two limits."""

from __future__ import annotations

import math

import pytest

from normscope.core.errors import InputError
from normscope.core.value import Kind
from normscope.generalization import path_norm_bound

_RESNET18 = {"depth": 18, "kernel": 9, "inputs": 3 * 224**2, "outputs": 1000, "poolings": 1}


def test_known_factor() -> None:
    """ResNet-18 on ImageNet: 0.088 in front of the path norm; in the log domain no norm is too large."""
    one = path_norm_bound(0.0, **_RESNET18, largest=2.64, samples=1_281_167)
    assert one.value == pytest.approx(0.088, abs=5e-4)
    huge = path_norm_bound(3000.0, **_RESNET18, largest=2.64, samples=1_281_167)
    assert huge.log - one.log == pytest.approx(3000.0)
    assert huge.kind is Kind.PRINTED


def test_second_evaluation() -> None:
    """Without pooling: ``D ln(3 K) + ln(3 (d_in + 1) d_out)``."""
    expected = 4 * 2 * math.sqrt((5 * math.log(3 * 9) + math.log(3 * 11 * 4)) / 100) * 7
    found = path_norm_bound(math.log(7), depth=5, kernel=9, inputs=10, outputs=4, largest=2, samples=100)
    assert found.value == pytest.approx(expected)


def test_refused() -> None:
    """No depth."""
    with pytest.raises(InputError):
        path_norm_bound(0.0, depth=0, kernel=1, inputs=1, outputs=1, largest=1.0, samples=1)
