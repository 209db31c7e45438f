"""The second half of the slides: the numbers behind the verdicts."""

from __future__ import annotations

import pytest

from normscope.papers.claim import Verdict
from normscope.papers.than2025.slides.normalization import CLAIMS


def test_the_constant_of_layer_norm_is_no_bound() -> None:
    found = list(CLAIMS["002-LN"].check().measured.values())
    assert found == pytest.approx([223.6, 158.1, 300.0, 284.6, 316.2, 223.6], abs=0.05)


def test_the_constant_of_group_norm_is_no_bound() -> None:
    assert list(CLAIMS["002-GN"].check().measured.values()) == pytest.approx([0.8165, 0.6667], abs=5e-5)


def test_the_constant_of_batch_norm_is_a_frobenius_norm() -> None:
    assert list(CLAIMS["002-BN"].check().measured.values()) == pytest.approx([3.99992, 5.678], abs=5e-4)


def test_powers_of_two() -> None:
    found = CLAIMS["002-num"].check().measured
    assert found["1.35 x 2^-26.5"] == pytest.approx(1.422e-8, abs=5e-12)
    assert found["log2(1e-8)"] == pytest.approx(-26.575, abs=5e-4)


@pytest.mark.parametrize(
    ("id", "verdict"),
    [
        ("002-01", Verdict.FALSE),
        ("002-D1", Verdict.NOT_CHECKABLE),
        ("002-gen", Verdict.UNSUPPORTED),
        ("002-chain", Verdict.HOLDS),
        ("002-cvx", Verdict.HOLDS),
        ("002-exp", Verdict.FALSE),
    ],
)
def test_claims_beside_the_lemmas(id: str, verdict: Verdict) -> None:
    assert CLAIMS[id].check().verdict is verdict
