"""Limitations and failure signatures: the verdicts, and that a wrong certificate would be an error."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from normscope.papers.cisneros2025.claims import limits
from normscope.papers.cisneros2025.claims.limits import CLAIMS
from normscope.papers.run import checked

VERDICTS = {"004-lim2": "false", "004-lim3": "needs an assumption", "004-fail2": "holds", "004-fail3": "holds"}


@pytest.mark.turns(3)
@pytest.mark.parametrize(("id", "verdict"), VERDICTS.items())
def test_verdicts(id: str, verdict: str) -> None:
    entry = checked(CLAIMS[id])
    assert (entry.error, entry.verdict) == ("", verdict)


def test_every_claim_is_listed() -> None:
    assert set(CLAIMS) == set(VERDICTS)


def test_a_contraction_that_does_not_happen_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    true = limits.certify_step

    def certify(*arguments: Any) -> Any:
        found = true(*arguments)
        return dataclasses.replace(found, certificate=dataclasses.replace(found.certificate, contraction=0.1))

    monkeypatch.setattr(limits, "certify_step", certify)
    assert "we state at most" in checked(CLAIMS["004-lim3"]).error
