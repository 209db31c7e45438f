"""Theorem 9 and its corollaries as printed: the numbers of the paper, in the log domain, called printed."""

from __future__ import annotations

import math

import pytest

from normscope.core.value import Kind, Value
from normscope.lipschitz.theorem_9 import corollary_10, corollary_11, lemma_5, theorem_9


def _values(*numbers: float, kind: Kind = Kind.CERTIFIED) -> list[Value]:
    return [Value.of(x, kind) for x in numbers]


def test_products() -> None:
    """Each is the flat product of its factors."""
    weights, normalizers = _values(2.0, 3.0, 0.5), _values(0.1, 10.0, 7.0, kind=Kind.PRINTED)
    assert lemma_5(weights).value == pytest.approx(3.0, rel=1e-12)
    assert theorem_9(weights, normalizers).value == pytest.approx(21.0, rel=1e-12)
    assert corollary_11(weights, normalizers).value == pytest.approx(21.0, rel=1e-12)
    first, second = corollary_10(weights, normalizers)
    assert first.value == pytest.approx(21.0, rel=1e-12)
    assert second.value == pytest.approx(3.0 * 10.0**3, rel=1e-12)


def test_they_are_never_called_bounds() -> None:
    """Whatever the kinds of the factors."""
    results = [
        lemma_5(_values(2.0)),
        theorem_9(_values(2.0), _values(0.5)),
        *corollary_10(_values(2.0), _values(0.5)),
        corollary_11(_values(2.0), []),
    ]
    assert {r.kind for r in results} == {Kind.PRINTED}
    assert [r.statement for r in results] == [
        "than2025 Lemma 5",
        "than2025 Theorem 9",
        "than2025 Corollary 10 (1)",
        "than2025 Corollary 10 (2)",
        "than2025 Corollary 11",
    ]


def test_hundreds_of_factors_do_not_overflow() -> None:
    """1e3 to the five hundredth is a logarithm like any other."""
    assert lemma_5(_values(*[1e3] * 500)).log10 == pytest.approx(1500.0, rel=1e-12)
    assert theorem_9(_values(*[1e3] * 500), _values(*[1e-3] * 500)).log == pytest.approx(0.0, abs=1e-9)


def test_nothing_at_all() -> None:
    """The empty product is one; an infinite factor stays infinite."""
    assert lemma_5([]).value == 1.0
    assert [v.value for v in corollary_10([], [])] == [1.0, 1.0]
    infinite = [Value(math.inf, Kind.PRINTED)]
    assert theorem_9(_values(2.0), infinite).log == math.inf
