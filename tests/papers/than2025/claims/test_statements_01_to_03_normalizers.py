"""Section 3: the numbers behind the verdicts, against closed forms."""

from __future__ import annotations

import math

import pytest

from normscope.papers.claim import Verdict
from normscope.papers.than2025.claims.statements_01_to_03_normalizers import CLAIMS


def test_lemma_1_is_the_frobenius_norm() -> None:
    found = CLAIMS["001-L1"].check()
    assert found.verdict is Verdict.FALSE
    assert found.measured["true"] == pytest.approx(1 / 3, rel=1e-12)
    assert found.measured["printed"] == pytest.approx(5 / 12, rel=1e-12)
    assert found.measured["true, torch BatchNorm1d with a scale"] == pytest.approx(3.9999200024, abs=5e-11)


def test_lemma_2_is_an_equality_from_three_values_on() -> None:
    outcome = CLAIMS["001-L2a"].check()
    assert outcome.verdict is Verdict.HOLDS
    found = outcome.measured
    assert [found[f"true / printed, n = {n}"] for n in (3, 5, 17)] == pytest.approx([1.0] * 3, rel=1e-12)
    assert float(found["true / printed, n = 2"]) < 1e-3


def test_lemma_2_on_all_inputs_is_one_over_the_root_of_eps() -> None:
    outcome = CLAIMS["001-L2b"].check()
    assert outcome.verdict is Verdict.HOLDS
    found = outcome.measured
    assert list(found.values()) == pytest.approx([316.22776601683796] * 4, rel=1e-12)


def test_layer_norm_contracts_where_the_variance_is_large_only() -> None:
    found = CLAIMS["001-L2c"].check()
    assert found.verdict is Verdict.ASSUMPTION
    assert found.measured["largest quotient where std >= 0.5, n = 2"] == pytest.approx(1.99601, abs=5e-6)
    assert found.measured["largest quotient where std >= 0.5, n = 8"] == pytest.approx(1 / math.sqrt(0.251), rel=1e-12)


def test_the_sum_over_groups_is_four_times_too_large() -> None:
    found = CLAIMS["001-L3"].check()
    assert found.verdict is Verdict.LOOSE
    assert found.measured["true at a constant input"] == pytest.approx(316.2278, abs=5e-5)
    assert found.measured["printed there"] == pytest.approx(1264.9111, abs=5e-5)
    assert found.factor == pytest.approx(4.0, rel=1e-9)


@pytest.mark.parametrize(
    ("id", "verdict"),
    [
        ("001-BNc", Verdict.HOLDS),
        ("001-L2e", Verdict.HOLDS),
        ("001-GNLN", Verdict.HOLDS),
        ("001-SCALE", Verdict.ASSUMPTION),
    ],
)
def test_claims_beside_the_lemmas(id: str, verdict: Verdict) -> None:
    assert CLAIMS[id].check().verdict is verdict
