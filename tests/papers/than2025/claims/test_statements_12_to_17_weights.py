"""Section 4.3, weights: the numbers behind the verdicts."""

from __future__ import annotations

import pytest

from normscope.papers.claim import Verdict
from normscope.papers.than2025.claims.statements_12_to_17_weights import CLAIMS


def test_theorem_13_cuts_the_wrong_side() -> None:
    found = CLAIMS["001-T13(8)"].check().measured
    assert (found["true"], found["printed"]) == pytest.approx((5.0, 0.0), abs=1e-12)
    assert 4.0 < float(found["largest quotient of 200 pairs"]) < 5.0


def test_theorem_13_is_right_in_the_total_input() -> None:
    found = CLAIMS["001-T13(9)"].check().measured
    assert (found["printed"], found["attained"]) == pytest.approx((3.0, 3.0), rel=1e-12)


def test_frozen_batch_norm_bounds_no_activation() -> None:
    found = CLAIMS["001-T12a"].check().measured
    assert float(found["at 1e6 x"]) == pytest.approx(1e6 * float(found["||h_2|| at x, frozen BatchNorm"]), rel=1e-9)
    assert float(found["||h_2|| at 1e6 x, LayerNorm"]) <= 6**0.5


def test_the_training_loss_grows_as_the_weights_shrink() -> None:
    found = list(CLAIMS["001-T12c"].check().measured.values())
    assert [float(x) / float(found[0]) for x in found] == pytest.approx([1.0, 10.0, 1000.0], rel=1e-6)


def test_the_l1_loss_costs_the_root_of_the_rows() -> None:
    found = CLAIMS["001-C14="].check().measured
    assert list(found.values()) == pytest.approx([36.0, 18.0], rel=1e-12)


def test_all_layers_have_the_same_constant() -> None:
    found = list(CLAIMS["001-R17"].check().measured.values())
    assert found[:6] == pytest.approx([32.0] * 6, rel=1e-12)


def test_the_gradient_formula_agrees_and_has_something_to_agree_with() -> None:
    found = CLAIMS["001-T15"].check()
    assert found.verdict is Verdict.HOLDS
    assert float(found.measured["largest entry, i = 1, n_i = 4"]) > 0.01


def test_a_saturating_loss_vanishes_instead_of_exploding() -> None:
    found = CLAIMS["001-R16"].check().measured
    assert found["tanh, square, A = 100"] == 0.0
    square = [float(found[f"identity, square, A = {a}"]) for a in (10, 100)]
    assert square[1] / square[0] == pytest.approx(100.0, rel=0.1)


@pytest.mark.parametrize(
    ("id", "verdict"),
    [
        ("001-T15k", Verdict.FALSE),
        ("001-R16v", Verdict.HOLDS),
        ("001-R16n", Verdict.ASSUMPTION),
        ("001-R17n", Verdict.ASSUMPTION),
        ("001-C14(10)", Verdict.ASSUMPTION),
    ],
)
def test_claims_beside_the_theorems(id: str, verdict: Verdict) -> None:
    assert CLAIMS[id].check().verdict is verdict
