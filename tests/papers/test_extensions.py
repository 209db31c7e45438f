"""Statements of our own: they hold, and would be found false if the code were wrong."""

from __future__ import annotations

import pytest

from checked_claims import claim_entry
from normscope.papers import extensions
from normscope.papers.audit import check_claim
from normscope.papers.extensions import CLAIMS

IDS = {
    "X-BNtrain", "X-BNfold", "X-RMS", "X-IN", "X-res", "X-att", "X-attB", "X-homog", "X-ressym", "X-share", "X-radial",
    "X-eps", "X-stream",
}  # fmt: skip


@pytest.mark.parametrize("id", sorted(CLAIMS))
def test_each_holds(id: str) -> None:
    found = claim_entry(id)
    assert (found.error, found.verdict) == ("", "holds")


def test_every_claim_is_listed() -> None:
    assert set(CLAIMS) == IDS


def test_attention_grows_with_the_square() -> None:
    sizes = [float(value) for value in CLAIMS["X-att"].check().measured.values()]
    assert sizes[3] / sizes[2] == pytest.approx(100.0, rel=1e-3)


def test_a_residual_of_twice_the_identity() -> None:
    assert CLAIMS["X-res"].check().measured["f = 2 id"] == pytest.approx(3.0, rel=1e-12)


def test_a_wrong_constant_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "batch_norm_batch_at", lambda *a: 1.0)
    assert check_claim(CLAIMS["X-BNtrain"]).verdict == "false"
    monkeypatch.setattr(extensions, "rms_norm_at", lambda *a: 1.0)
    assert check_claim(CLAIMS["X-RMS"]).verdict == "false"
    monkeypatch.setattr(extensions, "attention_constants", lambda *a: (1.0, 1.0, 1.0))
    assert check_claim(CLAIMS["X-attB"]).error.startswith("CorrectionError")
