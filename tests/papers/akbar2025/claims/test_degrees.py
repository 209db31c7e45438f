"""Table 1: the flat directions counted."""

from __future__ import annotations

import pytest
import torch

from checked_claims import claim_entry
from normscope.papers.akbar2025.claims import degrees
from normscope.papers.akbar2025.claims.degrees import CLAIMS, flat_directions
from normscope.papers.run import checked

VERDICTS = {
    "003-grp": "false", "003-T1": "false", "003-T1B": "holds", "003-T1L": "false", "003-T1W": "false",
    "003-GN": "holds", "003-IN": "holds",
}  # fmt: skip


@pytest.mark.parametrize(("id", "verdict"), VERDICTS.items())
def test_verdicts(id: str, verdict: str) -> None:
    found = claim_entry(id)
    assert (found.error, found.verdict) == ("", verdict)


def test_every_claim_is_listed() -> None:
    assert set(CLAIMS) == set(VERDICTS)


def test_the_nullities_of_four_neurons_with_three_inputs() -> None:
    found = list(CLAIMS["003-T1"].check().measured.values())
    assert found == [4, 8, 12, 8, 9, 5, 10, 1]


@pytest.mark.parametrize("seed", [1000, 2000, 3000])
def test_the_nullities_do_not_depend_on_the_weights(seed: int) -> None:
    assert flat_directions("batch", torch.tanh, seed=seed) == 8
    assert flat_directions("layer", torch.tanh, seed=seed) == 5


def test_a_verdict_follows_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(degrees, "flat_directions", lambda *a, **k: 2)
    monkeypatch.setattr(degrees, "symmetry_dimension", lambda *a, **k: 2)
    assert checked(CLAIMS["003-T1L"]).verdict == "holds"
    assert checked(CLAIMS["003-T1B"]).verdict == "false"
