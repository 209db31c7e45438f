"""The first half of the slides: the numbers behind the verdicts."""

from __future__ import annotations

import pytest

from normscope.papers.claim import Verdict
from normscope.papers.than2025.slides.learning import CLAIMS


def test_the_parts_of_the_summary_miss_one() -> None:
    found = CLAIMS["002-sum"].check()
    total, parts, missing = (float(x) for x in found.measured.values())
    assert found.verdict is Verdict.FALSE
    assert total == pytest.approx(parts + missing, rel=1e-12)


@pytest.mark.parametrize(
    ("id", "verdict"),
    [
        ("002-dec", Verdict.HOLDS),
        ("002-VC", Verdict.HOLDS),
        ("002-VCb", Verdict.HOLDS),
        ("002-PB", Verdict.HOLDS),
        ("002-tab", Verdict.NOT_CHECKABLE),
        ("002-app", Verdict.NOT_CHECKABLE),
    ],
)
def test_claims_of_the_first_half(id: str, verdict: Verdict) -> None:
    assert CLAIMS[id].check().verdict is verdict
