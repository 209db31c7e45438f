"""The verdict: right numbers in one sentence, also where nothing can be proved."""

from __future__ import annotations

import math
from dataclasses import replace

from normscope.core.value import Kind, Value
from normscope.report.verdict import Piece, verdict
from normscope.report.wording import power_text
from report.samples import opaque, result, value


def _text(pieces: tuple[Piece, ...]) -> str:
    return "".join(p if isinstance(p, str) else power_text(p.log10) for p in pieces)


def test_bound_and_attained_of_one_domain_stand_together() -> None:
    """On all inputs the pair is global and lower_everywhere; on the floor variance_floor and lower."""
    found = verdict(result())
    assert _text(found.headline) == (
        "Moving the input by 1 moves the output by at most 3160, on all inputs, and by 6 at some input."
    )
    said = [_text(m) for m in found.more]
    assert said[0] == (
        "Where every normalizer sees at least the spread it saw in the data, at most 30, and 4 at some of them."
    )
    assert said[1] == "With 1 layer norm taken out, the same weights have a proved bound 3 times smaller than with it."
    assert found.coverage == "All 5 operations were understood; 100 % of 40 parameters covered."
    assert found.complete


def test_without_a_bound_on_all_inputs() -> None:
    """The floor takes its place, and its domain is said."""
    values = result().end_to_end | {"global": Value(math.inf, Kind.CERTIFIED)}
    text = _text(verdict(result(end_to_end=values)).headline)
    assert text.startswith("On all inputs nothing can be proved.")
    assert "at most 30, for inputs whose normalizer stds" in text
    assert "and by 4 at some input" in text


def test_without_any_bound() -> None:
    """What is attained is still said, and what was not understood."""
    infinite = Value(math.inf, Kind.CERTIFIED)
    values = {"global": infinite, "variance_floor": infinite, "lower": value(4.0, Kind.LOWER)}
    found = verdict(result(end_to_end=values, coverage=opaque()))
    assert _text(found.headline) == (
        "No bound on the network can be proved: aten.bessel in core.j0 and 1 more operation stand in the way. "
        "Moving the input by 1 moves the output by 4 at some input."
    )
    alone = replace(opaque(), opaque=opaque().opaque[1:], understood=9)
    assert _text(verdict(result(end_to_end=values, coverage=alone)).headline).startswith(
        "No bound on the network can be proved: aten.sign in core has no finite constant. Moving"
    )
    assert found.coverage == (
        "1 of 9 operations was not understood; 1 has no finite constant; 75 % of 40 parameters covered."
    )
    assert not found.complete
    assert _text(verdict(result(end_to_end={})).headline) == "No bound on the network can be proved."


def test_a_loose_bound_is_called_so() -> None:
    """A thousand times what is attained is worth a word; thirty times is not."""
    values = {"global": value(1e6), "lower": value(2.0, Kind.LOWER)}
    assert any("5.000×10⁵ times what was attained" in _text(m) for m in verdict(result(end_to_end=values)).more)
    assert not any("far from it" in _text(m) for m in verdict(result()).more)


def test_networks_without_normalizers_and_unchanged_bounds() -> None:
    """Each has its own sentence."""
    assert _text(verdict(result(normalizers=())).more[1]) == "There are no normalizers."
    same = result(effect={"change_of_bound": {"log10": 0.001, "kind": "estimate", "note": ""}})
    assert "leaves the proved bound as it is" in _text(verdict(same).more[1])
    assert _text(verdict(result(effect={})).more[1]) == "There is 1 layer norm."
