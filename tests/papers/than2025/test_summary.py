"""The summary: the numbers behind the verdicts."""

from __future__ import annotations

import pytest

from normscope.papers.claim import Verdict
from normscope.papers.than2025.summary import CLAIMS

FOUND = {
    "000-sup": Verdict.FALSE,
    "000-inh": Verdict.FALSE,
    "000-comp": Verdict.FALSE,
    "000-tight": Verdict.FALSE,
    "000-why": Verdict.UNSUPPORTED,
    "000-exp": Verdict.HOLDS,
    "000-unc": Verdict.HOLDS,
    "000-red": Verdict.ASSUMPTION,
    "000-loss": Verdict.ASSUMPTION,
    "000-gen": Verdict.UNSUPPORTED,
}


@pytest.mark.parametrize(("id", "verdict"), FOUND.items())
def test_what_the_summary_claims(id: str, verdict: Verdict) -> None:
    assert CLAIMS[id].check().verdict is verdict


def test_no_claim_is_left_out() -> None:
    assert set(CLAIMS) == set(FOUND)


def test_layer_norm_multiplies_by_the_root_of_eps() -> None:
    found = list(CLAIMS["000-sup"].check().measured.values())[:3]
    assert found == pytest.approx([1e5**0.5, 1e5, 1e5**1.5], rel=1e-9)


def test_the_bound_is_nine_orders_of_magnitude_away() -> None:
    assert CLAIMS["000-tight"].check().measured["printed / true, n = 64, K = 10"] == pytest.approx(8.0**10, rel=1e-9)
