"""Numbers and guarantees as text: plain, and with powers of ten for HTML pages."""

import math
import re

from normscope.core.number_text import digits, number_text
from normscope.core.value import ALL_INPUTS, Kind, Value

NOTHING = "-"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_EXPONENT = re.compile(r"(?<![\w.])(\d(?:\.\d+)?)e([+-]\d{2,})\b")
#: Decimal logarithms between which a number is written without a power of ten.
PLAIN = (-3.0, 4.0)
#: What is attained for some choice of the activations' slopes, but perhaps by no input.
PATTERN_FLOOR = "normscope Pattern floor"
#: What each kind of number is, in words.
KINDS = {
    Kind.CERTIFIED: "certified upper bound",
    Kind.PROBABILISTIC: "upper bound with high probability",
    Kind.LOWER: "attained, so the truth is at least this",
    Kind.ESTIMATE: "estimate, no guarantee",
    Kind.PRINTED: "a paper's formula, no guarantee",
}


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
    if value.statement == PATTERN_FLOOR:
        return "attained by free slopes"
    return "attained" if value.kind is Kind.LOWER else value.kind.value


def described(value: Value) -> str:
    """Return a value with what it guarantees and for which inputs.

    >>> described(Value.of(2.0, Kind.LOWER))
    '2 (attained, all inputs)'
    """
    return f"{value_text(value)} ({kind_text(value)}, {value.domain})"


def factor_text(above: Value | None, below: Value | None) -> str:
    """Return the ratio of two values, or a dash if it is not defined.

    >>> factor_text(Value.of(6.0, Kind.CERTIFIED), Value.of(2.0, Kind.LOWER))
    'x 3'
    """
    if above is None or below is None or math.isinf(above.log) or math.isinf(below.log):
        return NOTHING
    return f"x {number_text(above.log10 - below.log10)}"


def span_text(texts: list[str]) -> str:
    """Merge cells of one column: equal ones once, numbers as a range, words as a list.

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
    """Replace numbers in scientific notation by powers of ten.

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
    words = kind_text(value) if value.statement == PATTERN_FLOOR else KINDS[value.kind]
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
    """Return the guarantee of a number in a few words, for tables.

    >>> short_guarantee(Value.of(2.0, Kind.CERTIFIED, mode="running", statement="normscope F1"))
    'certified; all inputs; running; normscope F1'
    """
    return "; ".join(x for x in (kind_text(value), value.domain, value.mode, value.statement) if x)


def sort_key(value: Value) -> str:
    """Return the decimal logarithm as text, the sort key of a table cell.

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
