"""Section 5.1: the numbers behind the verdicts."""

from __future__ import annotations

import pytest

from normscope.papers.audit import check_claim
from normscope.papers.claim import Verdict
from normscope.papers.than2025.claims import statements_18_to_22_learning as learning
from normscope.papers.than2025.claims.statements_18_to_22_learning import (
    CLAIMS,
    fixed_partition,
    partition_from_data,
    refuses_data,
)


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


def test_a_partition_from_the_data_breaks_the_bound_every_time() -> None:
    found = CLAIMS["001-T20"].check().measured
    assert found["violations, partition fixed before, of 500"] == 0
    assert float(found["repaired bound"]) < 0.25 * float(found["printed bound, N = 10, m = 200"])
    assert found["violations, partition from the data, of 200"] == 200
    assert found["risk there"] == pytest.approx(0.999, abs=5e-4)
    assert found["bound there"] == pytest.approx(0.169, abs=5e-4)


def test_the_loss_jumps_with_the_label() -> None:
    printed, same, changing = (float(x) for x in CLAIMS["001-T20c"].check().measured.values())
    assert same <= printed * (1 + 1e-9)
    assert changing == pytest.approx(1 / 1e-3, rel=0.01)


def test_the_term_is_vacuous_for_small_cells() -> None:
    found = list(CLAIMS["001-curse"].check().measured.values())
    assert found == pytest.approx([29.0, 1.77, 0.188], rel=5e-3)


def test_the_risk_is_what_the_intervals_leave() -> None:
    """Three samples far apart cover three intervals."""
    risk, _ = partition_from_data(3, 3, 1e-3)
    assert risk == pytest.approx(1 - 3 * 2e-3, abs=1e-12)
    gap, _, _ = fixed_partition(4, 1, 10)
    assert gap == pytest.approx(0.9)


def test_our_bound_refuses_a_partition_from_the_data() -> None:
    assert refuses_data(5)


def test_a_bound_that_does_not_refuse_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "refuses_data", lambda samples: False)
    assert "took a partition built from its own data" in check_claim(CLAIMS["001-T20"]).error


@pytest.mark.parametrize(("id", "verdict"), [("001-T5", Verdict.NOT_CHECKABLE), ("001-WN", Verdict.NOT_CHECKABLE)])
def test_statements_about_other_papers_are_not_decided(id: str, verdict: Verdict) -> None:
    assert CLAIMS[id].check().verdict is verdict
