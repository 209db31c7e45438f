"""Section 4.3, the loss: the numbers behind the verdicts."""

from __future__ import annotations

import pytest

from normscope.papers.claim import Verdict
from normscope.papers.than2025.claims.loss import CLAIMS


def test_the_l1_loss_costs_the_root_of_the_rows() -> None:
    found = CLAIMS["001-C14="].check().measured
    assert list(found.values()) == pytest.approx([36.0, 18.0], rel=1e-12)


def test_all_layers_have_the_same_constant() -> None:
    found = list(CLAIMS["001-R17"].check().measured.values())
    assert found[:6] == pytest.approx([32.0] * 6, rel=1e-12)


def test_the_gradient_formula_agrees_and_has_something_to_agree_with() -> None:
    found = CLAIMS["001-T15"].check()
    assert found.verdict is Verdict.HOLDS
    assert float(found.measured["largest entry, i = 1, n_i = 4"]) > 0.01


def test_a_saturating_loss_vanishes_instead_of_exploding() -> None:
    found = CLAIMS["001-R16"].check().measured
    assert found["tanh, square, A = 100"] == 0.0
    square = [float(found[f"identity, square, A = {a}"]) for a in (10, 100)]
    assert square[1] / square[0] == pytest.approx(100.0, rel=0.1)


@pytest.mark.parametrize(
    ("id", "verdict"),
    [
        ("001-T15k", Verdict.FALSE),
        ("001-R16v", Verdict.HOLDS),
        ("001-R16n", Verdict.ASSUMPTION),
        ("001-R17n", Verdict.ASSUMPTION),
        ("001-C14(10)", Verdict.ASSUMPTION),
    ],
)
def test_claims_beside_the_theorems(id: str, verdict: Verdict) -> None:
    assert CLAIMS[id].check().verdict is verdict
