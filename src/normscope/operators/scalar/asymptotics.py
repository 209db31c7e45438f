r"""Asymptotic expansions of formulas: a polynomial plus a remainder with a proved bound, on ``|x| >= R``.

On one side, with ``s = |x|``, a formula is ``P(s) + e(s)`` with ``|e| <= E(s)`` and ``|e'| <= D(s)``. The polynomial
has exact rational coefficients; ``E`` and ``D`` are sums of terms ``c s^m exp(-k s)``. So ``x s(x)`` is ``s`` plus a
remainder below ``s exp(-s)`` on the right, and zero plus such a remainder on the left.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from dataclasses import dataclass, field
from fractions import Fraction

from flint import arb, arb_series

from normscope.operators.scalar.formula import Formula
from normscope.operators.scalar.series import FUNCTIONS, ball, outward

#: Sums of ``c s^m exp(-k s)``, the coefficient c by (m, k).
Terms = dict[tuple[float, float], float]
#: Relative room for the rounding of coefficients and rates, which a few operations form.
_UP, _DOWN = 1.0 + 2.0**-45, 1.0 - 2.0**-45
#: An expansion with more terms or a higher degree than this is given up.
_MOST = 64


class UnknownTailError(ValueError):
    """There is no asymptotic expansion: the function grows too fast, or the start is too close to zero."""


def joined(*sums: Terms) -> Terms:
    """Return the sum of bounds."""
    total: Terms = {}
    for terms in sums:
        for key, c in terms.items():
            total[key] = (total.get(key, 0.0) + c) * _UP
    return total


def times(a: Terms, b: Terms) -> Terms:
    """Return the product of bounds.

    >>> list(times({(1.0, 0.0): 2.0}, {(0.0, 3.0): 1.0}))
    [(1.0, 3.0)]
    """
    if len(a) * len(b) > _MOST:
        raise UnknownTailError("too many terms")
    total: Terms = {}
    for (m, k), c in a.items():
        for (n, q), d in b.items():
            rate = (k + q) * _DOWN if k and q else k + q
            total[(m + n, rate)] = (total.get((m + n, rate), 0.0) + c * d * _UP) * _UP
    return total


def supremum(terms: Terms, start: float) -> float:
    """Return an upper bound of a sum of terms on ``s >= start``: each is largest at its top ``m/k`` or at the start.

    >>> supremum({(0.0, 1.0): 1.0}, 0.0) >= 1.0, supremum({(1.0, 0.0): 1.0}, 1.0)
    (True, inf)
    """
    total = 0.0
    for (m, k), c in terms.items():
        if c == 0.0:
            continue
        if m > 0 and k == 0:
            return math.inf
        s = max(start, m / k) if m > 0 else start
        log = math.log(c) + (m * math.log(s) if m else 0.0) - k * s
        if log > 700.0:
            return math.inf
        # the exponent errs by units of its parts
        size = abs(math.log(c)) + (abs(m * math.log(s)) if m else 0.0) + k * s
        total += math.exp(log) * (1.0 + 2.0**-48 * (1.0 + size)) + 1e-300
    return total * _UP


@dataclass(frozen=True)
class Tail:
    """A function on ``s >= start``: ``P(s) + e(s)``."""

    polynomial: tuple[Fraction, ...] = ()  #: its coefficients, lowest first, without zeros at the end
    value: Terms = field(default_factory=dict)  #: the bound ``E`` of the remainder
    slope: Terms = field(default_factory=dict)  #: the bound ``D`` of its derivative

    def __add__(self, other: Tail) -> Tail:
        pairs = itertools.zip_longest(self.polynomial, other.polynomial, fillvalue=Fraction(0))
        polynomial = _trimmed([p + q for p, q in pairs])
        return Tail(polynomial, joined(self.value, other.value), joined(self.slope, other.slope))

    def __mul__(self, other: Tail) -> Tail:
        """Return the product, ``P Q + (P d + Q e + e d)``."""
        if len(self.polynomial) + len(other.polynomial) > _MOST:
            raise UnknownTailError("too high a degree")
        coefficients = [Fraction(0)] * (len(self.polynomial) + len(other.polynomial))
        for i, p in enumerate(self.polynomial):
            for j, q in enumerate(other.polynomial):
                coefficients[i + j] += p * q
        (p0, p1), (q0, q1) = self.sizes(), other.sizes()
        e, d = self, other
        return Tail(
            _trimmed(coefficients),
            joined(times(p0, d.value), times(q0, e.value), times(e.value, d.value)),
            joined(
                times(p1, d.value), times(p0, d.slope), times(q1, e.value), times(q0, e.slope),
                times(e.slope, d.value), times(e.value, d.slope),
            ),
        )  # fmt: skip

    @property
    def degree(self) -> int:
        """Return the degree of the polynomial, -1 for zero."""
        return len(self.polynomial) - 1

    def sizes(self) -> tuple[Terms, Terms]:
        """Return bounds of ``|P|`` and ``|P'|``."""
        value = {(float(i), 0.0): _above(p) for i, p in enumerate(self.polynomial) if p}
        slope = {(float(i - 1), 0.0): _above(i * p) for i, p in enumerate(self.polynomial) if p and i}
        return value, slope

    def steep(self) -> Terms:
        """Return a bound of the absolute derivative."""
        return joined(self.sizes()[1], self.slope)

    def least(self, start: float) -> float:
        """Return ``a`` with ``|f(s)| >= a s^degree``, f of the sign of its leading coefficient, for a positive degree.

        Raises:
            UnknownTailError: if there is none from this start on.
        """
        d = self.degree
        rest = {(float(i - d), 0.0): _above(p) for i, p in enumerate(self.polynomial[:-1]) if p}
        falling = times(self.value, {(float(-d), 0.0): 1.0})
        least = max(math.nextafter(_above(self.polynomial[-1]), 0.0) * _DOWN, 0.0)  # at most |a|
        a = least - supremum(joined(rest, falling), start)
        if not a > 0:
            raise UnknownTailError("the leading term does not lead yet")
        return a * _DOWN


