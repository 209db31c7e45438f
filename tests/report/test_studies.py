"""A study is done, drawn and written, its claims beside the measurements; what is unknown is refused at once."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from normscope.core.errors import InputError
from normscope.papers.study import STUDIES, Evidence
from normscope.report.studies import evidence_section, reproduce
from normscope.report.table import plain_text


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", [name for name in STUDIES if name.startswith("wn-")])
def test_a_study_at_the_smallest_scale(name: str, tmp_path: Path) -> None:
    done = reproduce(name, "smoke", out=tmp_path)
    assert [file.name for file in done.files] == [f"{name}.png", f"{name}.svg", f"{name}.json"]
    stored = json.loads((tmp_path / "smoke-0" / f"{name}.json").read_text())
    assert stored["claims"] == [found.to_dict() for found in done.evidence]
    assert all(line["y"] for panel in stored["panels"] for line in panel["lines"])
    # bounds and laws that are proved are borne out at any scale
    proved = [e for e in done.evidence if "bound holds" in e.claim or "never" in e.claim or "certified" in e.claim]
    assert all(e.agrees for e in proved)
    assert proved or name == "wn-activation"


def test_what_is_unknown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Unknown figure or study 'wn'. Choose from: fig1, .*wn-depth"):
        reproduce("wn", out=tmp_path)
    with pytest.raises(InputError, match="Unknown scale 'paper'"):
        reproduce("wn-depth", "paper", out=tmp_path)


@pytest.mark.parametrize(("agrees", "word"), [(True, "agrees"), (False, "does not"), (None, "not claimed")])
def test_each_verdict_has_its_word(agrees: bool | None, word: str) -> None:
    """What the paper does not say is told as such."""
    section = evidence_section("fig1", "smoke", [Evidence("norms grow", "net", {"share": 1 / 3, "least": 2.0}, agrees)])
    assert section.table is not None
    assert section.table.rows == (("norms grow", "net", "share 0.3333, least 2", word),)


def test_the_section_names_the_figure_and_keeps_the_order() -> None:
    """One row for each claim and network, in the order they came; an empty table has none."""
    claims = [Evidence(claim, net, {}, True) for net in ("a", "b") for claim in ("one", "two")]
    section = evidence_section("fig2", "laptop", claims)
    assert section.title == "fig2, laptop scale"
    assert section.table is not None
    assert [row[:2] for row in section.table.rows] == [("one", "a"), ("two", "a"), ("one", "b"), ("two", "b")]
    empty = evidence_section("fig1", "smoke", []).table
    assert empty is not None
    assert empty.rows == ()


def test_numbers_past_all_bounds_are_shown() -> None:
    """An infinite bound is no reason to fail."""
    text = plain_text([evidence_section("fig1", "smoke", [Evidence("c", "net", {"x": math.inf}, None)])])
    assert "x inf" in text
