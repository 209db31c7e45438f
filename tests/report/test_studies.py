"""A study is done, drawn and written; what is unknown is refused before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from normscope.core.errors import InputError
from normscope.papers.study import STUDIES
from normscope.report.studies import reproduce


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