def _trimmed(coefficients: list[Fraction]) -> tuple[Fraction, ...]:
    """Return coefficients without zeros at the end."""
    while coefficients and coefficients[-1] == 0:
        coefficients.pop()
    return tuple(coefficients)


def _above(p: Fraction) -> float:
    """Return a float at least ``|p|``."""
    try:
        return math.nextafter(float(abs(p)), math.inf)
    except OverflowError:
        raise UnknownTailError("a coefficient beyond the float range") from None


def expand(formula: Formula, side: int, start: float) -> Tail:
    """Return the asymptotic expansion of a formula on ``x >= start`` (side 1) or ``x <= -start`` (side -1).

    Raises:
        UnknownTailError: if nothing is known from there on.

    >>> from normscope.operators.scalar.formula import X, apply
    >>> expand(X * apply("sigmoid", X), 1, 8.0).polynomial
    (Fraction(0, 1), Fraction(1, 1))
    """
    if formula.op == "x":
        return Tail((Fraction(0), Fraction(side)))
    if formula.op == "constant":
        return Tail(_trimmed([Fraction(formula.number)]))
    if formula.op == "where":
        yes = _positive(expand(formula.parts[0], side, start), start)
        return expand(formula.parts[1 if yes else 2], side, start)
    parts = [expand(part, side, start) for part in formula.parts]
    if formula.op == "add":
        return parts[0] + parts[1]
    if formula.op == "mul":
        return parts[0] * parts[1]
    if formula.op == "pow":
        if not (formula.number >= 1 and formula.number.is_integer()):
            raise UnknownTailError("a root or a quotient written as a power")
        return functools.reduce(operator.mul, parts * int(formula.number))
    u = parts[0]
    return _settled(formula, u, start) if u.degree < 1 else _grown(formula.op, u, start)


@functools.cache
def beyond(formula: Formula, order: int, side: int, start: float) -> tuple[float, float]:
    """Return bounds of ``g`` (order 0) or ``g'`` (order 1) on ``x >= start`` (side 1) or ``x <= -start`` (side -1).

    >>> from normscope.operators.scalar.formula import X, apply
    >>> low, high = beyond(apply("sigmoid", X), 0, 1, 32.0)
    >>> 0.999 < low <= 1.0 <= high < 1.001
    True
    """
    try:
        if start == math.inf:
            return -math.inf, math.inf
        tail = expand(formula, side, start)
        room = supremum(tail.slope if order else tail.value, start)
        if tail.degree > order:
            if order:
                return -math.inf, math.inf
            first = tail.least(start) * start**tail.degree * _DOWN
            return (first, math.inf) if tail.polynomial[-1] > 0 else (-math.inf, -first)
    except (UnknownTailError, OverflowError):
        return -math.inf, math.inf
    limit = tail.polynomial[order] if tail.degree == order else Fraction(0)
    limit = side * limit if order else limit
    low, high = outward(arb(limit.numerator) / limit.denominator)
    if room:
        low, high = math.nextafter(low - room * _UP, -math.inf), math.nextafter(high + room * _UP, math.inf)
    return low, high


