"""Sections 5 and 9.5: the numbers behind the verdicts."""

from __future__ import annotations

import pytest

from checked_claims import claim_entry
from normscope.papers.akbar2025.claims import stability
from normscope.papers.akbar2025.claims.stability import CLAIMS
from normscope.papers.run import checked

VERDICTS = {
    "003-51L": "false", "003-51e": "false", "003-dead": "needs an assumption", "003-sad": "false", "003-52": "holds",
    "003-95m": "holds",
}  # fmt: skip


@pytest.mark.parametrize(("id", "verdict"), VERDICTS.items())
def test_verdicts(id: str, verdict: str) -> None:
    found = claim_entry(id)
    assert (found.error, found.verdict) == ("", verdict)


def test_every_claim_is_listed() -> None:
    assert set(CLAIMS) == set(VERDICTS)


def test_gradients_explode_behind_batch_norm_by_about_a_fifth_per_layer() -> None:
    """The rate of a wide network with ReLU is sqrt(pi/(pi - 1)) = 1.21."""
    found = CLAIMS["003-51e"].check().measured
    assert 1.1 < float(found["growth per layer, BatchNorm"]) < 1.3
    assert 0.9 < float(found["growth per layer, plain"]) < 1.1


def test_the_saddle_has_no_gradient_on_any_batch() -> None:
    found = CLAIMS["003-sad"].check().measured
    assert found["largest gradient of a mini-batch"] == 0.0
    assert float(found["smallest eigenvalue of the Hessian"]) < -0.01


def test_a_wrong_law_of_momentum_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stability, "growth_after_heavy_ball", lambda growth, last, move, mu: move)
    assert checked(CLAIMS["003-95m"]).error.startswith("CorrectionError")
