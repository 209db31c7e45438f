"""Section 5.1: the numbers behind the verdicts."""

from __future__ import annotations

import pytest

from normscope.papers.than2025.claims.optimization import CLAIMS


def test_counts_do_not_depend_on_units() -> None:
    found = CLAIMS["001-IC"].check().measured
    assert found["steps, strongly convex"] == found["steps, in units 100 times smaller"]
    assert float(found["L/alpha, in those units"]) == pytest.approx(100 * float(found["L/alpha"]), rel=1e-12)
    assert found["least |f'| of |x| in 10000 steps"] == 1.0


def test_all_weights_zero_is_stationary() -> None:
    found = CLAIMS["001-C18"].check().measured
    assert (found["largest gradient at W = 0"], found["iterations"]) == (0.0, 0)


def test_evaluations_do_not_depend_on_the_unit_of_the_loss() -> None:
    counts = list(CLAIMS["001-C19"].check().measured.values())[:2]
    assert counts[0] == counts[1]
    assert int(counts[0]) > 10
