"""Elementary functions of power series whose coefficients are balls: value and derivatives, proved by Arb.

A ball holds every number that the exact result may be, whatever was rounded. The series of ``g`` at a ball ``B`` has
coefficients that hold ``g^(k)(x)/k!`` for every ``x`` in ``B``.
"""

import math
from collections.abc import Callable

from flint import arb, arb_series

#: Bits of the balls' midpoints.
PRECISION = 128


def constant_series(number: float | arb, length: int) -> arb_series:
    """Return a constant as a series."""
    return arb_series([arb(number)], length)


def ball(low: float, high: float) -> arb:
    """Return the smallest ball that holds an interval with finite ends.

    >>> ball(1.0, 1.0).is_exact()
    True
    """
    return arb(low).union(arb(high))


def outward(x: arb) -> tuple[float, float]:
    """Return the floats around a ball, everything if it is unbounded.

    >>> outward(arb(1)), outward(arb(10) / 3)[0] < 10 / 3 <= outward(arb(10) / 3)[1]
    ((1.0, 1.0), True)
    """
    if not x.is_finite():
        return -math.inf, math.inf
    low, high = x.lower(), x.upper()
    a, b = float(low), float(high)
    a = math.nextafter(a, -math.inf) if arb(a) > low else a
    b = math.nextafter(b, math.inf) if arb(b) < high else b
    return a, b


def _inverse(u: arb_series) -> arb_series:
    return arb_series([arb.nan()] * u.prec, u.prec) if u[0].contains(0) else 1 / u


def _sigmoid(u: arb_series) -> arb_series:
    if u[0].mid() < 0:  # neither exponential overflows
        return u.exp() * _inverse(1 + u.exp())
    return _inverse(1 + (-u).exp())


def _relu(u: arb_series) -> arb_series:
    if u[0] >= 0:
        return u
    zero = constant_series(0.0, u.prec)
    return zero if u[0] <= 0 else either(u, zero)


def either(u: arb_series, v: arb_series) -> arb_series:
    """Return a series that contains both values and both slopes; higher derivatives across a switch are unknown."""
    unknown = [arb.nan()] * max(u.prec - 2, 0)
    return arb_series([*(u[k].union(v[k]) for k in range(min(2, u.prec))), *unknown], u.prec)


def _integrated(value: arb, slope: arb_series, u: arb_series) -> arb_series:
    """Return ``f(u)`` from its value at the first coefficient and ``f'(u)``."""
    if u.prec == 1:
        return constant_series(value, 1)
    return (slope * u.derivative()).integral() + constant_series(value, u.prec)


#: Functions of one argument, on series.
FUNCTIONS: dict[str, Callable[[arb_series], arb_series]] = {
    "exp": lambda u: u.exp(),
    "sigmoid": _sigmoid,
    "softplus": lambda u: (1 + u.exp()).log() if u[0].mid() < 0 else u + (1 + (-u).exp()).log(),
    "tanh": lambda u: 2 * _sigmoid(2 * u) - 1,
    "erf": lambda u: u.erf(),
    "erfc": lambda u: u.erfc(),
    "sin": lambda u: u.sin(),
    "cos": lambda u: u.cos(),
    "atan": lambda u: u.atan(),
    "asin": lambda u: u.asin(),
    "acos": lambda u: u.acos(),
    "sinh": lambda u: (u.exp() - (-u).exp()) / 2,
    "cosh": lambda u: (u.exp() + (-u).exp()) / 2,
    "asinh": lambda u: _integrated(u[0].asinh(), (1 + u * u).rsqrt(), u),
    "acosh": lambda u: _integrated(u[0].acosh(), (u * u - 1).rsqrt(), u),
    "atanh": lambda u: _integrated(u[0].atanh(), _inverse(1 - u * u), u),
    "relu": _relu,
    "log": lambda u: u.log(),
    "sqrt": lambda u: u.sqrt(),
    "rsqrt": lambda u: u.rsqrt(),
    "inverse": _inverse,
}
