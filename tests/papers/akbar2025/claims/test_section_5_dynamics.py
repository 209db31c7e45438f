"""Section 5.1: the numbers behind the verdicts."""

from __future__ import annotations

import math

import pytest

from checked_claims import claim_entry
from normscope.papers.akbar2025.claims import section_5_dynamics as dynamics
from normscope.papers.akbar2025.claims.section_5_dynamics import CLAIMS
from normscope.papers.audit import check_claim

VERDICTS = {
    "003-L51": "holds", "003-L51d": "false", "003-L51n": "false", "003-L51L": "false", "003-L51W": "holds",
    "003-L51W'": "false", "003-WD": "false", "003-51c": "holds", "003-51r": "holds", "003-E51": "false",
    "003-51L": "false", "003-51e": "false", "003-dead": "needs an assumption", "003-sad": "false", "003-52": "holds",
    "003-95m": "holds",
}  # fmt: skip


@pytest.mark.turns(6)
@pytest.mark.parametrize(("id", "verdict"), VERDICTS.items())
def test_verdicts(id: str, verdict: str) -> None:
    found = claim_entry(id)
    assert (found.error, found.verdict) == ("", verdict)


def test_every_claim_is_listed() -> None:
    assert set(CLAIMS) == set(VERDICTS)


def test_weight_decay_has_the_factor_two_and_an_equilibrium() -> None:
    found = CLAIMS["003-WD"].check().measured
    assert found["||w||^2 after/before, lambda = 0.05, t = 20"] == pytest.approx(math.exp(-2), abs=5e-6)
    assert found["||w||^4 in equilibrium"] == pytest.approx(20.01, abs=5e-5)


def test_a_step_grows_the_norm_by_the_square_of_the_move() -> None:
    found = CLAIMS["003-L51d"].check().measured
    assert found["growth of ||w||^2"] == pytest.approx(found["eta^2 ||grad||^2"], rel=1e-9)
    assert float(found["||w|| after 40 steps/before"]) > 1


def test_weights_and_bias_exchange_norm_under_layer_norm() -> None:
    found = CLAIMS["003-L51L"].check().measured
    assert found["<W, grad_W>"] == pytest.approx(-float(found["<b, grad_b>"]), rel=1e-9)
    assert abs(float(found["<W, grad_W>"])) > 1e-3


def test_a_verdict_follows_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the flow did not keep the norm the lemma would be false; if steps did, their law would be wrong."""
    flow = dynamics.gradient_flow
    monkeypatch.setattr(
        dynamics, "gradient_flow", lambda *a, **k: {name: 2 * value for name, value in flow(*a, **k).items()}
    )
    assert check_claim(CLAIMS["003-L51"]).verdict == "false"
    monkeypatch.setattr(dynamics, "square_after_step", lambda square, *rest: square)
    assert check_claim(CLAIMS["003-L51d"]).error.startswith("CorrectionError")


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
    monkeypatch.setattr(dynamics, "growth_after_heavy_ball", lambda growth, last, move, mu: move)
    assert check_claim(CLAIMS["003-95m"]).error.startswith("CorrectionError")
