"""Section 4.2: the numbers behind the verdicts, against closed forms."""

from __future__ import annotations

import pytest

from normscope.papers.claim import Verdict
from normscope.papers.than2025.claims.networks import CLAIMS


def test_corollary_10_loses_a_root_of_the_width_at_every_layer() -> None:
    found = CLAIMS["001-C10.1"].check()
    assert found.measured["true, n = 64, K = 10, sigma = 3"] == pytest.approx(3.0**-10, rel=1e-9)
    assert found.measured["printed"] == pytest.approx((8 / 3) ** 10, rel=1e-9)
    assert found.factor == pytest.approx(8.0**10, rel=1e-9)


def test_layer_norm_blows_up_as_computed_by_hand() -> None:
    found = CLAIMS["001-C11"].check().measured
    values = [found[f"attained, ReLU, K = {depth}"] for depth in (1, 2, 3, 4)]
    assert values == pytest.approx([306.1862, 90773.05, 2.691090e7, 7.9781e9], rel=1e-6)
    assert found["printed, K = 4"] == pytest.approx(1e10, rel=1e-9)


def test_the_reduction_is_none() -> None:
    found = CLAIMS["001-RED"].check().measured
    drop = float(found["log10 prod 1/sigma"]) - float(found["log10 prod 1/sigma, weights times 10"])
    assert drop == pytest.approx(10.0, abs=1e-9)
    assert float(found["outputs differ by"]) < 1e-12
    assert float(found["W = 0.1 I, 5 layers: with BatchNorm"]) > 1e4 * float(found["W = 0.1 I, 5 layers: without"])


@pytest.mark.parametrize(
    ("id", "verdict"),
    [
        ("001-D8", Verdict.ASSUMPTION),
        ("001-C11r", Verdict.FALSE),
        ("001-F1", Verdict.NOT_CHECKABLE),
        ("001-F2", Verdict.NOT_CHECKABLE),
        ("001-F3", Verdict.NOT_CHECKABLE),
    ],
)
def test_claims_beside_the_theorems(id: str, verdict: Verdict) -> None:
    assert CLAIMS[id].check().verdict is verdict
