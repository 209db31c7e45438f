"""Claims that can be checked with explicit constants: the verdicts, and that a wrong bound would be an error."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from checked_claims import claim_entry
from normscope.papers.audit import check_claim
from normscope.papers.cisneros2025.claims import with_explicit_constants as claims
from normscope.papers.cisneros2025.claims.with_explicit_constants import CLAIMS

VERDICTS = {
    "004-L3": "loose", "004-W": "holds", "004-vanish": "false", "004-step": "holds", "004-gap": "needs an assumption",
    "004-lim1": "needs an assumption", "004-next1": "holds", "004-next2": "holds", "004-next3": "holds",
    "004-zero": "holds", "004-lim2": "false", "004-lim3": "needs an assumption", "004-fail2": "holds",
    "004-fail3": "holds",
}  # fmt: skip


@pytest.mark.turns(6)
@pytest.mark.parametrize(("id", "verdict"), VERDICTS.items())
def test_verdicts(id: str, verdict: str) -> None:
    found = claim_entry(id)
    assert (found.error, found.verdict) == ("", verdict)


def test_every_claim_is_listed() -> None:
    assert set(CLAIMS) == set(VERDICTS)


def test_a_bound_that_is_too_small_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "hessian_bound_closed", lambda *sizes: 1e-6)
    assert "we state at most" in check_claim(CLAIMS["004-L3"]).error


def test_a_contraction_that_does_not_happen_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    true = claims.certify_step

    def certify(*arguments: Any) -> Any:
        found = true(*arguments)
        return dataclasses.replace(found, certificate=dataclasses.replace(found.certificate, contraction=0.1))

    monkeypatch.setattr(claims, "certify_step", certify)
    assert "we state at most" in check_claim(CLAIMS["004-lim3"]).error
