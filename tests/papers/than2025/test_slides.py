"""The first half of the slides: the numbers behind the verdicts."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.core.value import Kind, Value
from normscope.operators.normalizers.group_norm import group_norm_global
from normscope.operators.normalizers.layer_norm import layer_norm_global, printed_is_bound
from normscope.papers.claim import Verdict
from normscope.papers.than2025.slides import CLAIMS, group_norm_slides, layer_norm_slides, slides_rates


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


def test_layer_norm_fails_for_one_hot_scales_and_for_two_elements() -> None:
    for n, true, slide in ((2, 223.6, 158.1), (10, 300.0, 284.6)):
        one_hot = torch.nn.functional.one_hot(torch.tensor(0), n).double()
        printed, constant = layer_norm_slides(one_hot, 0.0, 1e-5), layer_norm_global(one_hot, 1e-5)
        assert (round(constant, 1), round(printed, 1)) == (true, slide)
        assert not printed_is_bound(printed, constant)
    assert not printed_is_bound(layer_norm_slides(torch.ones(2), 0.0, 1e-5), layer_norm_global(torch.ones(2), 1e-5))
    wide = layer_norm_slides(torch.ones(1), 0.0, 1e-5, n=100)
    assert wide == pytest.approx(9.9 * layer_norm_global(torch.ones(100), 1e-5), rel=1e-9)


def test_group_norm_fails_for_a_one_hot_scale() -> None:
    """Three elements, one-hot: true 0.8165, printed 0.6667."""
    gamma = torch.tensor([1.0, 0.0, 0.0])
    constant, printed = group_norm_global(gamma, 1, 1.0), group_norm_slides(gamma, 0.0, 1.0, 3)
    assert constant == pytest.approx(0.81649658, abs=1e-8)
    assert printed == pytest.approx(0.66666667, abs=1e-8)
    assert not printed_is_bound(printed, constant)
    assert group_norm_slides(gamma, 0.0, 0.0, 3) == math.inf


def test_the_rates_solve_the_printed_errors_and_are_no_bounds() -> None:
    """``(L^2/T)^(1/3)`` and ``L/sqrt(T)`` are ``alpha`` after these iterations."""
    rates = slides_rates(Value.of(3.0, Kind.CERTIFIED), 0.5)
    assert (9.0 / rates["non-convex"].value) ** (1 / 3) == pytest.approx(0.5)
    assert 3.0 / math.sqrt(rates["convex"].value) == pytest.approx(0.5)
    assert {v.kind for v in rates.values()} == {Kind.PRINTED}
    assert all(v.assumptions for v in rates.values())
