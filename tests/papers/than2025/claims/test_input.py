"""Section 4.1: the numbers behind the verdicts, against closed forms."""

from __future__ import annotations

import pytest

from normscope.papers.claim import Verdict
from normscope.papers.than2025.claims.input import CLAIMS


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
