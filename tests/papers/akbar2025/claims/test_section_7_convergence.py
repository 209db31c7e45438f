"""Sections 7 and 9: the numbers behind the verdicts."""

from __future__ import annotations

import pytest

from checked_claims import claim_entry
from normscope.papers.akbar2025.claims import section_7_convergence as convergence
from normscope.papers.akbar2025.claims.section_7_convergence import CLAIMS
from normscope.papers.audit import check_claim

VERDICTS = {
    "003-7a": "needs an assumption", "003-7b": "false", "003-7c": "unsupported", "003-7s": "false",
    "003-71k": "needs an assumption", "003-72m": "holds", "003-72s": "false", "003-72l": "holds", "003-91b": "false",
    "003-91w": "false", "003-94": "holds", "003-95w": "false",
}  # fmt: skip


@pytest.mark.parametrize(("id", "verdict"), VERDICTS.items())
def test_verdicts(id: str, verdict: str) -> None:
    found = claim_entry(id)
    assert (found.error, found.verdict) == ("", verdict)


def test_every_claim_is_listed() -> None:
    assert set(CLAIMS) == set(VERDICTS)


def test_the_gap_formula_has_every_value_for_one_network() -> None:
    found = CLAIMS["003-7c"].check().measured
    assert float(found["formula at W/10"]) == pytest.approx(1e-6 * float(found["formula at W"]), rel=1e-9)
    assert float(found["change of the network"]) < 1e-12


def test_the_logistic_norm_grows_like_the_logarithm() -> None:
    found = list(CLAIMS["003-7b"].check().measured.values())
    assert float(found[1]) - float(found[0]) == pytest.approx(float(found[2]) - float(found[1]), rel=0.2)


def test_a_verdict_follows_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without normalization the formula would belong to another network."""
    monkeypatch.setattr(convergence, "normalized", lambda kind, z, *a: z)
    assert check_claim(CLAIMS["003-7c"]).verdict == "not checkable"