def _positive(u: Tail, start: float) -> bool:
    """Return whether a function is positive everywhere, rather than negative everywhere."""
    if u.degree < 0:
        raise UnknownTailError("a condition about zero")
    u.least(start)
    return u.polynomial[-1] > 0


def _settled(formula: Formula, u: Tail, start: float) -> Tail:
    """Return a function of an argument that tends to a constant: ``|f(p + e) - f(p)| <= sup|f'| |e|``."""
    limit = u.polynomial[0] if u.polynomial else Fraction(0)
    if formula.op == "relu" and limit:
        u.least(start)
        return u if limit > 0 else Tail()
    reach = supremum(u.value, start)
    if reach == math.inf:
        raise UnknownTailError("an argument without a limit")
    center = arb(limit.numerator) / limit.denominator
    around = arb_series([center + ball(-reach, reach), 1], 2)
    steep = max(map(abs, outward(FUNCTIONS[formula.op](around)[1])))
    if not steep < math.inf:
        raise UnknownTailError("an argument near the end of the domain")
    factor: Terms = {(0.0, 0.0): steep}
    exact = Formula(formula.op, (Formula("x"),)).exact(limit)
    if exact is not None:
        return Tail(_trimmed([exact]), times(factor, u.value), times(factor, u.slope))
    low, high = outward(FUNCTIONS[formula.op](arb_series([center], 1))[0])
    if not math.isfinite(low + high):
        raise UnknownTailError("an argument near the end of the domain")
    middle, error = Fraction(low) / 2 + Fraction(high) / 2, (high - low) * _UP
    return Tail(_trimmed([middle]), joined(times(factor, u.value), {(0.0, 0.0): error}), times(factor, u.slope))


def _grown(op: str, u: Tail, start: float) -> Tail:
    """Return a function of an argument that grows beyond every bound, with ``|u| >= a s^d >= rate s``."""
    a, d = u.least(start), float(u.degree)
    rate = a * start ** (d - 1) * _DOWN
    up = u.polynomial[-1] > 0
    steep = u.steep()
    falling: Terms = {(0.0, rate): 1.0}
    one = (Fraction(1),)
    if op == "relu":
        return u if up else Tail()
    if op == "sigmoid" or (op == "exp" and not up):
        return Tail(one if up else (), falling, times(steep, falling))
    if op == "softplus":
        rest = Tail((), falling, times(steep, falling))
        return u + rest if up else rest
    if op == "tanh":
        twice: Terms = {(0.0, 2 * rate): 4.0}
        return Tail(one if up else (Fraction(-1),), twice, times(steep, twice))
    if op in ("erf", "erfc"):
        # erfc(u) <= exp(-u^2) and u^2 >= rate^2 start s
        bell: Terms = {(0.0, rate * rate * start * _DOWN): 1.1283791671}
        limit = (one if up else (Fraction(-1),)) if op == "erf" else (() if up else (Fraction(2),))
        return Tail(limit, bell, times(steep, bell))
    if op in ("sin", "cos"):
        return Tail((), {(0.0, 0.0): 1.0}, steep)
    return _algebraic(op, u, a, steep, start)


def _algebraic(op: str, u: Tail, a: float, steep: Terms, start: float) -> Tail:
    """Return roots, quotients, logarithms and the arc tangent of an argument with ``|u| >= a s^d``."""
    d = float(u.degree)
    if op == "inverse":
        return Tail((), {(-d, 0.0): _UP / a}, times(steep, {(-2 * d, 0.0): _UP / a / a}))
    if op == "atan":
        return Tail((), {(0.0, 0.0): 1.5707963268}, times(steep, {(-2 * d, 0.0): _UP / a / a}))
    if op not in ("sqrt", "rsqrt", "log") or u.polynomial[-1] < 0:
        raise UnknownTailError(f"{op} far out")
    if op == "rsqrt":
        root = math.sqrt(a)
        return Tail((), {(-d / 2, 0.0): _UP / root}, times(steep, {(-1.5 * d, 0.0): _UP / (2 * a * root)}))
    # u <= most s^d
    most = supremum(times(joined(u.sizes()[0], u.value), {(-d, 0.0): 1.0}), start)
    if most == math.inf:
        raise UnknownTailError("no bound of the argument")
    if op == "sqrt":
        return Tail((), {(d / 2, 0.0): math.sqrt(most) * _UP}, times(steep, {(-d / 2, 0.0): _UP / (2 * math.sqrt(a))}))
    if a * start**d < 1.0:
        raise UnknownTailError("a logarithm near its zero")
    return Tail((), {(d, 0.0): most}, times(steep, {(-d, 0.0): _UP / a}))
