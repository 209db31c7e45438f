"""Numbers as people read them: four digits at any size, and words for what is not a number."""

from __future__ import annotations

import math

from normscope.core.number_text import digits, number_text
from normscope.core.value import Kind, Value

NOTHING = "-"


def float_text(x: float | None) -> str:
    """Return a float with four significant digits, or a dash for none.

    >>> float_text(1e-5), float_text(None)
    ('1e-05', '-')
    """
    return NOTHING if x is None else digits(x)


def value_text(value: Value | None) -> str:
    """Return a value as text, or a dash for none.

    >>> value_text(Value.of(2.0, Kind.CERTIFIED)), value_text(None)
    ('2', '-')
    """
    return NOTHING if value is None else number_text(value.log10)


def kind_text(value: Value | None) -> str:
    """Return the short word for what a value guarantees.

    >>> kind_text(Value.of(1.0, Kind.PROBABILISTIC, delta=1e-9)), kind_text(Value.of(1.0, Kind.LOWER))
    ('prob. 1-1e-9', 'attained')
    """
    if value is None:
        return NOTHING
    if value.kind is Kind.PROBABILISTIC:
        mantissa, _, exponent = f"{value.delta:.3g}".partition("e")
        return f"prob. 1-{mantissa}e{int(exponent)}" if exponent else f"prob. 1-{mantissa}"
    return "attained" if value.kind is Kind.LOWER else value.kind.value


def described(value: Value) -> str:
    """Return a value with what it guarantees and for which inputs.

    >>> described(Value.of(2.0, Kind.LOWER))
    '2 (attained, all inputs)'
    """
    return f"{value_text(value)} ({kind_text(value)}, {value.domain})"


def factor_text(above: Value | None, below: Value | None) -> str:
    """Return how many times larger one value is than another; a dash where that says nothing.

    >>> factor_text(Value.of(6.0, Kind.CERTIFIED), Value.of(2.0, Kind.LOWER))
    'x 3'
    """
    if above is None or below is None or math.isinf(above.log) or math.isinf(below.log):
        return NOTHING
    return f"x {number_text(above.log10 - below.log10)}"


def span_text(texts: list[str]) -> str:
    """Return several cells of one column as one: equal ones once, numbers as least and most, words one by one.

    >>> span_text(["1.2", "1.2"]), span_text(["1.2", "0.9", "1e+400"]), span_text(["-", "2"]), span_text(["yes", "no"])
    ('1.2', '0.9 .. 1e+400', '2', 'yes, no')
    """
    shown = [t for t in dict.fromkeys(texts) if t != NOTHING] or [NOTHING]
    sizes = [_log10(t) for t in shown]
    if len(shown) == 1 or None in sizes:
        return ", ".join(shown)
    ordered = sorted(zip((s for s in sizes if s is not None), shown, strict=True))
    return f"{ordered[0][1]} .. {ordered[-1][1]}"


def _log10(text: str) -> float | None:
    """Return the decimal logarithm of a cell, or ``None`` if it is not a non-negative number."""
    if text == "no bound":
        return math.inf
    mantissa, _, exponent = text.partition("e")
    try:
        number, power = float(mantissa), int(exponent or 0)
    except ValueError:
        return None
    if number < 0:
        return None
    return math.log10(number) + power if number > 0 else -math.inf
