"""Section 3 and Appendix A.1.1: the numbers behind the verdicts."""

from __future__ import annotations

import pytest

from checked_claims import claim_entry
from normscope.papers.akbar2025.claims import section_3_derivatives as derivatives
from normscope.papers.akbar2025.claims.section_3_derivatives import CLAIMS
from normscope.papers.audit import check_claim

VERDICTS = {
    "003-BN1": "false", "003-sgn": "holds", "003-bias": "holds", "003-Eq1": "false", "003-Eq1s": "holds",
    "003-LNb": "false", "003-LNbs": "holds", "003-1/c": "holds", "003-WNd": "false", "003-A11": "false",
    "003-A11c": "false", "003-A11w": "holds",
}  # fmt: skip


@pytest.mark.parametrize(("id", "verdict"), VERDICTS.items())
def test_verdicts(id: str, verdict: str) -> None:
    found = claim_entry(id)
    assert (found.error, found.verdict) == ("", verdict)


def test_every_claim_is_listed() -> None:
    assert set(CLAIMS) == set(VERDICTS)


def test_equation_1_lacks_exactly_gamma() -> None:
    found = CLAIMS["003-Eq1"].check().measured
    assert found["true/printed, least"] == pytest.approx(2.3, rel=1e-9)
    assert found["true/printed, most"] == pytest.approx(2.3, rel=1e-9)


def test_the_last_display_of_the_appendix_is_right_and_the_first_wrong() -> None:
    found = CLAIMS["003-A11"].check().measured
    assert float(found["error of the final display"]) < 1e-12
    assert float(found["error with 1/m"]) < 1e-12
    assert min(float(found["error as printed"]), float(found["error of the display before the last"])) > 0.1


def test_gradients_shrink_with_the_scale_only_without_eps() -> None:
    found = CLAIMS["003-1/c"].check().measured
    assert float(found["gradient, error at eps = 0.1"]) > 1e-3
    assert float(found["Hessian, error"]) < 1e-12


def test_a_wrong_correction_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """If BatchNorm ignored eps, or its gradient were another, what we state instead would be wrong."""
    batch_norm = derivatives.F.batch_norm
    monkeypatch.setattr(derivatives.F, "batch_norm", lambda *a, eps, **k: batch_norm(*a, eps=1e-12, **k))
    assert check_claim(CLAIMS["003-BN1"]).error.startswith("CorrectionError")
    monkeypatch.setattr(derivatives, "batch_norm_backward", lambda delta, z, gamma, eps: delta)
    assert check_claim(CLAIMS["003-Eq1"]).error.startswith("CorrectionError")


def test_a_verdict_follows_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the values summed to something over the batch, their gradient would."""
    monkeypatch.setattr(derivatives, "standardized", lambda z, eps: (z**2, z))
    assert check_claim(CLAIMS["003-Eq1s"]).verdict == "false"
