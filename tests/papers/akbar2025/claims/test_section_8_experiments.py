"""Section 8: the numbers behind the verdicts."""

from __future__ import annotations

import pytest

from checked_claims import claim_entry
from normscope.papers.akbar2025.claims.section_8_experiments import CLAIMS
from normscope.papers.claim import Outcome

VERDICTS = {
    "003-X1": "holds", "003-X1p": "needs an assumption", "003-X2": "unsupported", "003-X3": "unsupported",
    "003-X3n": "unsupported", "003-X4": "needs an assumption", "003-X4p": "holds",
}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> dict[str, Outcome]:
    """Run every experiment once."""
    outcomes = {}
    for id in CLAIMS:
        found = claim_entry(id)
        assert found.outcome is not None, found.error
        outcomes[id] = found.outcome
    return outcomes


@pytest.mark.turns(2)
def test_verdicts(found: dict[str, Outcome]) -> None:
    assert {id: outcome.verdict.value for id, outcome in found.items()} == VERDICTS


def test_the_norm_drifts_with_the_step(found: dict[str, Outcome]) -> None:
    norms = [float(value) for value in found["003-X1"].measured.values()]
    assert 1.0 < norms[0] < 1.01
    assert norms == sorted(norms)


def test_the_largest_eigenvalue_is_no_property_of_the_network(found: dict[str, Outcome]) -> None:
    measured = found["003-X2"].measured
    assert float(measured["most"]) > 1 / 5
    assert 6 < float(measured["BatchNorm with W/3"]) / float(measured["largest eigenvalue, BatchNorm"]) <= 9.1


def test_margins_scale_with_the_last_layer(found: dict[str, Outcome]) -> None:
    measured = found["003-X3"].measured
    assert measured["plain with 10 V"] == pytest.approx(10 * float(measured["plain"]), rel=1e-9)


def test_small_weights_are_lost_below_eps_and_large_ones_are_slow(found: dict[str, Outcome]) -> None:
    measured = found["003-X4"].measured
    assert float(measured["loss after/before, scale 1e-08"]) > 0.999
    assert float(measured["loss after/before, scale 0.01"]) < 0.5
    assert measured["first gradient, scale 1000 over scale 1"] == pytest.approx(1e-3, rel=0.05)
