"""Section 4.1: the numbers behind the verdicts, against closed forms."""

from __future__ import annotations

import pytest

from normscope.papers.claim import Verdict
from normscope.papers.than2025.claims.statements_04_to_11_inputs import CLAIMS


def test_slopes_of_activations() -> None:
    found = CLAIMS["001-D4"].check().measured
    assert (found["slope of sigmoid"], found["softmax, attained by two equal classes"]) == pytest.approx((0.25, 0.5))
    steep = CLAIMS["001-D4x"].check()
    assert steep.verdict is Verdict.FALSE
    names = ("gelu", "silu", "mish", "selu", "hardswish", "gelu, tanh form")
    printed = (1.128904, 1.099839, 1.088498, 1.758099, 1.5, 1.128993)
    assert [steep.measured[f"slope of {name}"] for name in names] == pytest.approx(printed, abs=1e-6)


def test_theorem_6_is_attained() -> None:
    found = CLAIMS["001-T6"].check().measured
    assert found["attained"] == pytest.approx(4.5, rel=1e-12)
    assert float(found["largest quotient of 299 pairs"]) < 4.5
    assert float(found["attained by weights nearby"]) > 4.4


def test_factors_above_one_need_not_grow() -> None:
    found = CLAIMS["001-R7"].check().measured
    assert found["product, s_k = 1 + 2^-k, 59 layers"] == pytest.approx(2.384, abs=5e-4)
    assert found["difference of two networks of equal product"] == 0.0


@pytest.mark.parametrize(("id", "verdict"), [("001-R7t", Verdict.HOLDS), ("001-R7o", Verdict.UNSUPPORTED)])
def test_the_rest_of_remark_7(id: str, verdict: Verdict) -> None:
    assert CLAIMS[id].check().verdict is verdict


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
