"""What came of an attack reads the same as text and as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

from normscope.testing.refutation import Attack, Refutation

HOLDS = Attack("layers", "fc", "upper", "all inputs", 0.5, 0.4)
FALSE = Attack("depth", "ln", "global", "all inputs", 0.0, math.log(3.057 / 3.0))
LOW = Attack("layers", "fc", "lower", "all inputs", 0.5, 0.4, lower=True)


def test_an_upper_bound_falls_above_it_and_a_lower_bound_below() -> None:
    """Not within rounding."""
    assert not HOLDS.refuted
    assert FALSE.refuted
    assert LOW.refuted
    assert not Attack("layers", "fc", "upper", "", 0.5, 0.5 + 1e-10).refuted
    assert not Attack("layers", "fc", "upper", "", -math.inf, -math.inf).refuted
    assert Attack("layers", "fc", "upper", "", -math.inf, -20.0).refuted
    assert FALSE.ratio > 1 > HOLDS.ratio


def test_text_and_json_list_what_was_attacked(tmp_path: Path) -> None:
    """Strict JSON, with zero and infinity as strings."""
    zero = Attack("layers", "dead", "upper", "", -math.inf, -math.inf)
    found = Refutation("net", 3, (HOLDS, FALSE, zero), (("weights", "no module"),))
    assert found.refuted == (FALSE,)
    assert "1 refuted" in str(found)
    assert "REFUTED  depth[ln].global" in str(found)
    assert "not attacked: weights: no module" in str(found)
    data = json.loads(found.save(tmp_path / "r.json").read_text())
    assert data["refuted"] == 1
    assert data["attacks"][2]["claimed_log10"] == "-inf"
    assert [a["refuted"] for a in data["attacks"]] == [False, True, False]
