"""Section 4.3, weights: the numbers behind the verdicts."""

from __future__ import annotations

import pytest

from normscope.papers.than2025.claims.weights import CLAIMS


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
