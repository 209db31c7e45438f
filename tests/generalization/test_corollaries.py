"""Corollary 22: the product and the term, in the log domain."""

from __future__ import annotations

import math

import pytest

from normscope.core.value import Kind, Value
from normscope.generalization import corollary_21, corollary_22, g_paper


def test_parts() -> None:
    """By hand, printed whatever went in, and huge products stay finite logarithms."""
    g = g_paper(1.0, 10, 100, 50_000, 0.05)
    parts = [Value.of(x, Kind.CERTIFIED) for x in (0.5, 300.0, 4.0)]
    found = corollary_22(*parts, g)
    assert found.value == pytest.approx(0.5 * 300 * 4 + g.value)
    assert found.kind is Kind.PRINTED
    huge = corollary_22(parts[0], Value(2000.0, Kind.PRINTED), parts[2], g)
    assert huge.log == pytest.approx(2000 + math.log(2))


def test_corollary_21_is_theorem_20_printed() -> None:
    """The same number, never a bound."""
    found = corollary_21(Value.of(0.4, Kind.PROBABILISTIC, assumptions=("x",)))
    assert found.value == pytest.approx(0.4)
    assert found.kind is Kind.PRINTED
    assert found.assumptions == ("x",)
