"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.core.value import Kind, Value
from normscope.report.numbers import (
    factor_text,
    guarantee,
    kind_text,
    page_float,
    page_value,
    power_text,
    span_text,
    value_text,
    with_powers,
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


_DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def _read(text: str) -> float:
    """Return the decimal logarithm of what a reader reads."""
    mantissa, times, power = text.partition("×10")
    return math.log10(float(mantissa)) + (int(power.translate(_DIGITS)) if times else 0)


@pytest.mark.parametrize(
    ("text", "page"),
    [
        ("at most 6.215e+12, or 4e-05.", "at most 6.215×10¹², or 4×10⁻⁵."),
        ("--tolerance 1e-3 and eps 0.5", "--tolerance 1e-3 and eps 0.5"),
        ("block.1e+10.conv", "block.1e+10.conv"),
    ],
)
def test_numbers_in_sentences_are_those_of_tables(text: str, page: str) -> None:
    """Names and options stay as they are typed."""
    assert with_powers(text) == page


@given(st.floats(min_value=-4000, max_value=4000))
def test_a_reader_reads_the_number_to_four_digits(log10: float) -> None:
    """Whatever its size, what is written is the number within half a unit of the fourth digit."""
    assert _read(power_text(log10)) == pytest.approx(log10, abs=2.2e-4 + 1e-12 * abs(log10))


@pytest.mark.parametrize(
    ("log10", "text"),
    [
        (math.log10(9999.6), "1.000×10⁴"),
        (4.0 - 1e-9, "1.000×10⁴"),
        (5.9999999, "1.000×10⁶"),
        (-3.0, "0.001"),
        (0.0, "1"),
        (-300.5, "3.162×10⁻³⁰¹"),
    ],
)
def test_edges(log10: float, text: str) -> None:
    """Rounding up to the next power of ten, and the ends of the plain range."""
    assert power_text(log10) == text


def test_a_guarantee_says_everything() -> None:
    """Kind, domain, mode, statement, and the probability where there is one."""
    value = Value.of(2.0, Kind.PROBABILISTIC, delta=1e-9, domain="a ball", mode="batch", statement="rump2006 2.4")
    text = guarantee(value)
    assert all(word in text for word in ("probability", "1-1e-9", "a ball", "BatchNorm: batch", "rump2006 2.4"))
    assert kind_text(Value.of(2.0, Kind.CERTIFIED)) == "certified"


def test_what_is_no_number() -> None:
    """No bound, zero, nothing and negative floats have words of their own."""
    assert page_value(Value(math.inf, Kind.CERTIFIED)) == "no bound"
    assert page_value(Value(-math.inf, Kind.LOWER)) == "0"
    assert [page_float(x) for x in (0.0, None, "inf", -2.5)] == ["0", "-", "inf", "-2.5"]


def test_a_floor_of_free_slopes_is_not_called_attained() -> None:
    """No input need reach it, and its kind in a table says so."""
    floor = Value.of(2.0, Kind.LOWER, statement="normscope Pattern floor")
    assert kind_text(floor) == "attained by free slopes"
    assert guarantee(floor).startswith("attained by free slopes; ")
