"""Weight normalization: the numbers behind the verdicts."""

from __future__ import annotations

import pytest
import torch

from checked_claims import claim_entry
from normscope.papers.audit import check_claim
from normscope.papers.cisneros2025.claims import mechanisms as cisneros2025
from normscope.papers.cisneros2025.claims.mechanisms import CLAIMS, network, unit_rows

VERDICTS = {
    "004-def": "holds", "004-M1": "needs an assumption", "004-M1'": "false", "004-H": "holds",
    "004-M2": "not checkable", "004-RSC": "not checkable", "004-M3": "holds", "004-M3c": "false", "004-fail": "holds",
    "004-Q1": "needs an assumption", "004-Q2": "needs an assumption", "004-Q3": "not checkable",
}  # fmt: skip


@pytest.mark.parametrize(("id", "verdict"), VERDICTS.items())
def test_verdicts(id: str, verdict: str) -> None:
    found = claim_entry(id)
    assert (found.error, found.verdict) == ("", verdict)


def test_every_claim_is_listed() -> None:
    assert set(CLAIMS) == set(VERDICTS)


def test_equal_rows_cost_the_root_of_the_width_at_every_layer() -> None:
    found = CLAIMS["004-M1"].check().measured
    assert found["||V^||, four equal rows"] == pytest.approx(2.0, rel=1e-12)
    assert found["six such layers"] == pytest.approx(64.0, rel=1e-12)
    assert found["six such layers with 1/sqrt(m)"] == pytest.approx(1.0, rel=1e-12)


def test_rows_never_get_shorter_by_plain_steps_and_do_by_adam() -> None:
    found = list(CLAIMS["004-Q1"].check().measured.values())
    assert max(float(value) for value in found[:2]) <= 0.0
    assert min(float(value) for value in found[2:]) > 1e-3


def test_the_network_is_that_of_torch() -> None:
    """One layer of torch's weight norm without a gain, scaled by the root of the width."""
    generator = torch.Generator().manual_seed(0)
    v, u, x = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((5, 4), (5,), (3, 4)))
    weight = torch._weight_norm(v, torch.ones(5, 1, dtype=torch.float64), 0)
    assert torch.allclose(unit_rows(v), weight)
    assert torch.allclose(network({"0": v, "u": u}, x), torch.tanh(x @ weight.mT) @ u / 5**0.5)
    assert torch.allclose(network({"0": v, "u": u}, x, normalize=False), torch.tanh(x @ v.mT) @ u / 5**0.5)


def test_a_verdict_follows_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cisneros2025, "square_after_step", lambda square, *rest: square)
    assert check_claim(CLAIMS["004-Q1"]).error.startswith("CorrectionError")
    monkeypatch.setattr(cisneros2025, "unit_rows", lambda v: v)
    assert check_claim(CLAIMS["004-M3"]).verdict == "false"
    assert check_claim(CLAIMS["004-def"]).verdict == "false"
