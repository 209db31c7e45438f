"""Section 6 and Appendix A.1.2: the numbers behind the verdicts."""

from __future__ import annotations

import math

import pytest

from checked_claims import claim_entry
from normscope.papers.akbar2025.claims import section_6_curvature as curvature
from normscope.papers.akbar2025.claims.section_6_curvature import CLAIMS
from normscope.papers.audit import check_claim

VERDICTS = {
    "003-H0": "false", "003-Hmix": "false", "003-2D": "needs an assumption", "003-61": "false", "003-61f": "false",
    "003-61o": "needs an assumption", "003-dl": "holds", "003-xl": "false", "003-A12a": "false", "003-A12b": "false",
    "003-A12m": "false", "003-A12e": "holds", "003-A12c": "false", "003-A12d": "holds",
}  # fmt: skip


@pytest.mark.parametrize(("id", "verdict"), VERDICTS.items())
def test_verdicts(id: str, verdict: str) -> None:
    found = claim_entry(id)
    assert (found.error, found.verdict) == ("", verdict)


def test_every_claim_is_listed() -> None:
    assert set(CLAIMS) == set(VERDICTS)


def test_batch_norm_does_not_whiten() -> None:
    """Covariance diag(100, 1, 0.01), w = e2: eigenvalues 0.01 and 100 remain; at w/10 they are 100 times larger."""
    found = list(CLAIMS["003-61"].check().measured.values())
    assert found == pytest.approx([100, 1e4, 100, 1e4, 1e4], rel=1e-9)


def test_the_gradient_where_scale_and_shift_are_stationary() -> None:
    assert CLAIMS["003-A12a"].check().measured["largest gradient"] == pytest.approx(1 / math.sqrt(1.25), rel=1e-12)


def test_the_direction_of_the_values_is_flat() -> None:
    found = CLAIMS["003-A12b"].check().measured
    assert abs(float(found["along z^, eps = 0"])) < 1e-12
    assert found["printed"] == pytest.approx(-5 * float(found["gamma^2/sigma^2"]), rel=1e-12)


def test_positive_eigenvalues_are_counted_by_samples_and_inputs() -> None:
    found = CLAIMS["003-A12c"].check().measured
    assert (found["positive, m = 4"], found["positive, m = 20"]) == (2, 4)


def test_a_negative_eigenvalue_is_forced() -> None:
    found = CLAIMS["003-H0"].check().measured
    assert float(found["smallest eigenvalue"]) <= float(found["our bound of it"]) < 0


def test_a_verdict_follows_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "smallest_eigenvalue_bound", lambda *a: -100.0)
    assert check_claim(CLAIMS["003-H0"]).error.startswith("CorrectionError")
    monkeypatch.setattr(curvature, "flat_directions", lambda *a, **k: 4)
    assert check_claim(CLAIMS["003-xl"]).verdict == "holds"
