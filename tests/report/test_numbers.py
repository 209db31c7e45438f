"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from normscope.core.value import Kind, Value
from normscope.report.numbers import (
    factor_text,
    kind_text,
    span_text,
    value_text,
)


def test_what_is_missing_is_a_dash() -> None:
    """What is missing is a dash."""
    assert [f(None) for f in (value_text, kind_text)] == ["-"] * 2


def test_values_beyond_the_float_range_are_numbers_too() -> None:
    """A product of a thousand layers has digits and an exponent."""
    assert value_text(Value(1000.5 * math.log(10), Kind.CERTIFIED)) == "3.162e+1000"


@pytest.mark.parametrize(
    ("delta", "text"), [(1e-9, "prob. 1-1e-9"), (2.5e-12, "prob. 1-2.5e-12"), (0.05, "prob. 1-0.05")]
)
def test_probabilities(delta: float, text: str) -> None:
    """Probabilities."""
    assert kind_text(Value(0.0, Kind.PROBABILISTIC, delta=delta)) == text


@pytest.mark.parametrize("kind", [Kind.CERTIFIED, Kind.LOWER, Kind.ESTIMATE, Kind.PRINTED])
def test_kinds_have_their_word(kind: Kind) -> None:
    """Kinds have their word."""
    assert kind_text(Value(0.0, kind)) == ("attained" if kind is Kind.LOWER else kind.value)


def test_factors() -> None:
    """Factors."""
    two, six = Value.of(2.0, Kind.LOWER), Value.of(6.0, Kind.CERTIFIED)
    assert factor_text(six, two) == "x 3"
    assert factor_text(Value(100.0, Kind.CERTIFIED), two) == "x 1.344e+43"
    assert factor_text(Value(math.inf, Kind.CERTIFIED), two) == "-"
    assert factor_text(six, Value.of(0.0, Kind.LOWER)) == "-"
    assert factor_text(six, None) == "-"


def test_spans_order_by_size_not_by_text() -> None:
    """Spans order by size not by text."""
    assert span_text(["9", "10", "1e+07", "0", "2e+400"]) == "0 .. 2e+400"
    assert span_text(["1e-400", "0.5", "no bound"]) == "1e-400 .. no bound"
    assert span_text(["-", "-"]) == "-"
    assert span_text(["64x3", "64x64"]) == "64x3, 64x64"
