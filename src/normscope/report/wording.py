"""Numbers and guarantees as the page writes them: powers of ten with superscripts, and what stands behind a number."""

from __future__ import annotations

import math
import re

from normscope.core.number_text import digits
from normscope.core.value import ALL_INPUTS, Kind, Value
from normscope.report.numbers import NOTHING, kind_text

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_EXPONENT = re.compile(r"(?<![\w.])(\d(?:\.\d+)?)e([+-]\d{2,})\b")
#: Decimal logarithms between which a number is written without a power of ten.
PLAIN = (-3.0, 4.0)
#: What each kind of number is, in words.
KINDS = {
    Kind.CERTIFIED: "certified upper bound",
    Kind.PROBABILISTIC: "upper bound with high probability",
    Kind.LOWER: "attained, so the truth is at least this",
    Kind.ESTIMATE: "estimate, no guarantee",
    Kind.PRINTED: "a paper's formula, no guarantee",
}


def power_text(log10: float) -> str:
    """Return a non-negative number, given by its decimal logarithm, with four significant digits.

    Args:
        log10: decimal logarithm; ``inf`` is "no bound" and ``-inf`` is zero.

    >>> power_text(0.5), power_text(8.4561), power_text(-25.31), power_text(math.inf), power_text(-math.inf)
    ('3.162', '2.858×10⁸', '4.898×10⁻²⁶', 'no bound', '0')
    """
    if math.isinf(log10):
        return "no bound" if log10 > 0 else "0"
    if PLAIN[0] <= log10 < PLAIN[1]:
        text = digits(10.0**log10)
        if "e" not in text:
            return text
    exponent = math.floor(log10)
    mantissa = f"{10.0 ** (log10 - exponent):.3f}"
    if mantissa.startswith("10"):
        mantissa, exponent = "1.000", exponent + 1
    return f"{mantissa}×10{str(exponent).translate(_SUPERSCRIPT)}"


def with_powers(text: str) -> str:
    """Return a sentence with its large and small numbers as the page writes them.

    >>> with_powers("the bound is 1.127e+08 times what was attained, layer1e+08 is a name")
    'the bound is 1.127×10⁸ times what was attained, layer1e+08 is a name'
    """
    return _EXPONENT.sub(lambda found: f"{found[1]}×10{str(int(found[2])).translate(_SUPERSCRIPT)}", text)


def page_value(value: Value | None) -> str:
    """Return a value as the page writes it, or a dash for none.

    >>> page_value(Value.of(21140.0, Kind.ESTIMATE)), page_value(None)
    ('2.114×10⁴', '-')
    """
    return NOTHING if value is None else power_text(value.log10)


def page_float(x: float | str | None) -> str:
    """Return a plain float, read from JSON or not, as the page writes it; one below zero with four digits.

    >>> page_float(0.25), page_float(1e-5), page_float(-3.0), page_float("inf"), page_float(None)
    ('0.25', '1.000×10⁻⁵', '-3', 'inf', '-')
    """
    if x is None:
        return NOTHING
    number = float(x)
    if not 0 <= number < math.inf:
        return NOTHING if math.isnan(number) else digits(number)
    return power_text(math.log10(number)) if number else "0"


def guarantee(value: Value) -> str:
    """Return what a number guarantees, in one line.

    >>> guarantee(Value.of(2.0, Kind.CERTIFIED, mode="running", statement="normscope F1"))
    'certified upper bound; on all inputs; BatchNorm: running; normscope F1; log10 0.30103'
    """
    words = KINDS[value.kind]
    parts = [f"{words} ({kind_text(value)})" if value.kind is Kind.PROBABILISTIC else words]
    parts.append(f"on {value.domain}" if value.domain == ALL_INPUTS else value.domain)
    if value.mode:
        parts.append(f"BatchNorm: {value.mode}")
    if value.statement:
        parts.append(value.statement)
    if math.isfinite(value.log):
        parts.append(f"log10 {value.log10:.6g}")
    return "; ".join(parts)


def short_guarantee(value: Value) -> str:
    """Return what a number guarantees in few words, for a table with many of them.

    >>> short_guarantee(Value.of(2.0, Kind.CERTIFIED, mode="running", statement="normscope F1"))
    'certified; all inputs; running; normscope F1'
    """
    return "; ".join(x for x in (kind_text(value), value.domain, value.mode, value.statement) if x)


def sort_key(value: Value) -> str:
    """Return the decimal logarithm as an attribute that a table is sorted by.

    >>> sort_key(Value.of(10.0, Kind.ESTIMATE)), sort_key(Value(math.inf, Kind.CERTIFIED))
    ('1', 'inf')
    """
    return f"{value.log10:.9g}"


def plural(count: int, word: str, ending: str = "s") -> str:
    """Return a count with its noun.

    >>> plural(1, "layer"), plural(2, "layer"), plural(2, "batch", "es")
    ('1 layer', '2 layers', '2 batches')
    """
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}{ending}"
