"""Section 4: the numbers behind the verdicts."""

from __future__ import annotations

import pytest
import torch

from checked_claims import claim_entry
from normscope.papers.akbar2025.claims import section_4_symmetries as symmetries
from normscope.papers.akbar2025.claims.section_4_symmetries import CLAIMS, flat_directions
from normscope.papers.audit import check_claim

VERDICTS = {
    "003-P4.1a": "false", "003-P4.1b": "needs an assumption", "003-C411": "holds", "003-met": "holds",
    "003-sph": "holds", "003-nat": "holds", "003-ex41": "holds", "003-ex41b": "holds",
    "003-P4.2": "needs an assumption", "003-LNr": "holds", "003-LNs": "false", "003-P4.3": "false", "003-P43g": "false",
    "003-grp": "false", "003-T1": "false", "003-T1B": "holds", "003-T1L": "false", "003-T1W": "false",
    "003-GN": "holds", "003-IN": "holds",
}  # fmt: skip


@pytest.mark.parametrize(("id", "verdict"), VERDICTS.items())
def test_verdicts(id: str, verdict: str) -> None:
    found = claim_entry(id)
    assert (found.error, found.verdict) == ("", verdict)


def test_every_claim_is_listed() -> None:
    assert set(CLAIMS) == set(VERDICTS)


def test_the_printed_symmetry_of_weight_norm_changes_the_weight() -> None:
    """w(2.5 v, 1.7/2.5) is not w(v, 1.7): they are 1.7 (1 - 1/2.5) apart; <v, grad_v> = 0."""
    found = CLAIMS["003-P4.3"].check().measured
    assert found["||w' - w|| with g/alpha"] == pytest.approx(1.02, rel=1e-12)
    assert float(found["||w' - w|| with g fixed"]) < 1e-12
    found = CLAIMS["003-P43g"].check().measured
    assert abs(float(found["<v, grad_v L>"])) < 1e-12
    assert abs(float(found["g dL/dg"])) > 1e-3


def test_eps_and_stale_statistics_break_the_invariance() -> None:
    found = list(CLAIMS["003-P4.1b"].check().measured.values())
    assert float(found[0]) < 1e-12
    assert 1e-6 < float(found[1]) < 1e-3
    assert float(found[2]) > 0.1


def test_without_normalization_the_weight_norm_claim_is_not_what_we_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    """If w were g v, the printed symmetry would be one, and our correction would fail."""
    monkeypatch.setattr(symmetries, "weight_norm_effective", lambda v, g: g[:, None] * v)
    assert check_claim(CLAIMS["003-P4.3"]).error.startswith("CorrectionError")


def test_a_verdict_follows_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A LayerNorm that did not centre would make the common row no symmetry."""
    original = symmetries.change
    monkeypatch.setattr(symmetries, "change", lambda a, b, kind, **k: original(a, b, kind.replace("layer", "rms"), **k))
    assert check_claim(CLAIMS["003-LNs"]).verdict == "error"
    monkeypatch.setattr(symmetries, "change", lambda *a, **k: 0.0)
    assert check_claim(CLAIMS["003-P4.1a"]).verdict == "holds"


def test_the_nullities_of_four_neurons_with_three_inputs() -> None:
    found = list(CLAIMS["003-T1"].check().measured.values())
    assert found == [4, 8, 12, 8, 9, 5, 10, 1]


@pytest.mark.parametrize("seed", [1000, 2000, 3000])
def test_the_nullities_do_not_depend_on_the_weights(seed: int) -> None:
    assert flat_directions("batch", torch.tanh, seed=seed) == 8
    assert flat_directions("layer", torch.tanh, seed=seed) == 5


def test_verdicts_on_degrees_follow_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetries, "flat_directions", lambda *a, **k: 2)
    monkeypatch.setattr(symmetries, "symmetry_dimension", lambda *a, **k: 2)
    assert check_claim(CLAIMS["003-T1L"]).verdict == "holds"
    assert check_claim(CLAIMS["003-T1B"]).verdict == "false"
