"""Numbers of any size as text: four digits, and words for what is not a number."""

import math

#: Numbers with a decimal logarithm of at least this, or below its negative, are written as powers of ten.
PLAIN = 6.0


def number_text(log10: float, count: int = 4) -> str:
    """Return a non-negative number, given by its decimal logarithm, with some significant digits.

    >>> number_text(0.5), number_text(8.4561), number_text(-25.31), number_text(math.inf), number_text(-math.inf)
    ('3.162', '2.858e+08', '4.898e-26', 'no bound', '0')
    """
    if math.isinf(log10):
        return "no bound" if log10 > 0 else "0"
    if abs(log10) < PLAIN and 10**-PLAIN < float(digits(10.0**log10)) < 10**PLAIN:  # also after rounding
        return digits(10.0**log10, count)
    exponent = math.floor(log10)
    mantissa = digits(10.0 ** (log10 - exponent), count)
    if mantissa == "10":
        mantissa, exponent = "1", exponent + 1
    return f"{mantissa}e{exponent:+03d}"


def digits(x: float, count: int = 4) -> str:
    """Return a number with some significant digits.

    >>> digits(0.333333), digits(1234.5678), digits(0.0)
    ('0.3333', '1235', '0')
    """
    return f"{x:.{count}g}"
