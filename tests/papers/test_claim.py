"""Claims and outcomes."""

from __future__ import annotations

import math

import pytest

from normscope.papers.claim import (
    Claim,
    Claims,
    Outcome,
    Verdict,
    assumes,
    bound,
    close,
    holds,
    refuted,
    unsupported,
    worst,
)


def _nothing() -> Outcome:
    return Outcome(Verdict.HOLDS)


def test_an_id_is_taken_once() -> None:
    claims = Claims("than2025")
    claims.add("001-A", "Lemma 0")(_nothing)
    with pytest.raises(KeyError, match="Duplicate claim: 001-A"):
        claims.add("001-A", "Lemma 0")


def test_a_claim_is_of_a_known_paper() -> None:
    with pytest.raises(KeyError, match="Unknown paper 'nobody'"):
        Claim("001-A", "nobody", "", "", "", _nothing)


def test_infinities_are_words_in_json() -> None:
    found = Outcome(Verdict.LOOSE, {"a": math.inf, "b": True, "c": 2, "d": "x"}, "so", math.inf).to_dict()
    assert found == {
        "verdict": "loose",
        "measured": {"a": "inf", "b": True, "c": 2, "d": "x"},
        "because": "so",
        "factor": "inf",
    }


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        Outcome(Verdict.HOLDS, {"a": math.nan}).to_dict()


def test_closeness_is_relative_above_one() -> None:
    assert close(1e12, 1e12 + 1)
    assert not close(1e12, 1.001e12)
    assert not close(1e-3, 1.1e-3)


def test_verdicts_on_bounds() -> None:
    assert [close(a, 1.0) for a in (1.0, 1.0 + 1e-12, 1.1, 0.9)] == [True, True, False, False]
    assert [bound(a, 1.0) for a in (1.0, 1.1, 0.9)] == [Verdict.HOLDS, Verdict.LOOSE, Verdict.FALSE]
    assert worst([Verdict.LOOSE, Verdict.FALSE, Verdict.HOLDS]) is Verdict.FALSE
    assert worst([]) is Verdict.HOLDS


def test_verdicts_on_conditions() -> None:
    assert [holds(c, {}, "").verdict for c in (True, False)] == [Verdict.HOLDS, Verdict.FALSE]
    assert [refuted(c, {}, "").verdict for c in (True, False)] == [Verdict.FALSE, Verdict.HOLDS]
    assert [assumes(c, {}, "", Verdict.LOOSE).verdict for c in (True, False)] == [
        Verdict.ASSUMPTION,
        Verdict.LOOSE,
    ]
    assert [unsupported(c, {}, "").verdict for c in (True, False)] == [Verdict.UNSUPPORTED, Verdict.HOLDS]
