"""The price list: its weights sum to one, and rounding goes up by less than the base."""

from __future__ import annotations

import math

import pytest

from normscope.generalization import rounded_up


def test_weights_sum_to_at_most_one() -> None:
    """Over all powers; the tail beyond the summed ones is positive and small."""
    some = math.fsum(math.exp(-rounded_up(j * math.log(2)).price) for j in range(-20_000, 20_001))
    assert 1 - 1e-3 < some < 1


@pytest.mark.parametrize("log", [-40.0, -0.3, 0.0, 1.0, math.log(8), 300.0])
@pytest.mark.parametrize("base", [2.0, math.sqrt(2)])
def test_rounds_up(log: float, base: float) -> None:
    """To a power at least as large and less than one step away."""
    found = rounded_up(log, base)
    assert 0 <= found.log - log < math.log(base) + 1e-6
    assert (found.log / math.log(base)) == pytest.approx(round(found.log / math.log(base)), abs=1e-6)


def test_no_scale() -> None:
    """Zero and infinity stay."""
    assert rounded_up(math.inf).log == math.inf
    assert rounded_up(-math.inf).log == -math.inf
