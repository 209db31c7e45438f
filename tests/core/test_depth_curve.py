"""Curves along depth: rounded to the safe side, read back as they were."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.core.depth_curve import Curve, Depth
from normscope.core.json_form import read, to_plain
from normscope.core.value import LN10, Kind

LOGS = st.floats(min_value=-1e4, max_value=1e4)


@given(LOGS)
def test_an_upper_curve_never_falls_below_its_number(log: float) -> None:
    """Few digits are kept, and they err to the safe side, by no more than one of the last kept."""
    (up,) = Curve.of([log], Kind.CERTIFIED).log10
    (down,) = Curve.of([log], Kind.LOWER).log10
    assert up is not None
    assert down is not None
    assert down <= log / LN10 <= up
    assert up - down < 3e-9


def test_what_is_not_finite_stays_so() -> None:
    """No bound, zero and nothing measured are three things."""
    curve = Curve.of([math.inf, -math.inf, None, 0.0], Kind.CERTIFIED)
    assert curve.log10 == (math.inf, -math.inf, None, 0.0)


def test_json_round_trip() -> None:
    """Through strict JSON everything is as it was, and a value carries its curve's guarantee."""
    curve = Curve.of([0.0, 1.0, math.inf, None], Kind.CERTIFIED, domain="a ball", mode="running", statement="F10")
    depth = Depth(("input", "a", "b", "output"), ("input", "layer", "normalizer", "output"), {"global": curve})
    again = read(Depth, json.loads(json.dumps(to_plain(depth), allow_nan=False)))
    assert again == depth
    value = again.value("global", 1)
    assert value is not None
    assert (value.kind, value.domain, value.mode, value.statement) == (Kind.CERTIFIED, "a ball", "running", "F10")
    assert value.value == pytest.approx(math.e, rel=1e-8)
    assert value.value >= math.e
    assert again.value("global", 3) is None
