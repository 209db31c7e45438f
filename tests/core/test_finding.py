"""Findings: their JSON form and their order."""

from __future__ import annotations

import json
import math

import pytest

from normscope.core.finding import Certainty, Finding, Severity, order


def test_a_round_trip_through_strict_json() -> None:
    """Infinities become strings, everything else stays."""
    one = Finding("NS101", Severity.ERROR, "a.b", "m", {"n": 3, "x": 0.5, "w": "v"}, Certainty.PROVED, "s", "f")
    assert Finding.from_dict(json.loads(json.dumps(one.to_dict(), allow_nan=False))) == one
    endless = Finding("NS101", Severity.INFO, "", "m", {"x": math.inf})
    assert endless.to_dict()["evidence"] == {"x": "inf"}


def test_what_is_not_a_number_is_refused() -> None:
    """NaN in the evidence, two lines in a message."""
    with pytest.raises(ValueError, match="NaN"):
        Finding("NS101", Severity.INFO, "", "m", {"x": math.nan}).to_dict()
    with pytest.raises(ValueError, match="one line"):
        Finding("NS101", Severity.INFO, "", "a\nb")


def test_the_gravest_come_first_and_layers_in_their_order() -> None:
    """layers.2 before layers.10."""
    places = ("layers.10", "layers.2", "")
    found = [Finding("NS101", Severity.INFO, p, "m") for p in places] + [Finding("NS999", Severity.ERROR, "z", "m")]
    assert [f.place for f in order(found)] == ["z", "", "layers.2", "layers.10"]
